"""The public names for asyncio: the class of :attr:`wheel_lock.LockContext.asyncio`, and those of its locks."""

from wheel_lock.aio.context import AsyncContext
from wheel_lock.aio.leader import Leader, Leadership
from wheel_lock.aio.lock import Lock, MultiLock, ReadLock, ReadWriteLock, ReentrantLock, Semaphore, WriteLock

__all__ = [
    "AsyncContext",
    "Leader",
    "Leadership",
    "Lock",
    "MultiLock",
    "ReadLock",
    "ReadWriteLock",
    "ReentrantLock",
    "Semaphore",
    "WriteLock",
]
