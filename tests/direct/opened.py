"""A context whose direct path is open, and what tests look at of it."""

from __future__ import annotations

from tests.support.background import PATIENCE_S
from tests.support.timers import ask
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext
from wheel_lock.engine.direct.path import DirectPath


def path_of(context: LockContext) -> DirectPath:
    """Return the direct path of a context that has one."""
    direct = context._engine.direct
    assert isinstance(direct, DirectPath)
    return direct


def opened(context: LockContext, name: str = "warm-up") -> DirectPath:
    """Use the context until its path has a connection; return the path, which nothing is on."""
    direct = path_of(context)

    def is_open() -> bool:
        direct._rest = 0
        if direct._connection is None and not direct._connecting:
            with context.lock(name):
                pass
        return direct._connection is not None

    eventually(is_open, PATIENCE_S, "the path has a connection")
    return direct


def on_path(lock: Lock) -> bool:
    """Return whether the lease of the calling thread is on the path."""
    lease = lock._own_lease()
    return lease is not None and path_of_lock(lock).hold_of(lease) is not None


def path_of_lock(lock: Lock) -> DirectPath:
    direct = lock._engine.direct
    assert isinstance(direct, DirectPath)
    return direct


def taken_over(context: LockContext) -> None:
    """Have the timer's thread hold what is held on the path; return when it does."""
    direct = path_of(context)
    context.timer.post(direct.take_over)
    ask(context.timer)
