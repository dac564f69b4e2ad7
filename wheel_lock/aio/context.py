"""Contexts for asyncio: the same locks on the same engine; a task waits where a thread would block.

Any number of event loops, in any number of threads, share one context. All state is that of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from wheel_lock.aio.call import TaskSide, run
from wheel_lock.aio.factory import TaskLocks
from wheel_lock.aio.lock import Lock, task_callback
from wheel_lock.aio.primitives import MultiLock
from wheel_lock.engine.engine import Engine
from wheel_lock.holder import Holder
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.locks import operations
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.bulk import Name
from wheel_lock.locks.context import BaseContext, close_later
from wheel_lock.options import lock_name, lock_options
from wheel_lock.runtime.interruptions import insist, uninterrupted_start


class TaskContext(TaskSide, BaseContext):
    """A context for tasks.

    Args:
        engine: The engine.
        context: The context for threads, whose finaliser retires the engine; kept for as long as this one.
    """

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


class AsyncContext(TaskLocks, TaskContext):
    """A :class:`wheel_lock.LockContext` for asyncio, ``context.asyncio``: the same names, engine and locks."""

    _engine: Engine

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
        return Lock(self._engine, lock_type, name, options, task_callback(on_lost), key, cancel_on_lost=cancel_on_lost)

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
        callback = task_callback(on_lost)
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
        callback = task_callback(on_lost)
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
        callback = task_callback(on_lost)
        return await run(
            operations.adopt_many(self, Lock, texts, callback, thread_local, cancel_on_lost=cancel_on_lost)
        )
