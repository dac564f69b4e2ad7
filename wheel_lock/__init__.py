"""Very many Redis locks, all renewed from one thread.

>>> import wheel_lock
>>> wheel_lock.LossReason.KEY_GONE.value
'key gone'
"""

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
