"""Reports of losses and failures: the log, the warning about an abandoned lock, and the ``on_lost`` callbacks.

Log records and warnings have a thread of the whole process. Callbacks of threads run on a notifier of their context, one
after the other; callbacks of tasks are posted to their event loops by a second notifier, which no callback can block.
"""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from wheel_lock.engine.state import EngineState
from wheel_lock.errors import LossReason, counted, quoted
from wheel_lock.lease import Event, Lease
from wheel_lock.net.node import Node
from wheel_lock.observe.events import LostEvent
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.observe.stats import Counters
from wheel_lock.protocol.owners import token_id
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.notifier import NOTIFIER, Notifier
from wheel_lock.runtime.watchdog import SlowCalls

logger: logging.Logger = logging.getLogger("wheel_lock")

_NAMES_IN_LOG = 5
_GATHERED_S = 0.25  # within which abandoned locks share a record


def log_illegal(lease: Lease, event: Event) -> None:
    """Log a transition that the state of a lease does not allow, and the stack of the call."""
    step = f"a lease that is {lease.state.name} cannot take {event.name} (lock {quoted(lease.name)})"
    log = partial(logger.error, extra=log_fields("illegal_step", names=[lease.name], token_id=token_id(lease.token)))
    NOTIFIER.post(log, "%s: it is given up\n%s", step, "".join(traceback.format_stack()[:-2]))


def log_given_up(leases: int, error: Exception) -> None:
    """Log the number of leases that are lost to a failure of the library's own code."""
    if leases:
        log = partial(logger.critical, extra=log_fields("internal_error", locks=leases, reason=repr(error)))
        NOTIFIER.post(log, "%s lost to a failure of the library's own code: %r", counted(leases), error)


class LoopCallback(partial[object]):
    """A callback that only posts the event to an event loop, which runs the user's callback. So it is always quick."""


class HeldBack:
    """The callback of locks that are acquired together, which is called for none of them before the caller has them.

    Timer's thread only, but for the call.
    """

    def __init__(self, on_lost: Callable[[LostEvent], object]) -> None:
        self.on_lost = on_lost
        self._passes = False
        self._calls: list[Callable[[], object]] = []

    def __call__(self, event: LostEvent) -> None:
        self.on_lost(event)

    def keep(self, call: Callable[[], object]) -> bool:
        """Keep a call of the callback for later if the caller has no lock yet; return whether it is kept."""
        if not self._passes:
            self._calls.append(call)
        return not self._passes

    def open(self) -> None:
        """Have the callback called for the losses until now, and at once for those from now on."""
        self._passes = True
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    def close(self) -> None:
        """Drop the losses until now, and keep those from now on."""
        self._passes = False
        self._calls.clear()


