"""One of the independent masters: its engine, and the history of its restarts.

A master that restarts without its data has lost its grants, so a second holder could get a majority with its vote. Redlock
therefore ignores its votes until all leases that it may have lost have expired. A restart changes the ``run_id`` of INFO,
which is read for each new connection, before anything is granted on it.

Source: "Distributed Locks with Redis" on redis.io, section "Performance, crash recovery and fsync".
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from functools import partial

from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.loss_events import VOTES_LOST, log_lost
from wheel_lock.net.clients import AnyClient
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.net.node import Node
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.server_errors import code_of
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer

logger: logging.Logger = logging.getLogger("wheel_lock")

_RUN_ID = re.compile(r"(?!(.)\1*\Z)[0-9a-fA-F]{40}")  # some services give one character, 40 times, for all servers
_SECONDS = re.compile("[0-9]{1,12}")
_INFO_LIMIT_BYTES = 100_000
_LOOK_S = 1.0  # between two looks at a node that is another one, too: each is a connection


class Masters:
    """The masters of a quorum by ``run_id``: one that has two addresses has one vote. From any thread."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}

    def claim(self, run_id: str, address: str) -> str:
        """Return the address at which that master votes: ``address``, unless another one has been connected to before."""
        for known, voter in list(self._addresses.items()):
            if voter == address and known != run_id:
                self._addresses.pop(known, None)  # another server has that address now
        return self._addresses.setdefault(run_id, address)


class History:
    """The restarts of a master. Written on the threads that connect, read on the timer's thread.

    Args:
        now: Returns the time of the timer's clock.
        trusts_new: Whether a master that is seen for the first time counts at once, whatever its uptime.

    Attributes:
        empty_since: When it may last have started empty, in seconds of the timer's clock; minus infinity if no restart
            is known.
    """

    def __init__(self, now: Callable[[], float], trusts_new: bool) -> None:
        self._now = now
        self._trusts_new = trusts_new
        self._run_id: str | None = None
        self._is_known = False
        self._is_inherited = False
        self.empty_since: float = -math.inf

    def seen(self, run_id: str | None, up_s: int) -> bool:
        """Note the server behind a new connection; return whether it may have restarted and lost its grants.

        Args:
            run_id: The server's run_id; None if it reports none, so that each connection may mean a restart.
            up_s: The uptime that it reports, in seconds: the difference of two clock readings that are rounded down, so
                up to one second too much.
        """
        first, self._is_known = not self._is_known, True
        before, self._run_id = self._run_id, run_id
        restarted = run_id is None or not (first or run_id == before)
        if restarted:
            self.doubt()
        elif (first and not self._trusts_new) or self._is_inherited:
            self.empty_since = max(self.empty_since, self._now() - max(up_s - 1, 0))
        self._is_inherited = False
        return restarted

    def doubt(self) -> None:
        """Note that its grants were or may be lost by now."""
        self.empty_since = self._now()

    def after_fork_in_child(self) -> None:
        """Do not rely on a time of the parent's: in a time namespace of its own the child's clock is another one."""
        self._is_inherited = self.empty_since > -math.inf
        self.empty_since = min(self.empty_since, self._now())

    def counts_from(self, longest_s: float) -> float:
        """Return when its grants begin to count, if no lease that it may have lost is longer than ``longest_s`` seconds."""
        return self.empty_since + longest_s


class NodeConnector(RedisPyConnector):
    """Connects to one master as its client does, notes its run_id and uptime, and refuses one that is another node, too.

    Attributes:
        twin: The address of another node that had the same master at the latest attempt to connect; None if none had.

    Raises:
        TypeError: ``client`` is not a client of one server.
    """

    def __init__(self, client: AnyClient, history: History, masters: Masters) -> None:
        super().__init__(client)
        self._history = history
        self._masters = masters
        self.twin: str | None = None

    def _check(self, connection: AbstractConnection) -> None:
        if not self._runs_scripts:
            return  # nothing is granted on it, so the restart is noted with the connection for grants
        connection.send_command("INFO", "server")
        try:
            fields = _fields(connection.read_response())
        except ResponseError as error:
            if code_of(error) == "BUSY":
                # This does not indicate a restart: ask again later.
                raise RedisConnectionError(error_text(error)) from None
            fields = {}  # INFO is not allowed or not supported, so restarts cannot be detected
        run_id = fields.get("run_id")
        if run_id is not None and _RUN_ID.fullmatch(run_id) is None:
            run_id = None
        if run_id is not None:
            self._check_master(run_id)
        up = fields.get("uptime_in_seconds", "")
        if self._history.seen(run_id, int(up) if _SECONDS.fullmatch(up) else 0):
            node = self.describe()
            NOTIFIER.post(
                partial(logger.warning, extra=log_fields("node_restarted", node=node)),
                "%s has restarted, or may have: its votes do not count until the leases that it may have lost have expired",
                node,
            )

    def _check_master(self, run_id: str) -> None:
        """Raise redis.exceptions.ConnectionError if another node of the quorum has the same master."""
        node = self.describe()
        voter = self._masters.claim(run_id, node)
        known, self.twin = self.twin, None if voter == node else voter
        if self.twin is not None:
            self._history.doubt()  # what it grants later is not to count beside a vote that it has given as the other node
            if known is None:
                fields = log_fields("node_twice", node=node)
                text = "%s and %s are one master, which has one vote: a quorum needs independent masters"
                NOTIFIER.post(partial(logger.critical, extra=fields), text, node, voter)
            raise RedisConnectionError(f"it is the same master as {voter}, which has one vote")


def _fields(text: object) -> dict[str, str]:
    """Return the fields of an INFO reply by name."""
    lines = text[:_INFO_LIMIT_BYTES].decode("utf-8", "replace").splitlines() if isinstance(text, bytes) else []
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


class NodeEngine(Engine):
    """The engine of one master. Its leases are votes; ``on_lost`` is called only when the majority is lost."""

    def __init__(self, client: AnyClient, options: ContextOptions, timer: HashedWheelTimer, masters: Masters) -> None:
        self.history: History = History(timer.clock.now, options.trust_new_nodes)
        self.connector: NodeConnector = NodeConnector(client, self.history, masters)
        self.connector.owner = options.owner
        super().__init__(self.connector, options, timer)
        self.node: Node = self.router.renewer.node
        self.leases.report_lost = partial(NOTIFIER.post, log_lost, VOTES_LOST, None)
        self._look_at: float = -math.inf

    def end(self, how: End, error: Exception) -> None:
        super().end(how, error)
        if how is End.FORKED:
            self.history.after_fork_in_child()
            self._look_at = -math.inf

    def look_again(self) -> None:
        """Connect, after a pause: the node may be a master of its own by now."""
        if self.timer.now >= self._look_at:
            self._look_at = self.timer.now + _LOOK_S
            self.node.connect()

    @property
    def is_silent(self) -> bool:
        """True if the connected node is suspected to be dead: further requests would only pile up."""
        return self.node.connected and not self.node.ready
