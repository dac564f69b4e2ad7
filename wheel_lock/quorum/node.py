"""One of the independent masters: an engine of its own, and what is known of its restarts.

A master that restarts without its data has forgotten what it granted, so a second holder could collect a majority with
its help. Redlock therefore keeps it out until everything that it may have forgotten has expired. A restart shows in the
``run_id`` of INFO, which is read whenever a connection is made: before anything is granted on that connection.

Source: "Distributed Locks with Redis" on redis.io, section "Performance, crash recovery and fsync".
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from functools import partial

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from wheel_lock.engine.engine import Engine
from wheel_lock.errors import LossReason, counted, quoted
from wheel_lock.lease import Lease
from wheel_lock.net.clients import AnyClient
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.server_errors import code_of
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer

logger = logging.getLogger("wheel_lock")

_SECONDS = re.compile("[0-9]{1,12}")
_MOST_INFO = 100_000


class History:
    """What is known of a master's restarts. Written where connections are made, read on the timer's thread.

    Args:
        now: Reads the timer's clock.
        trusts_new: Whether a master that is seen for the first time counts at once, however young it is.

    Attributes:
        empty_since: When it may last have started empty, in seconds of the timer's clock; minus infinity where it has
            not as far as is known.
    """

    def __init__(self, now: Callable[[], float], trusts_new: bool) -> None:
        self._now = now
        self._trusts_new = trusts_new
        self._run_id: str | None = None
        self._met = False
        self.empty_since = -math.inf

    def seen(self, run_id: str | None, up_s: int) -> bool:
        """Note what a new connection leads to; return whether it may have forgotten what it granted.

        Args:
            run_id: Which life of the server; None where it does not tell, so that it may be a new one each time.
            up_s: For how long it has been up by its own account, in seconds: the difference of two clock readings that
                are rounded down each, so up to one second too much.
        """
        first, self._met = not self._met, True
        before, self._run_id = self._run_id, run_id
        anew = run_id is None or not (first or run_id == before)
        if anew:
            self.empty_since = self._now()
        elif first and not self._trusts_new:
            self.empty_since = max(self.empty_since, self._now() - max(up_s - 1, 0))
        return anew

    def counts_from(self, longest_s: float) -> float:
        """Return from when its grants count, where no lease that it may have forgotten is longer than ``longest_s``."""
        return self.empty_since + longest_s


class NodeConnector(RedisPyConnector):
    """Connects to one master as its client would, and notes which life of it that is.

    Raises:
        TypeError: ``client`` is not a client of one server.
    """

    def __init__(self, client: AnyClient, history: History) -> None:
        super().__init__(client)  # type: ignore[arg-type]  # which refuses the others itself
        self._history = history

    def _check(self, connection: AbstractConnection) -> None:
        connection.send_command("INFO", "server")
        try:
            fields = _fields(connection.read_response())
        except ResponseError as error:
            if code_of(error) == "BUSY":
                # That is no sign of a new life: ask again later.
                raise RedisConnectionError(error_text(error)) from None
            fields = {}  # not allowed, or not there, so nobody knows
        up = fields.get("uptime_in_seconds", "")
        if self._history.seen(fields.get("run_id"), int(up) if _SECONDS.fullmatch(up) else 0):
            NOTIFIER.post(
                logger.warning,
                "%s has restarted, or does not tell: it does not count until what it may have forgotten has expired",
                self.describe(),
            )


def _fields(text: object) -> dict[str, str]:
    """Return the fields of an INFO reply by name."""
    lines = text[:_MOST_INFO].decode("utf-8", "replace").splitlines() if isinstance(text, bytes) else []
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


class NodeEngine(Engine):
    """The engine of one master; what it loses is a vote, and a holder hears of that only where it costs the lock."""

    def __init__(self, client: AnyClient, options: ContextOptions, timer: HashedWheelTimer, trusts_new: bool) -> None:
        self.history = History(timer.clock.now, trusts_new)
        super().__init__(NodeConnector(client, self.history), options, timer)
        self.tell_lost = partial(NOTIFIER.post, _log_lost)

    @property
    def is_silent(self) -> bool:
        """Whether it has been silent for suspiciously long: what is sent now would only pile up."""
        return self.node.connected and not self.node.ready


def _log_lost(leases: Sequence[Lease]) -> None:
    """On the notifier thread."""
    closing = all(lease.loss is LossReason.CONTEXT_CLOSED for lease in leases)
    level = logging.DEBUG if closing else logging.INFO
    name, reason = quoted(leases[0].name), leases[0].loss
    logger.log(level, "a node no longer grants %s, among them %s: %s", counted(len(leases)), name, reason)
