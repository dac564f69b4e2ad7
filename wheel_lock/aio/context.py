"""The face for asyncio: the same locks on the same engine and the same thread; a task waits where a thread would block.

Any number of event loops, in any number of threads, share one context. Nothing here keeps a second account of
anything: a face only waits for completions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from wheel_lock.aio import call as aio_call
from wheel_lock.aio.call import Awaiting, wait_for
from wheel_lock.aio.factory import TaskLocks
from wheel_lock.aio.lock import Lock, task_callback
from wheel_lock.aio.primitives import MultiLock, ReadLock, ReadWriteLock, ReentrantLock, Semaphore, WriteLock
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.errors import WheelLockError
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.bulk import ManyLocks, Name, leases_to_release, let_go_of, raise_if_any, read_all
from wheel_lock.locks.context import Face, close_later
from wheel_lock.locks.handoff import adopted_options, handed_over_kind
from wheel_lock.options import LockTerms, lock_name, lock_options
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

__all__ = ["AsyncContext", "Lock", "MultiLock", "ReadLock", "ReadWriteLock", "ReentrantLock", "Semaphore", "WriteLock"]


class TaskFace(Face):
    """The side that tasks see.

    Args:
        engine: The engine.
        context: The side that threads see, which hangs up when nobody has it any more.
    """

    def __init__(self, engine: LockEngine, context: object = None) -> None:
        self._engine = engine
        self._context = context

    async def close(self, timeout: float | None = None) -> None:
        """Close the context, for threads too; see :meth:`wheel_lock.LockContext.close`."""
        limit_s = self._closing_time_s(timeout)
        if limit_s is not None:
            await aio_call.wait_for(self._engine, partial(self._engine.close, limit_s))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not GeneratorExit:
            await self.close()
            return
        close_later(self._engine)  # a coroutine that is thrown away in the middle may not await any more


class AsyncContext(TaskLocks, TaskFace):
    """A :class:`wheel_lock.LockContext` as asyncio sees it: ``context.asyncio``. Same names, same engine, same locks."""

    _engine: Engine

    def lock(
        self,
        name: str | bytes,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[LockTerms],
    ) -> Lock:
        """Return an exclusive lock, not yet acquired; see :meth:`wheel_lock.LockContext.lock`.

        Args:
            name: Its name.
            timeout: Its time-to-live in seconds.
            on_lost: Called once with a :class:`~wheel_lock.LostEvent`, on the event loop, if it is lost.
            cancel_on_lost: Whether the task inside ``async with`` is cancelled if it is lost; ``LockLost`` is then
                raised where the block ends.
            terms: As for threads; with ``thread_local`` (the default) a lease ends with its event loop.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = lock_options(timeout, **terms)
        kind = FENCED if options.fencing else EXCLUSIVE
        return Lock(self._engine, kind, name, options, task_callback(on_lost), cancel_on_lost=cancel_on_lost)

    async def acquire_many(
        self,
        names: Iterable[Name],
        timeout: float = 30.0,
        *,
        all_or_nothing: bool = False,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
        thread_local: bool = False,
    ) -> dict[Name, Lock | None]:
        """Try once to acquire each of ``names``; see :meth:`wheel_lock.LockContext.acquire_many`."""
        options = lock_options(
            timeout,
            blocking=False,
            renew=renew,
            renew_every=renew_every,
            max_renewals=max_renewals,
            max_hold=max_hold,
            thread_local=thread_local,
        )
        callback = task_callback(on_lost)

        def new_lock(name: Name) -> Lock:
            return Lock(self._engine, EXCLUSIVE, name, options, callback)

        awaiting: Awaiting[None] = Awaiting(self._engine)
        many = ManyLocks(self._engine, names, options, new_lock, all_or_nothing, awaiting, blocking_timeout)
        awaiting.undeliverable = many.give_up
        try:
            for _ in many.hand_over():
                await asyncio.sleep(0)  # other tasks want their turn, too
            await awaiting
            return many.outcome()
        except BaseException:
            many.give_up()
            raise

    @uninterrupted_start
    async def release_many(self, locks: Iterable[Lock | None]) -> None:
        """Release ``locks``; see :meth:`wheel_lock.LockContext.release_many`."""
        leases, released = None, None
        given: list[Any] = []
        try:
            leases, lost = leases_to_release(read_all(locks, given))
            if leases:
                released = wait_for(self._engine, partial(self._engine.release_many, leases))
        except (WheelLockError, TypeError):
            raise
        except BaseException:
            insist(lambda known: let_go_of(self._engine, locks, given, known), leases)
            raise
        if released is not None:
            lost.update(await released)
        raise_if_any(lost, self._engine)

    async def adopt(
        self,
        text: str,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = True,
    ) -> Lock:
        """Take over a lock that somebody has exported; see :meth:`wheel_lock.LockContext.adopt`."""
        handoff = Handoff.from_text(text)
        kind, options = handed_over_kind(handoff), adopted_options(handoff, thread_local)
        callback = task_callback(on_lost)
        lock = Lock(self._engine, kind, handoff.name, options, callback, cancel_on_lost=cancel_on_lost)
        await lock._adopt(handoff)
        return lock
