"""A context whose direct path is open, and what tests look at of it."""

from __future__ import annotations

from tests.support.background import EVENTUALLY_S
from tests.support.timers import ask
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext
from wheel_lock.engine.direct.path import DirectHold, DirectPath


def path_of(owner: LockContext | Lock) -> DirectPath:
    """Return the direct path of a context that has one, or of a lock of it."""
    direct = owner._engine.direct
    assert isinstance(direct, DirectPath)
    return direct


def opened(context: LockContext, name: str = "warm-up") -> DirectPath:
    """Use the context until its path has a connection; return the path, which nothing is on."""
    direct = path_of(context)

    def is_open() -> bool:
        direct._rest, direct._opener.worth_it = 0, 1  # it is worth less after each failure
        if direct.connection is not None and direct.connection.pipeline is direct._node.pipeline:
            return True
        if not direct._opener.connecting:
            with context.lock(name):
                pass
        return False

    eventually(is_open, EVENTUALLY_S, "the path has a connection")
    ask(context.timer)  # the end of the connection before this one claims the path for a moment
    return direct


def on_path(lock: Lock) -> bool:
    """Return whether the lease of the calling thread is on the path."""
    lease = lock._own_lease()
    return lease is not None and lease in path_of(lock).claim


def only_hold(direct: DirectPath) -> DirectHold:
    """Return the hold that is on the path."""
    [hold] = direct.claim.values()
    return hold
