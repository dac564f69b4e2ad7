"""Outages: a node has been unreachable, or has refused renewals, for a second while locks are held there.

Each is logged once with its cause, and once more when it is over. A shorter one is handled by retries alone, and nothing is
scheduled for a node without leases.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from wheel_lock.engine.interfaces import Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.retries import Retries
from wheel_lock.errors import counted
from wheel_lock.lease import Lease
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.protocol.resp import LONG_TEXT, error_text
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.rows import Rows
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

_LOGGED_AFTER_S = 1.0


class Outage:
    """The outage of one node, if there is one: until there are no retries. Timer's thread only, except for the log records.

    Attributes:
        since: When it began, in seconds of the timer's clock; None while the node is well.
    """

    __slots__ = ("_alarm", "_in_log", "_posted", "_refusal", "_retries", "_shard", "_table", "since")

    def __init__(self, table: LeaseTable, shard: Shard, retries: Retries) -> None:
        self._table = table
        self._shard = shard
        self._retries = retries
        self.since: float | None = None
        self._refusal: ServerError | None = None  # the latest error reply to a renewal
        self._alarm: Alarm | None = None
        self._posted = False  # the warning has been posted to the notifier thread
        self._in_log = False  # written and read on the notifier thread

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
