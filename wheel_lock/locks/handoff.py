"""The lock type and the options of a lease that is adopted."""

from __future__ import annotations

import time

from wheel_lock.errors import InvalidHandoff, quoted
from wheel_lock.lock_types import HANDED_OVER
from wheel_lock.lock_types.base import LockType
from wheel_lock.options import LockOptions
from wheel_lock.protocol.handoff import Handoff


def adopted_type(handoff: Handoff) -> LockType:
    """Return the lock type to adopt. Raises InvalidHandoff if it is unknown, or does not fit the fence."""
    lock_type = HANDED_OVER.get(handoff.lock_type)
    if lock_type is None:
        raise InvalidHandoff(f"Locks of the kind {handoff.lock_type!r:.40} cannot be handed over", handoff.name)
    if lock_type.fenced != (handoff.fence is not None):
        raise InvalidHandoff(
            f"A lock of the kind {handoff.lock_type!r} that is handed over has {'a' if lock_type.fenced else 'no'} fence",
            handoff.name,
        )
    return lock_type


def adopted_options(handoff: Handoff, thread_local: bool) -> LockOptions:
    """Return the options of the adopting lease. Raises InvalidHandoff if ``max_hold`` is over."""
    if handoff.hold_until is None:
        return handoff.options(thread_local=thread_local)
    left_s = handoff.hold_until - time.time()
    if left_s <= 0:
        raise InvalidHandoff(f"The lock {quoted(handoff.name)} may not be held any longer", handoff.name)
    return handoff.options(max_hold=left_s, thread_local=thread_local)
