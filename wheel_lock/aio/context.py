"""Contexts for asyncio: the same locks on the same engine; a task waits where a thread would block.

Any number of event loops, in any number of threads, share one context. All state is that of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypedDict, Unpack

from wheel_lock.aio.call import TaskSide, run
from wheel_lock.aio.leader import Leader, Leadership
from wheel_lock.aio.lock import Lock, MultiLock, ReadWriteLock, ReentrantLock, Semaphore
from wheel_lock.engine.engine import Engine
from wheel_lock.holder import Holder
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.locks import operations
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.bulk import Name
from wheel_lock.locks.context import (
    FAIR_TYPES,
    REENTRANT_TYPES,
    BaseContext,
    FencedTerms,
    LockTerms,
    OwnedTerms,
    checked_callback,
    close_later,
    permit_types,
    spelled_out,
)
from wheel_lock.options import lock_name, lock_options
from wheel_lock.runtime.interruptions import insist, uninterrupted_start


class _CancelTerms(TypedDict, total=False):
    cancel_on_lost: bool


class TaskFencedTerms(FencedTerms, _CancelTerms, total=False):
    """The terms of a reentrant lock for tasks; :meth:`AsyncContext.lock` documents ``cancel_on_lost``."""


class TaskOwnedTerms(OwnedTerms, _CancelTerms, total=False):
    """The terms of a semaphore for tasks."""


class TaskLockTerms(LockTerms, _CancelTerms, total=False):
    """All terms of a lock for tasks."""


class TaskContext(TaskSide, BaseContext):
    """A context for tasks.

    Args:
        engine: The engine.
        context: The context for threads, whose finaliser retires the engine; kept for as long as this one.
    """

    _takes_coroutines = True

    def __init__(self, engine: Engine, context: object = None) -> None:
        self._engine = engine
        self._context = context

    async def close(self, timeout: float | None = None) -> None:
        """Close the context, for threads too; see :meth:`wheel_lock.LockContext.close`."""
        await run(self._close(timeout))

    async def __aenter__(self) -> Self:
        return self

    @uninterrupted_start
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if exc_type is not GeneratorExit:  # a coroutine that is closed in the middle may not await
                await self.close()
        finally:
            insist(close_later, self._engine)


class AsyncContext(TaskContext):
    """A :class:`wheel_lock.LockContext` for asyncio, ``context.asyncio``: the same names, engine and locks."""

    def __repr__(self) -> str:
        return f"<AsyncContext of {self._context!r}>"

    def lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = True,
    ) -> Lock:
        """Return an exclusive lock, not yet acquired.

        The other parameters are those of :meth:`wheel_lock.LockContext.lock`. With ``thread_local`` (the default) a lease
        ends with its event loop.

        Args:
            on_lost: Called once with a :class:`~wheel_lock.LostEvent`, on the event loop, if it is lost.
            cancel_on_lost: True to cancel the task inside ``async with`` if it is lost; the end of the block then raises
                ``LockLost``.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        context = self._engine.options
        key = lock_name(name, context.prefix)
        # As in the method for threads.
        plain = blocking is True and renew is True and fencing is False and thread_local is True
        if blocking_timeout is None:
            blocking_timeout = context.blocking_timeout_s
        if plain and blocking_timeout is renew_every is max_renewals is max_hold is retry_every is max_attempts is None:
            options = lock_options(context.timeout_s if timeout is None else timeout)
        else:
            options = context.of_lock(timeout, locals())
        lock_type = FENCED if fencing else EXCLUSIVE
        callback = checked_callback(on_lost, awaited=True)
        return Lock(self._engine, lock_type, name, options, callback, key, cancel_on_lost=cancel_on_lost)

    @spelled_out(TaskFencedTerms)
    def reentrant_lock(
        self, name: str | bytes, timeout: float | None = None, **terms: Unpack[TaskFencedTerms]
    ) -> ReentrantLock:
        """Return a lock that the task which holds it may acquire again; see :meth:`LockContext.reentrant_lock`.

        ``cancel_on_lost`` is that of :meth:`AsyncContext.lock`. The lock always belongs to the task that acquires it.
        """
        return self._new(ReentrantLock, REENTRANT_TYPES, name, timeout, terms)

    @spelled_out(FencedTerms)
    def rw_lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[FencedTerms]) -> ReadWriteLock:
        """Return a read-write lock; see :meth:`LockContext.rw_lock`. It always belongs to the task that acquires it."""
        return ReadWriteLock(self._engine, name, *self._checked(timeout, terms, name))

    @spelled_out(TaskLockTerms)
    def fair_lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[TaskLockTerms]) -> Lock:
        """Return an exclusive lock that is granted in the order of arrival; see :meth:`LockContext.fair_lock`."""
        return self._new(Lock, FAIR_TYPES, name, timeout, terms)

    @spelled_out(TaskOwnedTerms)
    def semaphore(
        self, name: str | bytes, permits: int, timeout: float | None = None, **terms: Unpack[TaskOwnedTerms]
    ) -> Semaphore:
        """Return a semaphore, of which each task holds a permit of its own; see :meth:`LockContext.semaphore`."""
        return self._new(Semaphore, permit_types(permits), name, timeout, terms)

    @spelled_out(OwnedTerms)
    def multi_lock(
        self, names: Iterable[str | bytes], timeout: float | None = None, **terms: Unpack[OwnedTerms]
    ) -> MultiLock:
        """Return several exclusive locks as one; see :meth:`LockContext.multi_lock`."""
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
        """Return a candidate for the leadership of ``name``, not yet started; see :meth:`wheel_lock.LockContext.leader`.

        ``on_elected`` and ``on_demoted`` may be coroutine functions. ``on_elected`` is cancelled when the term ends.
        """
        return Leader(self._engine, self, name, timeout, renew_every, on_elected, on_demoted, on_error)

    async def acquire_many(
        self,
        names: Iterable[Name],
        timeout: float | None = None,
        *,
        all_or_nothing: bool = False,
        blocking: bool = False,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
        thread_local: bool = False,
    ) -> dict[Name, Lock | None]:
        """Acquire each of ``names``; see :meth:`wheel_lock.LockContext.acquire_many`."""
        # The locks do not wait, though the call may; the limit is that of the call.
        options = self._engine.options.of_lock(timeout, {**locals(), "blocking": False, "blocking_timeout": None})
        callback = checked_callback(on_lost, awaited=True)
        return await run(
            operations.acquire_many(
                self, MultiLock, names, options, callback, all_or_nothing, blocking, blocking_timeout
            )
        )

    @uninterrupted_start
    async def release_many(self, locks: Iterable[Lock | None]) -> None:
        """Release ``locks``; see :meth:`wheel_lock.LockContext.release_many`."""
        await run(operations.release_many(self, locks))

    async def adopt(
        self, text: str, *, on_lost: OnLost | None = None, cancel_on_lost: bool = False, thread_local: bool = True
    ) -> Lock:
        """Take over an exported lock; see :meth:`wheel_lock.LockContext.adopt`."""
        callback = checked_callback(on_lost, awaited=True)
        return await run(operations.adopt(self, Lock, text, callback, thread_local, cancel_on_lost=cancel_on_lost))

    async def force_release(self, name: str | bytes, *, foreign: bool = False) -> tuple[Holder, ...]:
        """Release a lock of any kind for its holders; see :meth:`wheel_lock.LockContext.force_release`."""
        return await run(operations.force_release(self, name, bool(foreign)))

    async def export_many(self, locks: Iterable[Lock | None]) -> dict[str | bytes, str | None]:
        """Give up many locks so that they can be adopted; see :meth:`wheel_lock.LockContext.export_many`.

        Cancellation releases them.
        """
        return await run(operations.export_many(self, locks))

    async def adopt_many(
        self,
        texts: Iterable[str | None],
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = False,
    ) -> dict[str | bytes, Lock | None]:
        """Take over many exported locks; see :meth:`wheel_lock.LockContext.adopt_many`."""
        callback = checked_callback(on_lost, awaited=True)
        return await run(
            operations.adopt_many(self, Lock, texts, callback, thread_local, cancel_on_lost=cancel_on_lost)
        )
