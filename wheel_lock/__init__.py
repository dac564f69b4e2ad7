"""Very many Redis locks, all renewed from one thread.

>>> import wheel_lock
>>> wheel_lock.LossReason.KEY_GONE.value
'key gone'
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
    NotReplicated,
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
from wheel_lock.sync.lock import Lock
from wheel_lock.sync.primitives import MultiLock, ReadLock, ReadWriteLock, ReentrantLock, Semaphore, WriteLock

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
    "NodeHealth",
    "NotReplicated",
    "QuorumContext",
    "ReadLock",
    "ReadWriteLock",
    "ReentrantLock",
    "Semaphore",
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
    from wheel_lock import observe as observe
    from wheel_lock import redis_lock as redis_lock
    from wheel_lock import testing as testing
else:
    _MODULES = frozenset({"asyncio", "observe", "redis_lock", "testing"})

    def __getattr__(name):
        """Return the module ``name`` of this package, imported now. Raises AttributeError if there is none for users."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")

    def __dir__():
        return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
