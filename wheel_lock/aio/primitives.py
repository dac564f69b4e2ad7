"""The locks beyond the plain one, for asyncio: what :mod:`wheel_lock.sync.primitives` has, with ``await``."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from wheel_lock.aio.call import TaskSide, current_task, current_task_itself, run
from wheel_lock.aio.lock import Lock, task_callback
from wheel_lock.engine.engine import Engine
from wheel_lock.errors import LockNotAcquired, WheelLockError
from wheel_lock.lease import Lease, Owner
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.locks import operations
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.multi import BaseMultiLock
from wheel_lock.locks.read_write import BaseReadLock, BaseReadWriteLock, BaseWriteLock
from wheel_lock.locks.reentrancy import BaseReentrantLock
from wheel_lock.locks.semaphore import BaseSemaphore
from wheel_lock.options import LockOptions
from wheel_lock.runtime.interruptions import uninterrupted_start

_OTHERS = "another task holds it"


class ReentrantLock(BaseReentrantLock, Lock):
    """A lock that the task which holds it may acquire again. Made by ``context.asyncio.reentrant_lock``.

    It belongs to its task: no other may release it, and it is renewed no more when that ends. (On Python 3.11
    ``asyncio.wait_for`` runs what it is given in a task of its own: limit the time with ``blocking_timeout``.)
    """

    __slots__ = ()

    def _caller(self) -> Owner:
        return current_task_itself()

    def _number(self) -> int:
        return id(current_task())

    def _caller_lease(self, verb: str) -> Lease | None:
        return self._own_lease_or_raise(verb, _OTHERS)

    def _own_or_latest(self) -> Lease | None:
        return self._own_lease() or self._latest_lease()

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock, once more where this task holds it already; see the method for threads."""
        if token is None and self._again():
            return True
        return await super().acquire(blocking, blocking_timeout, token)

    @uninterrupted_start
    async def release(self) -> bool:
        """Release the lock once; True where it is fully released, False where this task still holds it."""
        return await run(operations.release(self))

    @uninterrupted_start
    async def _leave(self, lease: Lease | None) -> None:
        await self.release()

    def _left_lost(self, lease: Lease) -> None:
        self._count_off(lease)

    def _let_go_left(self, lease: Lease | None) -> None:
        self._let_go(None)  # which is counted

    def _throw_away(self, lease: Lease) -> None:
        if self._count_off(lease):
            super()._throw_away(lease)


class ReadLock(BaseReadLock, ReentrantLock):
    """The half of a read-write lock that is shared. Made by :meth:`ReadWriteLock.read`."""

    __slots__ = ()


class WriteLock(BaseWriteLock, ReentrantLock):
    """The half of a read-write lock that is not. Made by :meth:`ReadWriteLock.write`."""

    __slots__ = ()

    @uninterrupted_start
    async def release(self) -> bool:
        """Release it once; where this task has acquired it for reading, too, it is held on for that, without a gap."""
        return await run(operations.release_writer(self))

    @uninterrupted_start
    async def _leave(self, lease: Lease | None) -> None:
        last = self._last
        if last is None or last.exclusive or not last.downgraded:  # else it has nothing to release any more
            await ReentrantLock._leave(self, lease)

    async def downgrade(self) -> ReadLock:
        """Hold it for reading instead, without a gap; see the method for threads."""
        return await run(operations.downgrade(self, ReadLock))


class ReadWriteLock(BaseReadWriteLock[ReadLock, WriteLock]):
    """A lock that any number of tasks hold for reading, or one for writing. Made by ``context.asyncio.rw_lock``."""

    __slots__ = ()

    _read_class = ReadLock
    _write_class = WriteLock


class Semaphore(BaseSemaphore, Lock):
    """A number of permits, of which each task holds one. Made by ``context.asyncio.semaphore``.

    A permit belongs to its task: no other may release it, and it ends with that. With ``thread_local=False`` any task may,
    and it outlives them all.
    """

    __slots__ = ()

    def _caller(self) -> Owner:
        return current_task_itself()

    def _caller_lease(self, verb: str) -> Lease | None:
        return self._own_lease_or_raise(verb, _OTHERS) if self._options.thread_local else self._own_or_latest()

    async def set_permits(self, permits: int | None) -> None:
        """Set how many permits there are, for all who use this name; see the method for threads."""
        await run(operations.ask(self, self._setting(permits)))


class MultiLock(TaskSide, BaseMultiLock[Lock]):
    """Several exclusive locks as one: all of them are held, or none. Made by ``context.asyncio.multi_lock``."""

    __slots__ = ()

    def __init__(
        self, engine: Engine, names: Iterable[str | bytes], options: LockOptions, on_lost: OnLost | None
    ) -> None:
        super().__init__(
            engine, names, options, lambda name: Lock(engine, EXCLUSIVE, name, options, task_callback(on_lost))
        )

    async def acquire(self, blocking: bool | None = None, blocking_timeout: float | None = None) -> bool:
        """Acquire all of them, or none. Nothing is held while it waits; a task that is cancelled leaves nothing."""
        return await run(operations.acquire(self, blocking, blocking_timeout))

    @uninterrupted_start
    async def release(self) -> None:
        """Release all of them; see the method for threads."""
        await run(operations.release_all(self, self._to_release, self._let_go))

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise LockNotAcquired(self._not_acquired())
        return self

    @uninterrupted_start
    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is GeneratorExit:
            # A coroutine that is thrown away in the middle may not await any more.
            leases, _, _ = self._to_release()
            self._let_go(leases)
            return
        try:
            await self.release()
        except WheelLockError as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"and the locks could not be released: {error}")  # the first error is the one to see
