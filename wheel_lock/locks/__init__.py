"""The kinds of lock, a small file each: which scripts, and what a reply means. No waiting, no I/O."""

from wheel_lock.locks.exclusive import EVERLASTING, EXCLUSIVE, FENCED, Exclusive

HANDED_OVER = {kind.name: kind for kind in (EXCLUSIVE, FENCED)}
"""The kinds that can be exported and adopted, by name."""

__all__ = ["EVERLASTING", "EXCLUSIVE", "FENCED", "HANDED_OVER", "Exclusive"]