class LossReporter:
    """Reports the losses of one engine's leases. Timer's thread only."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._timer = timer = state.timer
        self._abandoned: dict[Lease, None] = {}
        self._gathered: Alarm | None = None
        self._in_loops, self._in_threads = Notifier(), Notifier()
        # The first is never slow, but its SlowCalls tries again if the system has had no thread for it.
        self._slow = {notifier: SlowCalls(timer, notifier) for notifier in (self._in_loops, self._in_threads)}

    def report(self, lost: Sequence[Lease]) -> None:
        """Log that leases are lost, warn of those that were abandoned, and have their callbacks called."""
        at = self._timer.clock.now()
        abandoned = [lease for lease in lost if lease.loss is LossReason.ABANDONED]
        if abandoned:
            NOTIFIER.post(_warn_abandoned, abandoned)
            self._gather(abandoned)
        if len(abandoned) < len(lost):
            others = [lease for lease in lost if lease.loss is not LossReason.ABANDONED]
            NOTIFIER.post(log_lost, LOCKS_LOST, self._state.label, others)
        self._call_each(lost, at)

    def _call_each(self, lost: Sequence[Lease], at: float) -> None:
        """Have the callbacks of leases that were lost at that moment called."""
        called: dict[Notifier, list[Lease]] = {self._in_loops: [], self._in_threads: []}
        for lease in lost:
            on_lost = lease.on_lost
            if isinstance(on_lost, HeldBack):
                if on_lost.keep(partial(self._call_each, [lease], at)):
                    continue
                on_lost = on_lost.on_lost
            if on_lost is not None:
                called[self._in_loops if isinstance(on_lost, LoopCallback) else self._in_threads].append(lease)
        for notifier, leases in called.items():
            if leases:
                counters = self._state.counters if notifier is self._in_threads else None
                notifier.post(_call_back, notifier, leases, at, counters)
                self._slow[notifier].look_later()

    def _gather(self, abandoned: Sequence[Lease]) -> None:
        """Log these losses together with those of a moment: locks are abandoned one by one, but often many of them."""
        self._abandoned.update(dict.fromkeys(abandoned))
        if self._gathered is None or self._gathered not in self._timer.wheel:
            at = self._timer.now + _GATHERED_S
            self._gathered = self._timer.call_at(at, lambda now: self.flush(), self._state)

    def flush(self) -> None:
        """Log the abandoned leases that were gathered."""
        gathered = [lease for lease in self._abandoned if lease.group.alive]  # in a forked child they are the parent's
        self._abandoned.clear()
        if gathered:
            NOTIFIER.post(log_lost, LOCKS_LOST, self._state.label, gathered)


def _call_back(notifier: Notifier, leases: Sequence[Lease], at: float, counters: Counters | None) -> None:
    """Call the callbacks, and count their times. (``counters`` is None for those that only post to an event loop.)"""
    for lease in leases:
        on_lost = lease.on_lost
        if on_lost is None:
            continue  # its caller has stopped waiting for it meanwhile
        assert lease.loss is not None
        event = LostEvent(lease.name, lease.loss, at, lease.deadline, lease.renewals, lease.fence)
        began = time.monotonic()
        notifier.run(on_lost, event)
        if counters is not None:
            counters.callback.add(time.monotonic() - began)


def _node_of(leases: Sequence[Lease]) -> str | None:
    """Return the address of the node of ``leases``; None if there are several, or none, as for locks of a quorum."""
    nodes: set[Node | None] = {getattr(getattr(lease.group, "renewer", None), "node", None) for lease in leases}
    node = nodes.pop() if len(nodes) == 1 else None
    return None if node is None else node.connector.describe()


class LossRecord(NamedTuple):
    """The log record of losses: its event, its text, and its level, also that at a close, which is intended."""

    event: str
    text: str
    level: int
    level_at_close: int


LOCKS_LOST = LossRecord("locks_lost", "lost %s: %s%s: %s", logging.WARNING, logging.INFO)
VOTES_LOST = LossRecord("votes_lost", "a node no longer grants %s: %s%s: %s", logging.INFO, logging.DEBUG)


def log_lost(record: LossRecord, context: str | None, leases: Sequence[Lease]) -> None:
    """Log. On the process's notifier thread."""
    names = ", ".join(quoted(lease.name) for lease in leases[:_NAMES_IN_LOG])
    more = f" and {len(leases) - _NAMES_IN_LOG} more" if len(leases) > _NAMES_IN_LOG else ""
    reasons = "; ".join(sorted({str(lease.loss) for lease in leases}))
    closing = all(lease.loss is LossReason.CONTEXT_CLOSED for lease in leases)
    fields = log_fields(
        record.event,
        names=[lease.name for lease in leases[:_NAMES_IN_LOG]],
        locks=len(leases),
        reason=reasons,
        node=_node_of(leases),
        token_id=token_id(leases[0].token),
        context=context,
    )
    log = partial(logger.log, record.level_at_close if closing else record.level, extra=fields)
    NOTIFIER.run(log, record.text, counted(len(leases)), names, more, reasons)


def _warn_abandoned(leases: Sequence[Lease]) -> None:
    for lease in leases:
        NOTIFIER.run(_warn, lease)


def _warn(lease: Lease) -> None:
    place = f"; it was acquired at {lease.call_site}" if lease.call_site else ""
    message = f"the lock {quoted(lease.name)} was abandoned without a release and is renewed no more{place}"
    warnings.warn(message, ResourceWarning, stacklevel=1)
