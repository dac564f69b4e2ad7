"""Retries: what is unconfirmed at one node is watched until its deadline, and sent again as the node's condition allows.

The condition is what the server has last said: one table, which only signs of it change. A longer outage is logged.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedKeyList

from wheel_lock.engine.interfaces import LeaseGroup, Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import in_calls
from wheel_lock.errors import LossReason, counted
from wheel_lock.lease import HELD, OVERDUE, Event, Lease
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.protocol.resp import LONG_TEXT, error_text
from wheel_lock.protocol.scripts import Script
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.rows import Rows
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

_LOGGED_AFTER_S = 1.0


class Condition(enum.Enum):
    """The condition of a node, as its renewals show it.

    Attributes:
        accepts: What is due is sent, and checked ahead of its time. Else it becomes overdue.
        probes: One call about overdue leases is sent at a time, with pauses.
    """

    AWAY = (False, False)  # there is no connection, or a silent one
    WELL = (True, False)
    REJECTING = (False, True)  # the server answers renewals with an error
    NOT_NOW = (True, True)  # a proxy: the server behind it for each call can execute nothing (BUSY, LOADING ...)

    def __init__(self, accepts: bool, probes: bool) -> None:
        self.accepts: bool = accepts
        self.probes: bool = probes


class Sign(enum.Enum):
    """A sign of the condition of a node."""

    TROUBLE = enum.auto()  # the connection was lost, or is silent
    READY = enum.auto()  # it is connected, or answers again
    REFUSED = enum.auto()  # a renewal call was refused, of a script that was not refused before
    EXECUTED = enum.auto()  # a renewal call was executed
    GRANTED = enum.auto()  # an acquire was executed
    ALL_NOT_NOW = enum.auto()  # a proxy: so was each call since the last pause refused
    OTHERWISE = enum.auto()  # a proxy: a call was answered otherwise


AWAY, WELL, REJECTING, NOT_NOW = Condition

# What has no line here changes nothing.
NEXT: dict[tuple[Condition, Sign], Condition] = {
    (AWAY, Sign.READY): WELL,
    (WELL, Sign.TROUBLE): AWAY,
    (WELL, Sign.REFUSED): REJECTING,
    (WELL, Sign.ALL_NOT_NOW): NOT_NOW,
    (REJECTING, Sign.TROUBLE): AWAY,
    (REJECTING, Sign.READY): WELL,
    (REJECTING, Sign.EXECUTED): WELL,
    (REJECTING, Sign.GRANTED): WELL,
    (NOT_NOW, Sign.TROUBLE): AWAY,
    (NOT_NOW, Sign.READY): WELL,
    (NOT_NOW, Sign.REFUSED): REJECTING,
    (NOT_NOW, Sign.OTHERWISE): WELL,
}


def _urgency(lease: Lease) -> tuple[float, float]:
    return lease.deadline, id(lease)  # the id makes removal logarithmic if thousands share one deadline


def _script_of(lease: Lease) -> Script:
    return group_of(lease).lock_type.renew


class Overdue:
    """Leases ordered by local deadline, which must not change while a lease is in the set.

    There is a list for each of the few renewal scripts, because a server may refuse one script and not another: however
    many leases are refused, they must not delay the others.
    """

    def __init__(self) -> None:
        self._by_script: defaultdict[Script, SortedKeyList[Lease, tuple[float, float]]] = defaultdict(
            lambda: SortedKeyList(key=_urgency)
        )

    def __len__(self) -> int:
        return sum(map(len, list(self._by_script.values())))  # a copy, in one step, because other threads call this

    def snapshot(self) -> list[Lease]:
        """Return a copy, or [] if the set changes meanwhile. From any thread."""
        try:
            return list(itertools.chain.from_iterable(self._by_script.values()))
        except (IndexError, RuntimeError):
            return []

    @property
    def first_deadline(self) -> float | None:
        """The nearest local deadline, or None if the set is empty."""
        return min((leases[0].deadline for leases in self._by_script.values() if leases), default=None)

    def add(self, leases: Iterable[Lease]) -> None:
        """Add leases that are not in the set. O(n log n)."""
        for script, some in itertools.groupby(leases, _script_of):
            self._by_script[script].update(some)

    def discard(self, lease: Lease) -> None:
        """Remove ``lease`` if it is in the set. O(log n)."""
        self._by_script[_script_of(lease)].discard(lease)

    @property
    def scripts(self) -> list[Script]:
        """The renewal scripts of the leases."""
        return list(self._by_script)

    def take(self, most: int, wanted: Callable[[Lease], bool], scripts: Iterable[Script]) -> list[Lease]:
        """Remove and return, nearest deadline first, up to ``most`` leases of ``scripts`` that are ``wanted``.

        O(most), if most of them are.
        """
        lists = [self._by_script[script] for script in scripts]
        first = list(itertools.islice(heapq.merge(*lists, key=_urgency), most))
        if all(map(wanted, first)):
            for script, number in Counter(map(_script_of, first)).items():
                del self._by_script[script][:number]
            return first
        taken = list(itertools.islice(filter(wanted, heapq.merge(*lists, key=_urgency)), most))
        for lease in taken:
            self.discard(lease)
        return taken

    def pop_until(self, deadline: float) -> list[Lease]:
        """Remove and return, in order, all leases whose local deadline is at or before ``deadline``."""
        popped: list[Lease] = []
        for leases in self._by_script.values():
            stop = leases.bisect_key_right((deadline, math.inf))
            popped += leases.islice(0, stop)
            del leases[:stop]
        popped.sort(key=_urgency)
        return popped


class Retries:
    """The unconfirmed leases of one node, and its condition. Timer's thread only.

    Args:
        retry: Called after a pause, to take again.

    Attributes:
        condition: The condition of the node.
        overdue: The unconfirmed leases.
        resting: Those that were refused one by one: they are retried after a pause.
        refused: Scripts that the server has refused since it last executed them, perhaps for lack of a right; the latest
            last. Calls of other scripts find out whether it refuses all, and do not wait for these.
        backoff: The pauses.
        in_flight: The number of calls in flight about leases that were taken.
    """

    def __init__(self, shard: Shard, table: LeaseTable, retry: Callable[[], object]) -> None:
        options = table.state.options
        self._shard = shard
        self._table = table
        self._timer = table.timer
        self._retry = retry
        self.condition: Condition = AWAY
        self.overdue: Overdue = Overdue()
        self.resting: set[Lease] = set()
        self.refused: dict[Script, None] = {}
        # The answers of a proxy since the last pause: True for each refusal because the server can execute nothing now.
        self._answers: set[bool] = set()
        self.in_flight: int = 0
        self.backoff: Backoff = Backoff(options.backoff_first_s, options.backoff_max_s)
        self._pause: Alarm | None = None
        self._watch: Alarm | None = None

    def stop(self) -> None:
        """Cancel the alarms."""
        self._timer.cancel(self._pause)
        self._timer.cancel(self._watch)

    # -- the condition -----------------------------------------------------------------------------------------------

    def note(self, sign: Sign) -> bool:
        """Take the next condition; return whether the node has become well, so that nothing rests any more."""
        before, self.condition = self.condition, NEXT.get((self.condition, sign), self.condition)
        if self.condition is not WELL or (before is WELL and sign is not Sign.READY):
            return False
        self.resting.clear()
        if sign in (Sign.READY, Sign.GRANTED):
            self.refused.clear()
            self._answers.clear()
        return True

    def note_answer(self, *, not_now: bool) -> bool:
        """Note an answer of a proxy; return whether the node has become well."""
        self._answers.add(not_now)
        return not not_now and self.note(Sign.OTHERWISE)

    def note_refused(self, script: Script) -> None:
        """Note that a call was refused for a reason that may concern the server, or all calls of ``script``."""
        if script in self.refused:  # other scripts have been executed since, or the rejection is known already
            del self.refused[script]  # to come last
        else:
            self.note(Sign.REFUSED)
        self.refused[script] = None
        self.pause()

    # -- pauses ------------------------------------------------------------------------------------------------------

    @property
    def pausing(self) -> bool:
        """True during the pause before the next retry."""
        return self._pause is not None

    def pause(self) -> None:
        """Retry after a pause."""
        if self._pause is None:
            # A tick more, because an alarm's time is rounded down.
            pause_s = self.backoff.pause() + self._timer.scale.tick_s
            self._pause = self._timer.call_at(self._timer.now + pause_s, self._end_pause, self._shard)

    def _end_pause(self, now: float) -> None:
        self._pause = None
        # A server that answers some calls only is a proxy, and the servers behind it do not depend on each other.
        if self._answers == {True}:
            self.note(Sign.ALL_NOT_NOW)
        self._answers.clear()
        self._retry()

    def defer(self, leases: Iterable[Lease]) -> None:
        """Retry OVERDUE leases after a pause."""
        self.resting.update(leases)
        self.pause()

    # -- overdue leases ----------------------------------------------------------------------------------------------

    def watch(self, leases: Sequence[Lease]) -> None:
        """Watch ``leases`` until their deadlines; HELD ones become OVERDUE."""
        for lease in leases:
            if lease.state is HELD:
                lease.transition(Event.OUTCOME_UNKNOWN)
        self.overdue.add(leases)
        counters = self._table.state.counters
        counters.overdue_most = max(counters.overdue_most, len(self.overdue))
        self._set_watch()

    def _set_watch(self) -> None:
        first = self.overdue.first_deadline
        if first is None:
            return
        timer = self._timer
        # A tick early: a loss is reported by the deadline.
        tick = max(timer.scale.floor(first) - 1, timer.wheel.now + 1)
        if self._watch is None or self._watch.tick > tick:
            timer.cancel(self._watch)
            self._watch = timer.call_at(timer.scale.seconds(tick), self._report_lapsed, self._shard)

    def _report_lapsed(self, now: float) -> None:
        self._watch = None
        self._table.mark_lost(self.overdue.pop_until(self._timer.scale.seconds(self._timer.wheel.now + 2)))
        self._set_watch()

    def discard(self, lease: Lease) -> None:
        """Stop watching a lease. O(log n)."""
        self.resting.discard(lease)
        if self.overdue:
            self.overdue.discard(lease)

    @property
    def waiting(self) -> bool:
        """True if overdue leases could be sent to the node now."""
        return self.condition is not AWAY and len(self.overdue) != len(self.resting)

    def take(self, calls: int) -> list[tuple[LeaseGroup, list[Lease]]]:
        """Remove overdue leases to be sent in ``calls`` calls, nearest deadline first; return those of each call."""
        # After the process was stopped, replies are handled before the alarms of deadlines that have passed.
        self._table.mark_lost(self.overdue.pop_until(self._timer.clock.now()))
        if calls <= 0:
            return []
        rejecting = self.condition is REJECTING
        batches = self._take(calls, [script for script in self.overdue.scripts if script not in self.refused])
        if self._pause is None:
            for script in tuple(self.refused):
                if not (rejecting and batches):
                    batches += self._take(1, [script])
            if self.refused and not rejecting:
                self.pause()
        return batches

    def _take(self, calls: int, scripts: Iterable[Script]) -> list[tuple[LeaseGroup, list[Lease]]]:
        size = self._shard.node.batch_size
        batches: list[tuple[LeaseGroup, list[Lease]]] = []
        # All leases taken may have ended owners; no reply would come for them, so the next ones are taken.
        while not batches and (taken := self.overdue.take(calls * size, self._is_due, scripts)):
            by_group: dict[LeaseGroup, list[Lease]] = {}
            self.abandon([lease for lease in taken if lease.owner.ended])
            for lease in taken:
                if lease.state is OVERDUE:
                    by_group.setdefault(group_of(lease), []).append(lease)
            for group, leases in by_group.items():
                batches += [(group, some) for some in in_calls(leases, size)]
        for _, leases in batches[calls:]:
            self.overdue.add(leases)  # many small groups: the remaining ones wait for replies
        return batches[:calls]

    def abandon(self, leases: Sequence[Lease]) -> None:
        """End leases whose owners have ended. Behind messages that are left they are renewed meanwhile."""
        if self._timer.goes_on:
            self._table.abandon_later(leases)
        else:
            self._table.mark_lost(leases, LossReason.ABANDONED)

    @property
    def settled(self) -> bool:
        """True if the node answers, and no lease is overdue, refused, or in a call that repeats its renewal."""
        return self.condition.accepts and not (self.in_flight or self.resting or self.overdue)

    def _is_due(self, lease: Lease) -> bool:
        return lease.state is OVERDUE and lease not in self.resting


@dataclass(eq=False, repr=False, slots=True)
class Outage:
    """The outage of one node, if there is one: it has been unreachable, or has refused renewals, for a second.

    It is logged once with its cause, if locks are held there, and once more when it is over. A shorter one is handled by
    retries alone. Timer's thread only, except for the log records.

    Attributes:
        since: When it began, in seconds of the timer's clock; None while the node is well.
    """

    _table: LeaseTable
    _shard: Shard
    _retries: Retries
    since: float | None = None
    _refusal: ServerError | None = None  # the latest error reply to a renewal
    _alarm: Alarm | None = None
    _posted: bool = False  # the warning has been posted to the notifier thread
    _in_log: bool = False  # written and read on the notifier thread

    def begin(self, refusal: ServerError | None = None) -> None:
        """Begin an outage unless there is one: the node is unreachable, or has refused a renewal with ``refusal``."""
        timer = self._table.timer
        if refusal is not None:
            self._refusal = refusal
        if self.since is None:
            self.since = timer.now
        if self._alarm is None and not self._posted and self._shard.is_needed(self._shard.node):
            self._alarm = timer.call_at(timer.now + _LOGGED_AFTER_S + timer.scale.tick_s, self._warn, None)

    def _warn(self, now: float) -> None:
        self._alarm = None
        self.look()
        node = self._shard.node
        if self.since is None or not self._shard.is_needed(node):
            return
        self._posted = True
        if node.ready and self._refusal is not None:
            what, cause = "refused to renew locks", error_text(self._refusal)
        else:
            what, cause = "been unreachable", error_text(node.last_error or "it does not answer", LONG_TEXT)
        text = f"{node.connector.describe()} has {what} for {now - self.since:.1f} s"
        NOTIFIER.post(self._log_warning, self._table.held.entries(), node.connector.describe(), text, cause)

    def _log_warning(self, held: Iterable[Lease | Rows], node: str, text: str, cause: str) -> None:
        """Count the locks and log, on the notifier thread, because counting takes long."""
        here = [entry for entry in held if group_of(entry).renewer is self._shard]
        locks = sum(entry.left if isinstance(entry, Rows) else 1 for entry in here)
        if locks:
            self._in_log = True
            fields = log_fields("outage", locks=locks, reason=cause, node=node, context=self._table.state.label)
            shown = f"{counted(locks)} {'is' if locks == 1 else 'are'}"
            logger.warning("%s, and %s held there: %s", text, shown, cause, extra=fields)

    def look(self) -> None:
        """End the outage, if there is one, if all renewals are confirmed."""
        if self.since is None or not self._retries.settled:
            return
        since, self.since, self._refusal = self.since, None, None
        self._table.timer.cancel(self._alarm)
        self._alarm = None
        if self._posted:
            self._posted = False
            NOTIFIER.post(self._log_end, self._shard.node.connector.describe(), self._table.timer.now - since)

    def _log_end(self, server: str, seconds: float) -> None:
        if self._in_log:
            self._in_log = False
            fields = log_fields("outage_over", node=server, context=self._table.state.label)
            logger.info("%s is well again after %.1f s", server, seconds, extra=fields)
