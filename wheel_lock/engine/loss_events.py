"""Telling of losses and failures: the log, the warning about an abandoned lock, the callbacks, each on its own thread.

The log and the warnings are the process's. Callbacks of threads run on a notifier of their context, one after the other;
those of tasks are handed to their event loops by another, which no callback can hold up.
"""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Sequence
from functools import partial

from wheel_lock.errors import LossReason, counted, quoted
from wheel_lock.lease import Event, Lease
from wheel_lock.observe.events import LostEvent
from wheel_lock.runtime.notifier import NOTIFIER, Notifier
from wheel_lock.runtime.slow_calls import SlowCalls
from wheel_lock.runtime.timer import HashedWheelTimer

logger = logging.getLogger("wheel_lock")

_NAMES_IN_LOG = 5


def log_illegal(lease: Lease, event: Event) -> None:
    """Log a step that the state of a lease does not allow, and the stack of whoever has asked for it."""
    step = f"a lease that is {lease.state.name} cannot take {event.name} (lock {quoted(lease.name)})"
    NOTIFIER.post(logger.error, "%s: it is given up\n%s", step, "".join(traceback.format_stack()[:-2]))


def log_given_up(leases: int, error: Exception) -> None:
    """Log that a failure of the library's own code costs so many leases."""
    if leases:
        NOTIFIER.post(logger.critical, "%s lost to a failure of the library's own code: %r", counted(leases), error)


class HandedOn(partial[object]):
    """A callback that only hands its event on, to an event loop on which another one runs. So it never takes long."""


class Teller:
    """Has the holders of one context's leases told. Timer's thread only.

    Args:
        timer: Whose clock says when, and on whose wheel slow callbacks are looked after.
    """

    def __init__(self, timer: HashedWheelTimer) -> None:
        self._timer = timer
        self._callbacks = Notifier()
        self._handing_on = Notifier()
        # The second is never slow; but the system may have no thread for it, and then somebody has to try again.
        self._looks = {notifier: SlowCalls(timer, notifier) for notifier in (self._callbacks, self._handing_on)}

    def tell(self, lost: Sequence[Lease]) -> None:
        """Log that leases are lost, warn of those that were abandoned, and have their callbacks called."""
        at = self._timer.clock.now()
        NOTIFIER.post(_log, lost)
        callbacks: list[Lease] = []
        handed_on: list[Lease] = []
        for lease in lost:
            if lease.on_lost is not None:
                (handed_on if isinstance(lease.on_lost, HandedOn) else callbacks).append(lease)
        for notifier, some in ((self._handing_on, handed_on), (self._callbacks, callbacks)):
            if some:
                notifier.post(_call_back, notifier, some, at)
                self._looks[notifier].look_later()


def _call_back(notifier: Notifier, leases: Sequence[Lease], at: float) -> None:
    """On a notifier's thread."""
    for lease in leases:
        assert lease.loss is not None
        assert lease.on_lost is not None
        event = LostEvent(lease.name, lease.loss, at, lease.deadline, lease.renewals, lease.fence)
        notifier.run(lease.on_lost, event)


def _log(leases: Sequence[Lease]) -> None:
    """On the process's notifier thread: the log and the warnings."""
    names = ", ".join(quoted(lease.name) for lease in leases[:_NAMES_IN_LOG])
    more = f" and {len(leases) - _NAMES_IN_LOG} more" if len(leases) > _NAMES_IN_LOG else ""
    reasons = "; ".join(sorted({str(lease.loss) for lease in leases}))
    closing = all(lease.loss is LossReason.CONTEXT_CLOSED for lease in leases)
    level = logging.INFO if closing else logging.WARNING  # a close is somebody's wish
    NOTIFIER.run(logger.log, level, "lost %s: %s%s: %s", counted(len(leases)), names, more, reasons)
    for lease in leases:
        if lease.loss is LossReason.ABANDONED:
            NOTIFIER.run(_warn_abandoned, lease)


def _warn_abandoned(lease: Lease) -> None:
    place = f"; it was acquired at {lease.call_site}" if lease.call_site else ""
    warnings.warn(
        f"the lock {quoted(lease.name)} was abandoned without a release and is renewed no more{place}",
        ResourceWarning,
        stacklevel=1,
    )
