"""The lock objects for tasks: their methods submit work to the engine, and await it. The counterpart of sync/lock.py."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import FrameType, TracebackType, coroutine
from typing import ClassVar, Self

from wheel_lock.aio.call import (
    TaskOwner,
    TaskSide,
    Untaken,
    current_owner,
    current_task,
    current_task_itself,
    loop_bridge,
    run,
)
from wheel_lock.aio.cancellation import EnteredBlock, left
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.loss_events import LoopCallback
from wheel_lock.errors import WheelLockError, quoted
from wheel_lock.holder import Holder
from wheel_lock.lease import EXTENDING, Lease, Owner
from wheel_lock.lock_types.base import LockType
from wheel_lock.locks import operations
from wheel_lock.locks.base import BaseLock, OnLost
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.reentrancy import BaseReadLock, BaseReadWriteLock, BaseReentrantLock, BaseWriteLock
from wheel_lock.locks.semaphore import BaseSemaphore
from wheel_lock.observe.events import LostEvent
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.options import LockOptions
from wheel_lock.runtime.interruptions import insist, uninterrupted_start
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

# Marked as awaitable, which changes nothing else, instead of being awaited through run(): each pair passes here.
_acquire: Callable[..., Awaitable[bool]] = coroutine(operations.acquire)
_release: Callable[..., Awaitable[bool]] = coroutine(operations.release)


class Lock(TaskSide, BaseLock):
    """One lock, for asyncio. Made by ``context.asyncio.lock``; an asynchronous context manager.

    It is :class:`wheel_lock.Lock` with ``await``. The task that acquires it holds it. Tasks that share one object contend
    as with objects of their own, and any task may release what another has acquired. A lease ends with the event loop in
    which it was acquired, unless ``thread_local=False``.
    """

    __slots__ = ("_blocks", "_cancel_on_lost")

    _leave_releases: ClassVar[bool] = True
    """Whether the end of a block releases by itself, and not by ``release()``."""

    def __init__(
        self,
        engine: Engine,
        lock_type: LockType,
        name: str | bytes,
        options: LockOptions,
        on_lost: OnLost | None,
        key: bytes | None = None,
        *,
        cancel_on_lost: bool = False,
    ) -> None:
        BaseLock.__init__(self, engine, lock_type, name, options, on_lost, key)  # not super(), which costs a call
        self._cancel_on_lost = cancel_on_lost
        self._blocks: list[EnteredBlock] | None = None  # made late: most locks in bulk never enter a block

    _caller = staticmethod(current_owner)

    def _new_owner(self) -> Owner:
        if self._options.thread_local:
            return self._caller()
        task = asyncio.current_task() if self._cancel_on_lost else None
        return loop_bridge().untaken if task is None else Untaken(task.get_loop(), TaskOwner(task, outlived=True))

    def _take(self, lease: Lease) -> None:
        lease.owner = lease.owner.heir
        super()._take(lease)

    def _loss_callback(self) -> OnLost | None:
        if self._on_lost is None:
            return None
        return LoopCallback(_call_in_loop, weakref.ref(asyncio.get_running_loop()), self._on_lost)

    async def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: str | bytes | None = None
    ) -> bool:
        """Acquire the lock; see :meth:`wheel_lock.Lock.acquire`. A task that is cancelled meanwhile leaves no grant."""
        return await _acquire(self, blocking, blocking_timeout, token)

    @uninterrupted_start
    async def release(self) -> bool:
        """Release the lock; see :meth:`wheel_lock.Lock.release`. A cancelled task's release is carried out nevertheless."""
        return await _release(self)

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Change the time-to-live once; see :meth:`wheel_lock.Lock.extend`."""
        return await run(operations.extend(self, additional_time, replace_ttl))

    async def reacquire(self) -> bool:
        """Set the time-to-live back to the timeout, now; see :meth:`extend`."""
        return await self.extend(self._options.timeout_s, replace_ttl=True)

    async def export(self) -> str:
        """Give up the lock so that it can be adopted; see :meth:`wheel_lock.Lock.export`. Cancellation releases it."""
        return await run(operations.export(self))

    async def locked(self) -> bool:
        """Query the server; return True if the lock is held by any owner."""
        return await run(operations.locked(self))

    async def owned(self) -> bool:
        """Query the server; return True if this lock's own token is stored there."""
        return await run(operations.owned(self))

    async def holder(self) -> Holder | None:
        """Query the server; return the holder of this lock's name, or None; see :meth:`wheel_lock.Lock.holder`."""
        return await run(operations.holder(self))

    async def holders(self) -> tuple[Holder, ...]:
        """Query the server; return all holders; see :meth:`wheel_lock.Lock.holders`."""
        return await run(operations.holders(self))

    async def __aenter__(self) -> Self:
        if not (self._enters_adopted() or await self.acquire()):
            raise await run(operations.not_acquired(self))
        try:
            self._enter()
            return self
        except WheelLockError:
            raise
        except BaseException:
            insist(self._let_go, None)
            raise

    def _enter(self) -> None:
        lease = self._own_or_latest()  # the latest may be that of a task of another loop, in another thread
        assert lease is not None
        block = EnteredBlock(lease, sys._getframe(1).f_back)
        if self._cancel_on_lost and isinstance(lease.owner, TaskOwner) and lease not in lease.owner.alarms:
            block.guard(lease.owner)
            if lease.state > EXTENDING:  # lost between the grant and this line
                block.end(None)
                self._count_off(lease)
                raise self._lost(lease)
        if self._blocks is None:
            self._blocks = []
        for over in [block for block in self._blocks if block.over]:
            self._blocks.remove(over)
        self._blocks.append(block)
        if isinstance(lease.owner, TaskOwner):
            lease.owner.in_blocks[lease] = None

    @uninterrupted_start
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease = None
        try:
            discarded = exc_type is GeneratorExit
            lease, block = self._left(sys._getframe().f_back, discarded=discarded)
            self._end_block(block)
            if block is not None and block.end(exc_type):
                self._count_off(block.lease)
                raise self._lost(block.lease) from exc_value
            if discarded:
                # A coroutine that is closed in the middle may not await, so the release is not awaited.
                if lease is not None and self._count_off(lease):
                    self._engine.release_unawaited(partial(self._engine.release, lease))
                return
        except WheelLockError:
            raise
        except BaseException:
            insist(self._let_go_left, lease)
            raise
        try:
            # The lease of the block: another task may have acquired the lock through this object since.
            await self._leave(lease)
        except WheelLockError as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"and the lock could not be released: {error}")  # the first error is the one to see

    def _left(self, frame: FrameType | None, *, discarded: bool) -> tuple[Lease | None, EnteredBlock | None]:
        """Return the lease with which the current task leaves a block in ``frame``, or None, and the block, or None."""
        mine = self._own_lease() if self._options.thread_local else None
        by_hand = mine is not None and self._is_valid(mine)
        block = left(self._blocks or [], frame, discarded=discarded, by_hand=by_hand)
        if block is None:
            return mine or self._own_or_latest(), None
        of_another = block.entered_by(frame) and block.task is not current_task()  # the task may be in one of its own
        return block.lease if of_another else mine or block.lease, block

    def _end_block(self, block: EnteredBlock | None) -> None:
        if block is not None and self._blocks is not None:
            self._blocks.remove(block)
            if isinstance(block.lease.owner, TaskOwner):
                block.lease.owner.in_blocks.pop(block.lease, None)

    def _let_go_left(self, lease: Lease | None) -> None:
        """Release after an interruption at the end of a block. ``lease`` is None if it was not determined yet."""
        if lease is None:
            lease, _ = self._left(None, discarded=False)
        if lease is not None:
            self._let_go(lease)

    @uninterrupted_start
    async def _leave(self, lease: Lease | None) -> None:
        """Release the lease with which a block was entered."""
        await _release(self, lease, left=True)


