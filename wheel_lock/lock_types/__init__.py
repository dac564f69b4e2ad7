"""The lock types, a file a layout of keys: the commands of a type, and how their replies are parsed. No waiting, no I/O.

The engine is handed a lock type and asks it for commands; a lock type never calls the engine, a timer or a connection.
"""

from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import EVERLASTING, EXCLUSIVE, FENCED
from wheel_lock.lock_types.fair import FAIR, FENCED_FAIR
from wheel_lock.lock_types.reentrant import FENCED_REENTRANT, REENTRANT
from wheel_lock.lock_types.shared import FENCED_WRITE, READ, WRITE, Permit, semaphore

HANDED_OVER: dict[str, LockType] = {lock_type.name: lock_type for lock_type in (EXCLUSIVE, FENCED, FAIR, FENCED_FAIR)}
"""The lock types that can be exported and adopted, by name."""

__all__ = [
    "EVERLASTING", "EXCLUSIVE", "FAIR", "FENCED", "FENCED_FAIR", "FENCED_REENTRANT", "FENCED_WRITE", "HANDED_OVER",
    "READ", "REENTRANT", "WRITE", "Permit", "semaphore",
]  # fmt: skip
