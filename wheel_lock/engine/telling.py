"""Telling of losses: the log, the warning about an abandoned lock, the callback. Runs on the notifier thread."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.errors import LossReason, quoted
from wheel_lock.lease import Lease
from wheel_lock.observe.events import LostEvent

logger = logging.getLogger("wheel_lock")

_NAMES_IN_LOG = 5


def tell_lost(leases: Sequence[Lease], at: float) -> None:
    """On the notifier thread: the log, the warnings, the callbacks."""
    names = ", ".join(quoted(lease.name) for lease in leases[:_NAMES_IN_LOG])
    more = f" and {len(leases) - _NAMES_IN_LOG} more" if len(leases) > _NAMES_IN_LOG else ""
    reasons = "; ".join(sorted({str(lease.loss) for lease in leases}))
    closing = all(lease.loss is LossReason.CONTEXT_CLOSED for lease in leases)
    level = logging.INFO if closing else logging.WARNING  # a close is somebody's wish
    _run(partial(logger.log, level, "lost %d lock(s): %s%s: %s", len(leases), names, more, reasons))
    for lease in leases:
        if lease.loss is LossReason.ABANDONED:
            _run(partial(_warn_abandoned, lease))
        if lease.on_lost is not None:
            assert lease.loss is not None
            event = LostEvent(lease.name, lease.loss, at, lease.deadline, lease.renewals, lease.fence)
            _run(partial(lease.on_lost, event))


def _run(call: Callable[[], object]) -> None:
    try:
        call()
    except BaseException:
        try:
            logger.exception("a callback about a lost lock failed")
        except BaseException:
            pass  # a log handler that raises: the next holder is to be told all the same


def _warn_abandoned(lease: Lease) -> None:
    place = f"; it was acquired at {lease.place}" if lease.place else ""
    warnings.warn(
        f"the lock {quoted(lease.name)} was abandoned without a release and is renewed no more{place}",
        ResourceWarning,
        stacklevel=1,
    )
