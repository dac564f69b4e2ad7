"""The kinds of lock, a small file each: which scripts, and what a reply means. No waiting, no I/O."""

from wheel_lock.engine.kind import Kind
from wheel_lock.locks.exclusive import EVERLASTING, EXCLUSIVE, FENCED, Exclusive
from wheel_lock.locks.fair import FAIR, FENCED_FAIR
from wheel_lock.locks.read_write import FENCED_WRITE, READ, WRITE
from wheel_lock.locks.reentrant import FENCED_REENTRANT, REENTRANT
from wheel_lock.locks.semaphore import Permit, semaphore

HANDED_OVER: dict[str, Kind] = {kind.name: kind for kind in (EXCLUSIVE, FENCED, FAIR, FENCED_FAIR)}
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
