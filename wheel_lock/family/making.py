"""The methods of a context that make locks beyond the plain one; each is there once for threads and once for asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Unpack

from wheel_lock.engine.engine import Engine
from wheel_lock.family import asyncio, threads
from wheel_lock.handle import OnLost, checked_callback
from wheel_lock.locks import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT, Permit, semaphore
from wheel_lock.options import LockOptions, LockTerms, OwnedTerms, SharedTerms, count, lock_name, lock_options
from wheel_lock.task_lock import Lock as TaskLock
from wheel_lock.task_lock import task_callback
from wheel_lock.threads import Lock as ThreadLock


class ThreadLocks:
    """Makes locks for threads."""

    _engine: Engine

    def reentrant_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[OwnedTerms]
    ) -> threads.ReentrantLock:
        """Return a lock that the thread which holds it may acquire again, not yet acquired.

        On the server it is what Redisson's RLock is, so services in Java and in Python exclude each other on one name.

        Args:
            name, timeout, on_lost, terms: As for :meth:`lock`. It always belongs to the thread that acquires it.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = _options("reentrant_lock", OwnedTerms, timeout, dict(terms))
        kind = FENCED_REENTRANT if options.fencing else REENTRANT
        return threads.ReentrantLock(self._engine, kind, name, options, checked_callback(on_lost))

    def rw_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[OwnedTerms]
    ) -> threads.ReadWriteLock:
        """Return a read-write lock: ``.read()`` and ``.write()`` are its two halves, not yet acquired.

        Any number of readers hold it together, or one writer alone. Both halves can be acquired again by the thread that
        holds them; who writes may acquire it for reading, too, and goes on reading when it has released it for writing
        (or with ``downgrade()``); who reads must not acquire it for writing.

        Args:
            name, timeout, on_lost, terms: As for :meth:`lock`; a fence is drawn by writers only. It always belongs to the
                thread that acquires it.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = _options("rw_lock", OwnedTerms, timeout, dict(terms))
        return threads.ReadWriteLock(self._engine, name, options, checked_callback(on_lost))

    def fair_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[LockTerms]
    ) -> ThreadLock:
        """Return an exclusive lock that is granted in the order of arrival, across processes; not yet acquired.

        A waiter that has died is skipped when it has not been heard of for ``fallback_interval`` (or the timeout, if
        that is shorter) by the server's clock. One whose process stood still for longer loses its place.

        Args:
            name, timeout, on_lost, terms: As for :meth:`lock`.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = _options("fair_lock", LockTerms, timeout, dict(terms))
        kind = FENCED_FAIR if options.fencing else FAIR
        return ThreadLock(self._engine, kind, name, options, checked_callback(on_lost))

    def semaphore(
        self,
        name: str | bytes,
        permits: int,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        **terms: Unpack[SharedTerms],
    ) -> threads.Semaphore:
        """Return a semaphore: at most ``permits`` hold it at once, each with a lease of its own that is renewed.

        One object holds one permit per thread; another object, or another thread, holds another one. Only the thread that
        acquired a permit may release it, unless ``thread_local=False``: then there is one for all threads, and any may.

        Args:
            name: Its name.
            permits: How many permits there are, unless somebody has set another number with ``set_permits``.
            timeout, on_lost, terms: As for :meth:`lock`; there are no fences.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        kind, options = _semaphore(name, permits, timeout, dict(terms))
        return threads.Semaphore(self._engine, kind, name, options, checked_callback(on_lost))

    def multi_lock(
        self,
        names: Iterable[str | bytes],
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        **terms: Unpack[SharedTerms],
    ) -> threads.MultiLock:
        """Return several exclusive locks as one: all of them are acquired at once, or none is.

        Nothing is held while it waits, so overlapping sets cannot wait for each other for ever. Each lock is an ordinary
        one with a lease of its own, and excludes ``lock(name)``.

        Args:
            names: Their names, at least one; one that is given twice counts once.
            timeout, terms: As for :meth:`lock`; there are no fences.
            on_lost: Called once for each of them that is lost.

        Raises:
            ValueError: A name or a value is out of range; before any I/O.
        """
        options = _options("multi_lock", SharedTerms, timeout, dict(terms))
        return threads.MultiLock(self._engine, names, options, checked_callback(on_lost))


class TaskLocks:
    """Makes locks for tasks."""

    _engine: Engine

    def reentrant_lock(
        self,
        name: str | bytes,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[OwnedTerms],
    ) -> asyncio.ReentrantLock:
        """Return a lock that the task which holds it may acquire again; see :meth:`LockContext.reentrant_lock`.

        Args:
            name, timeout, on_lost, terms: As there. It always belongs to the task that acquires it.
            cancel_on_lost: As for :meth:`AsyncContext.lock`.
        """
        lock_name(name)
        options = _options("reentrant_lock", OwnedTerms, timeout, dict(terms))
        kind = FENCED_REENTRANT if options.fencing else REENTRANT
        callback = task_callback(on_lost)
        return asyncio.ReentrantLock(self._engine, kind, name, options, callback, cancel_on_lost=cancel_on_lost)

    def rw_lock(
        self, name: str | bytes, timeout: float = 30.0, *, on_lost: OnLost | None = None, **terms: Unpack[OwnedTerms]
    ) -> asyncio.ReadWriteLock:
        """Return a read-write lock; see :meth:`LockContext.rw_lock`. It always belongs to the task that acquires it."""
        lock_name(name)
        options = _options("rw_lock", OwnedTerms, timeout, dict(terms))
        return asyncio.ReadWriteLock(self._engine, name, options, task_callback(on_lost))

    def fair_lock(
        self,
        name: str | bytes,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[LockTerms],
    ) -> TaskLock:
        """Return an exclusive lock that is granted in the order of arrival; see :meth:`LockContext.fair_lock`."""
        lock_name(name)
        options = _options("fair_lock", LockTerms, timeout, dict(terms))
        kind = FENCED_FAIR if options.fencing else FAIR
        callback = task_callback(on_lost)
        return TaskLock(self._engine, kind, name, options, callback, cancel_on_lost=cancel_on_lost)

    def semaphore(
        self,
        name: str | bytes,
        permits: int,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[SharedTerms],
    ) -> asyncio.Semaphore:
        """Return a semaphore, of which each task holds a permit of its own; see :meth:`LockContext.semaphore`.

        Only the task that acquired a permit may release it, unless ``thread_local=False``.
        """
        kind, options = _semaphore(name, permits, timeout, dict(terms))
        callback = task_callback(on_lost)
        return asyncio.Semaphore(self._engine, kind, name, options, callback, cancel_on_lost=cancel_on_lost)

    def multi_lock(
        self,
        names: Iterable[str | bytes],
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        **terms: Unpack[SharedTerms],
    ) -> asyncio.MultiLock:
        """Return several exclusive locks as one; see :meth:`LockContext.multi_lock`."""
        options = _options("multi_lock", SharedTerms, timeout, dict(terms))
        return asyncio.MultiLock(self._engine, names, options, task_callback(on_lost))


def _options(maker: str, allowed: type, timeout: float, terms: dict[str, object]) -> LockOptions:
    """Return the options, or raise TypeError where one does not fit this kind of lock, as Python itself would."""
    known: frozenset[str] = getattr(allowed, "__optional_keys__")  # noqa: B009  # mypy does not know it
    for name in terms:
        if name not in known:
            raise TypeError(f"{maker}() got an unexpected keyword argument {name!r}")
    return lock_options(timeout, **terms)


def _semaphore(name: str | bytes, permits: int, timeout: float, terms: dict[str, object]) -> tuple[Permit, LockOptions]:
    lock_name(name)
    kind = semaphore(count("permits", permits, least=1))
    return kind, _options("semaphore", SharedTerms, timeout, terms)
