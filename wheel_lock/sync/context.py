"""Contexts for threads: how they are closed, and the methods that make lock objects."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, Unpack

from wheel_lock.engine.engine import Engine
from wheel_lock.locks.context import (
    FAIR_TYPES,
    REENTRANT_TYPES,
    BaseContext,
    FencedTerms,
    LockTerms,
    OwnedTerms,
    close_later,
    permit_types,
    spelled_out,
)
from wheel_lock.runtime.interruptions import finaliser, insist, uninterrupted_start
from wheel_lock.sync.call import ThreadSide, run
from wheel_lock.sync.leader import Leader, Leadership
from wheel_lock.sync.lock import Lock, MultiLock, ReadWriteLock, ReentrantLock, Semaphore
from wheel_lock.sync.process_end import close_on_signals


class ThreadContext(ThreadSide, BaseContext):
    """A context for threads."""

    def close(self, timeout: float | None = None) -> None:
        """End every lease, releasing them at the server unless ``release_on_close`` is off, and close the connections.

        Locks that are still held are lost, for the reason "context closed". Closing twice is harmless.

        Args:
            timeout: Time limit in seconds; ``close_timeout`` by default. Locks that are not released by then expire.
        """
        run(self._close(timeout))

    def close_on_signals(self, *signals: int) -> tuple[signal.Signals, ...]:
        """Have signals release the held locks before they end the process, as :meth:`close` does.

        For programs without a handler of their own: Python's default for SIGTERM is to die without any clean-up. The main
        thread waits while the locks are released, for ``close_timeout`` at most; then the process ends by the signal.
        No ``finally`` and no ``atexit`` function runs; another thread goes on until the end. A second signal ends the
        process at once. A program with a handler keeps it: it should end by ``sys.exit()``, which releases, too.

        A forked child inherits this: its own locks are released.

        Args:
            signals: Numbers, such as ``signal.SIGTERM``, which is the default.

        Returns:
            The signals that release the locks now: those without another handler, and not ignored.

        Raises:
            ValueError: The default of a signal is not to end the process, or the caller is not the main thread.
        """
        return close_on_signals(self._engine, signals)

    def __enter__(self) -> Self:
        return self

    @uninterrupted_start
    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        finally:
            insist(close_later, self._engine)

    @finaliser
    def __del__(self) -> None:
        engine: Engine | None = getattr(self, "_engine", None)
        if engine is not None:
            engine.retire()


class ThreadLocks(ThreadContext):
    """The base class of contexts that make locks of all kinds for threads."""

    @spelled_out(FencedTerms)
    def reentrant_lock(
        self, name: str | bytes, timeout: float | None = None, **terms: Unpack[FencedTerms]
    ) -> ReentrantLock:
        """Return a lock that the thread which holds it may acquire again, not yet acquired.

        At the server it is the same as Redisson's RLock, so services in Java and in Python exclude each other on one name.

        The parameters, and what is raised, are those of :meth:`lock`. It always belongs to the thread that acquires it.
        """
        return self._new(ReentrantLock, REENTRANT_TYPES, name, timeout, terms)

    @spelled_out(FencedTerms)
    def rw_lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[FencedTerms]) -> ReadWriteLock:
        """Return a read-write lock: ``.read()`` and ``.write()`` are its two halves, not yet acquired.

        Any number of readers hold it together, or one writer alone. Both halves can be acquired again by the thread that
        holds them. A writer may acquire it for reading, too, and goes on reading when it has released it for writing (or
        with ``downgrade()``); a reader must not acquire it for writing.

        The parameters, and what is raised, are those of :meth:`lock`; a fence is drawn by writers only. It always belongs
        to the thread that acquires it.
        """
        return ReadWriteLock(self._engine, name, *self._checked(timeout, terms, name))

    @spelled_out(LockTerms)
    def fair_lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[LockTerms]) -> Lock:
        """Return an exclusive lock that is granted in the order of arrival, across processes; not yet acquired.

        A dead waiter is skipped after ``fallback_interval`` (or the timeout, if that is shorter) without a sign of life, by
        the server's clock. A waiter whose process stood still for longer loses its place.

        The parameters, and what is raised, are those of :meth:`lock`.
        """
        return self._new(Lock, FAIR_TYPES, name, timeout, terms)

    @spelled_out(OwnedTerms)
    def semaphore(
        self, name: str | bytes, permits: int, timeout: float | None = None, **terms: Unpack[OwnedTerms]
    ) -> Semaphore:
        """Return a semaphore: at most ``permits`` hold it at once, each with a lease of its own that is renewed.

        One object holds one permit per thread; another object, or another thread, holds another one. Only the thread that
        acquired a permit may release it, unless ``thread_local=False``: then all threads share one, and any may release it.
        The other parameters are those of :meth:`lock`; there are no fences.

        Args:
            permits: The number of permits, unless another number was set with ``set_permits``.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        return self._new(Semaphore, permit_types(permits), name, timeout, terms)

    @spelled_out(OwnedTerms)
    def multi_lock(
        self, names: Iterable[str | bytes], timeout: float | None = None, **terms: Unpack[OwnedTerms]
    ) -> MultiLock:
        """Return several exclusive locks as one: all of them are acquired at once, or none is.

        No lock is held during the wait, so overlapping sets cannot wait for each other for ever. Each lock is an ordinary
        one with a lease of its own, and excludes ``lock(name)``. The other parameters are those of :meth:`lock`; there are
        no fences.

        Args:
            names: Their names, at least one; duplicates are ignored.
            on_lost: Called once for each of them that is lost.

        Raises:
            ValueError: A name or a value is out of range; before any I/O.
        """
        return MultiLock(self._engine, names, *self._checked(timeout, terms))

    def leader(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        on_elected: Callable[[Leadership], object] | None = None,
        on_demoted: Callable[[Leadership], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        renew_every: float | None = None,
    ) -> Leader:
        """Return a candidate for the leadership of ``name``, not yet started: at most one of all processes is the leader.

        It acquires ``lock(name, fencing=True)`` in the background, again and again. Threads of its own call the callbacks,
        so that no callback of another lock delays them.

        Args:
            name: The name, as of a lock.
            timeout: The lock's time-to-live in seconds, after which another one is elected if the leader crashes.
            on_elected: Called with the :class:`~wheel_lock.Leadership` when it is elected. It may run for as long as that
                lasts: beside it ``leadership.ended`` is set, and ``on_demoted`` is called, at the end. The next term begins
                when it has returned.
            on_demoted: Called with the same at the end, also of a resignation; the reason of a loss is ``leadership.lost``.
                Unless it was lost, the lock is held until both callbacks have returned.
            on_error: Called with the exceptions of callbacks, and those of acquires and releases. By default they are
                logged. None of them ends the campaign.
            renew_every: As for :meth:`lock`.

        Raises:
            ValueError: A value is out of range, a callback is not callable, or one is a coroutine function; before any I/O.
        """
        return Leader(self._engine, self, name, timeout, renew_every, on_elected, on_demoted, on_error)
