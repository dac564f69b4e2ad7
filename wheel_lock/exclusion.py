"""Mutual exclusion that ends, too, if an exception that a signal's handler raises or another thread sets strikes anywhere.

``with lock:`` is not enough: CPython 3.14 may run a handler behind the call of ``__enter__`` and before the protected
block, and the lock then stays taken. So does each version behind ``lock.acquire()`` and before a ``try``. (Users' blocks
with locks of this package have no such gap: the call of an ``__enter__`` that is written in Python ends without a check
for signals, unless a debugger evaluates frames itself, PEP 523.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_ONCE = (True,)


class Lock(Protocol):
    """A lock of the system, or one that gevent has put in its place."""

    def acquire(self, blocking: bool = ..., /) -> bool: ...
    def release(self) -> None: ...


def exclusively(lock: Lock, work: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call ``work`` with the lock taken; return its result. The lock is given back whatever ends the call.

    A handler may run in ``work``, and may wait there for other threads: what can do without a lock, by one atomic operation
    on a dict or a deque, does.
    The lock is a reentrant one, because a handler may come by the same lock.
    """
    taken: list[bool] = []
    try:
        # One call of C functions takes the lock and notes that. An interruption comes before both, or behind both.
        taken.extend(map(lock.acquire, _ONCE))
        return work(*arguments, **keywords)
    finally:
        if taken:
            lock.release()
