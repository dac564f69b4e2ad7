"""The lock objects beyond the plain one, for asyncio. The counterpart of sync/primitives.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from wheel_lock.aio.call import TaskSide, current_task, current_task_itself, run
from wheel_lock.aio.lock import Lock
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Lease, Owner
from wheel_lock.locks import operations
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.reentrancy import BaseReadLock, BaseReadWriteLock, BaseReentrantLock, BaseWriteLock
from wheel_lock.locks.semaphore import BaseSemaphore
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

_WRONG_TASK = "another task holds it"


class ReentrantLock(BaseReentrantLock, Lock):
    """A lock that the task which holds it may acquire again. Made by ``context.asyncio.reentrant_lock``.

    It belongs to its task: no other may release it, and its renewal ends with that. (On Python 3.11 ``asyncio.wait_for``
    runs its argument in a task of its own: limit the time with ``blocking_timeout``.)
    """

    __slots__ = ()

    _wrong_owner = _WRONG_TASK
    _leave_releases = False

    def _caller(self) -> Owner:
        return current_task_itself()

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

    _wrong_owner = _WRONG_TASK

    def _caller(self) -> Owner:
        return current_task_itself()

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