class ReentrantLock(BaseReentrantLock, Lock):
    """A lock that the task which holds it may acquire again. Made by ``context.asyncio.reentrant_lock``.

    It belongs to its task: no other may release it, and its renewal ends with that. (On Python 3.11 ``asyncio.wait_for``
    runs its argument in a task of its own: limit the time with ``blocking_timeout``.)
    """

    __slots__ = ()

    _wrong_owner = "another task holds it"
    _leave_releases = False

    _caller = staticmethod(current_task_itself)

    def _number(self) -> int:
        return id(current_task())

    async def acquire(
        self, blocking: bool | None = None, blocking_timeout: float | None = None, token: str | bytes | None = None
    ) -> bool:
        """Acquire the lock, once more if this task holds it; see :meth:`wheel_lock.ReentrantLock.acquire`."""
        if token is None and self._acquire_again():
            return True
        return await super().acquire(blocking, blocking_timeout, token)

    @uninterrupted_start
    async def _leave(self, lease: Lease | None) -> None:
        await self.release()

    def _let_go_left(self, lease: Lease | None) -> None:
        self._let_go(None)  # with None the release is counted


class ReadLock(BaseReadLock, ReentrantLock):
    """The half of a read-write lock for readers. Made by :meth:`ReadWriteLock.read`."""

    __slots__ = ()


