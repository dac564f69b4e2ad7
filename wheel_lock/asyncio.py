"""The asyncio side of a context: :attr:`wheel_lock.LockContext.asyncio` and the lock objects that it makes."""

from wheel_lock.aio.context import AsyncContext
from wheel_lock.aio.lock import Lock
from wheel_lock.aio.primitives import MultiLock, ReadLock, ReadWriteLock, ReentrantLock, Semaphore, WriteLock

__all__ = ["AsyncContext", "Lock", "MultiLock", "ReadLock", "ReadWriteLock", "ReentrantLock", "Semaphore", "WriteLock"]
