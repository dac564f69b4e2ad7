"""The kinds of lock, a small file each: which scripts, and what a reply means. No waiting, no I/O."""

from wheel_lock.locks.exclusive import EXCLUSIVE, FENCED, Exclusive

__all__ = ["EXCLUSIVE", "FENCED", "Exclusive"]