class WriteLock(BaseWriteLock, ReentrantLock):
    """The half of a read-write lock for a writer. Made by :meth:`ReadWriteLock.write`."""

    __slots__ = ()

    @uninterrupted_start
    async def release(self) -> bool:
        """Release it once; see :meth:`wheel_lock.WriteLock.release`."""
        return await run(operations.release_writer(self))

    @uninterrupted_start
    async def _leave(self, lease: Lease | None) -> None:
        if self._released_by_block():
            await ReentrantLock._leave(self, lease)

    async def downgrade(self) -> ReadLock:
        """Hold it for reading instead, without a gap; see :meth:`wheel_lock.WriteLock.downgrade`."""
        return await run(operations.downgrade(self, ReadLock))


class ReadWriteLock(BaseReadWriteLock[ReadLock, WriteLock]):
    """A lock that any number of tasks hold for reading, or one for writing. Made by ``context.asyncio.rw_lock``."""

    __slots__ = ()

    _read_class = ReadLock
    _write_class = WriteLock


class Semaphore(BaseSemaphore, Lock):
    """A number of permits, of which each task holds one. Made by ``context.asyncio.semaphore``.

    A permit belongs to its task: no other may release it, and it ends with that. With ``thread_local=False`` any task may
    release it, and it outlives them all.
    """

    __slots__ = ()

    _wrong_owner = "another task holds it"

    _caller = staticmethod(current_task_itself)

    async def set_permits(self, permits: int | None) -> None:
        """Set the number of permits; see :meth:`wheel_lock.Semaphore.set_permits`."""
        await run(operations.ask(self, self._setting(permits)))


class MultiLock(TaskSide, BaseMultiLock[Lock]):
    """Several exclusive locks as one: all of them are held, or none. Made by ``context.asyncio.multi_lock``."""

    __slots__ = ()

    _lock_class = Lock
    _leave_releases: ClassVar[bool] = True
    """As of a lock: the end of a block releases by itself."""

    async def acquire(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Acquire all of them, or none; see :meth:`wheel_lock.MultiLock.acquire`. Cancellation leaves no grant."""
        return await run(operations.acquire(self, blocking, blocking_timeout))

    @uninterrupted_start
    async def release(self) -> None:
        """Release all of them; see :meth:`wheel_lock.MultiLock.release`."""
        await run(operations.release_all(self, self._to_release, self._let_go))

    @uninterrupted_start
    async def _leave(self, leases: Sequence[Lease | None]) -> None:
        """Release the leases with which a block was entered, in the order of the locks."""
        # No call before that, behind which an interruption would leave them held.
        await run(operations.release_all(self, lambda: self._to_release(leases), lambda _: self._let_go(leases)))

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise await run(operations.not_acquired(self))
        try:
            for lock in self.locks.values():
                lock._enter()
            return self
        except BaseException:
            insist(self._let_go, None)
            raise

    @uninterrupted_start
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leases = None
        try:
            frame, discarded = sys._getframe().f_back, exc_type is GeneratorExit
            left = [lock._left(frame, discarded=discarded) for lock in self.locks.values()]
            leases = [lease for lease, _ in left]
            for lock, (_, block) in zip(self.locks.values(), left, strict=True):
                lock._end_block(block)
            if discarded:
                self._let_go(leases)  # a coroutine that is closed in the middle may not await
                return
        except BaseException:
            insist(self._let_go, leases)
            raise
        try:
            await self._leave(leases)
        except WheelLockError as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"and the locks could not be released: {error}")  # the first error is the one to see


def _call_in_loop(loop: weakref.ref[asyncio.AbstractEventLoop], on_lost: OnLost, event: LostEvent) -> None:
    """Have ``on_lost`` called on the event loop. On the notifier thread."""
    try:
        running = loop()
        if running is None:
            raise RuntimeError
        running.call_soon_threadsafe(_call, on_lost, event)
    except RuntimeError:
        text = "the event loop that was to be notified of the loss of %s is closed"
        fields = log_fields("loop_closed", names=[event.name])
        NOTIFIER.post(partial(logger.warning, text, quoted(event.name), extra=fields))


_running: set[asyncio.Task[object]] = set()  # an event loop keeps only weak references to its tasks


def _call(on_lost: OnLost, event: LostEvent) -> None:
    """Call ``on_lost``, and run a coroutine that it returns in a task. On the event loop, whose handler gets exceptions."""
    result = on_lost(event)
    if inspect.iscoroutine(result):
        task = asyncio.get_running_loop().create_task(result, name=f"on_lost of {event.name!r:.80}")
        _running.add(task)
        task.add_done_callback(_called)


def _called(task: asyncio.Task[object]) -> None:
    _running.discard(task)
    error = None if task.cancelled() else task.exception()
    if error is not None:
        about = {"message": f"Exception in {task.get_name()}", "exception": error, "task": task}
        task.get_loop().call_exception_handler(about)
