"""The types of lock, a small file each: which commands a type sends and what the replies mean. No waiting, no I/O.

The engine is handed a type and asks it for calls; a type never calls the engine, a timer or a connection.
"""

from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import EVERLASTING, EXCLUSIVE, FENCED, Exclusive
from wheel_lock.lock_types.fair import FAIR, FENCED_FAIR
from wheel_lock.lock_types.read_write import FENCED_WRITE, READ, WRITE
from wheel_lock.lock_types.reentrant import FENCED_REENTRANT, REENTRANT
from wheel_lock.lock_types.semaphore import Permit, semaphore

HANDED_OVER: dict[str, LockType] = {lock_type.name: lock_type for lock_type in (EXCLUSIVE, FENCED, FAIR, FENCED_FAIR)}
"""The kinds that can be exported and adopted, by name."""

__all__ = [
    "EVERLASTING",
    "EXCLUSIVE",
    "FAIR",
    "FENCED",
    "FENCED_FAIR",
    "FENCED_REENTRANT",
    "FENCED_WRITE",
    "HANDED_OVER",
    "READ",
    "REENTRANT",
    "WRITE",
    "Exclusive",
    "Permit",
    "semaphore",
]
