"""A fence as guards take it: of a lock that is held, or as a name and a number that came from elsewhere."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from wheel_lock.errors import quoted, text_of
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.leader import BaseLeadership

LARGEST = 2**53 - 1
"""The largest fence: above it Lua, which a server of Redis compares with, does not count exactly."""


class Fence(NamedTuple):
    """A fence and what it is about, to be passed on to where it is checked.

    Attributes:
        name: The lock's key as text: its name with the prefix of its context; bytes that are not UTF-8 are escaped.
        fence: The number.
    """

    name: str
    fence: int


Fenced: TypeAlias = BaseLock | BaseLeadership | tuple[str | bytes, int]
"""What guards take: a lock that is held and has a fence, a leadership, or a pair of a name and a fence."""


def fence_of(lock: Fenced) -> Fence:
    """Return the fence of ``lock``, for another process or service to give to its guard. Nothing is sent.

    Args:
        lock: A lock with ``fencing=True`` that is held; or a leadership; or a pair of a name and a fence, which is checked.

    Raises:
        LockNotHeld: The lock is not held.
        LockLost: The lock is lost, as far as this process knows.
        ValueError: It has no fence; or a name is not text or empty, or a fence is not a whole number from 0 to 2**53 - 1.
    """
    if isinstance(lock, tuple):
        name, fence = lock
        return _checked(text_of(name), fence)
    if not isinstance(lock, (BaseLock, BaseLeadership)):
        raise ValueError(f"a guard takes one lock, or a pair of a name and a fence, not one of {type(lock).__name__}")
    lock.raise_if_lost()
    held = lock._lock if isinstance(lock, BaseLeadership) else lock
    lease = held._own_or_latest()
    if lease is None or lease.fence is None:
        raise ValueError(
            f"The lock {quoted(held.name)} of the kind {held._kind!r} has no fence. Locks with one holder have one if they "
            "are made with fencing=True; semaphores and readers have none"
        )
    return _checked(text_of(lease.key), lease.fence)


def _checked(name: str, fence: int) -> Fence:
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a fence must be str or bytes, and not empty, not {name!r:.80}")
    if type(fence) is not int or not 0 <= fence <= LARGEST:
        raise ValueError(f"a fence must be a whole number from 0 to {LARGEST}, not {fence!r:.80}")
    return Fence(name, fence)
