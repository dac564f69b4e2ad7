"""Redis locks, one or a million, every one of them kept alive from one thread.

    from wheel_lock import LockContext

    context = LockContext.from_url("redis://localhost:6379")

    with context.lock("order:42", timeout=30.0) as lock:  # renewed every 10 s for as long as the block runs
        lock.raise_if_lost()  # costs no round trip: call it as often as you like

    shards = context.acquire_many([f"shard:{n}" for n in range(1_000)])  # {name: lock or None}

``help(LockContext)`` has the other kinds of locks, ``context.asyncio`` is the same for tasks. Without a server:

>>> from wheel_lock.testing import fake_context
>>> with fake_context() as context, context.lock("order:42", timeout=30.0) as lock:
...     lock.is_held
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

from wheel_lock.context import LockContext
from wheel_lock.errors import (
    ContextClosed,
    HolderChanged,
    InvalidHandoff,
    LockAlreadyHeld,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockServerError,
    LocksLost,
    LocksNotAdopted,
    LockTimeout,
    LockUnavailable,
    LossReason,
    NoFenceTable,
    NotReplicated,
    StaleFence,
    TimerStopped,
    TooManyLocks,
    TooManyTimeouts,
    UpgradeRefused,
    WheelLockError,
    WrongThread,
)
from wheel_lock.holder import Holder
from wheel_lock.observe import ContextStats, Health, HeldLock, LostEvent, NodeHealth
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.runtime.timer import HashedWheelTimer, Timeout
from wheel_lock.sync.leader import Leader, Leadership
from wheel_lock.sync.lock import Lock, MultiLock, ReadLock, ReadWriteLock, ReentrantLock, Semaphore, WriteLock

__version__ = "0.1.0"

__all__ = [
    "ContextClosed",
    "ContextStats",
    "HashedWheelTimer",
    "Health",
    "HeldLock",
    "Holder",
    "HolderChanged",
    "InvalidHandoff",
    "Leader",
    "Leadership",
    "Lock",
    "LockAlreadyHeld",
    "LockContext",
    "LockLost",
    "LockNotAcquired",
    "LockNotHeld",
    "LockServerError",
    "LockTimeout",
    "LockUnavailable",
    "LocksLost",
    "LocksNotAdopted",
    "LossReason",
    "LostEvent",
    "MultiLock",
    "NoFenceTable",
    "NodeHealth",
    "NotReplicated",
    "QuorumContext",
    "ReadLock",
    "ReadWriteLock",
    "ReentrantLock",
    "Semaphore",
    "StaleFence",
    "Timeout",
    "TimerStopped",
    "TooManyLocks",
    "TooManyTimeouts",
    "UpgradeRefused",
    "WheelLockError",
    "WriteLock",
    "WrongThread",
]

# `import wheel_lock` alone makes these reachable; they are imported when they are first used.
if TYPE_CHECKING:
    from wheel_lock import asyncio as asyncio
    from wheel_lock import guards as guards
    from wheel_lock import observe as observe
    from wheel_lock import redis_lock as redis_lock
    from wheel_lock import testing as testing
else:
    _MODULES = frozenset({"asyncio", "guards", "observe", "redis_lock", "testing"})

    def __getattr__(name):
        """Return the module ``name`` of this package, imported now. Raises AttributeError if there is none for users."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")

    def __dir__():
        return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
