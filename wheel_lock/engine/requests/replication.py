"""Replication: grants that count only when enough replicas have them.

WAIT returns the number of replicas that have everything written on its connection, and blocks that connection meanwhile.
So acquires have a connection of their own, and one WAIT covers all grants before it. A grant that too few replicas have is
revoked: after a failover another owner could acquire the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import LockUnavailable, NotReplicated, WheelLockError, copied
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node, NodeObserver
from wheel_lock.protocol.resp import MalformedReply, Reply, command
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.ends import ANEW, End
from wheel_lock.runtime.failures import guarded

Confirmed = Callable[[WheelLockError | None], object]


class _Wait(CallerRequest):
    """One WAIT for all grants before it. Calls ``done`` with None, or with the error."""

    __slots__ = ("_done", "_least", "_timeout_ms")

    def __init__(self, table: LeaseTable, node: Node, done: Confirmed) -> None:
        options = table.state.options
        super().__init__(table, node, None)
        self._least = options.min_replicas
        self._timeout_ms = max(1, round(options.replica_timeout_s * 1000))
        self._done = done

    @property
    def repeatable(self) -> bool:
        return False  # on another connection it would cover no grant

    def call(self) -> Command:
        return Command(None, 0, 0, command(b"WAIT", b"%d" % self._least, b"%d" % self._timeout_ms))

    def value_reply(self, reply: Reply) -> None:
        if type(reply) is not int or reply < 0:
            raise MalformedReply(f"{reply!r:.40} is no number of replicas")
        if self.finished:
            return
        self.finish()
        if reply >= self._least:
            self._done(None)
        else:
            self._done(NotReplicated(f"Only {reply} replicas have acknowledged the grant, of {self._least} that must"))

    def failed(self, error: WheelLockError) -> None:
        self._done(error)


def new_node(
    table: LeaseTable,
    observer: NodeObserver,
    connector: Connector,
    pipeline: Callable[..., PipelinedConnection] = PipelinedConnection,
    expected_delay_s: float = 0.0,
) -> Node:
    """Return a node of an engine that reports to ``observer``. The arguments are those of its class."""
    state, timer = table.state, table.timer
    return Node(observer, timer, connector, state.options, state.counters, state.launch, pipeline, expected_delay_s)


class ReplicationBarrier:
    """The connection for acquires of one node, and the grants that wait for its replicas. Timer's thread only.

    One WAIT is in flight at a time, so no grant waits for more than two: the next one covers all that came meanwhile.
    """

    def __init__(self, table: LeaseTable, observer: NodeObserver, connector: Connector) -> None:
        self._table = table
        expected_delay_s = 2 * table.state.options.replica_timeout_s  # the WAIT in flight, and the next one
        self.node: Node = new_node(table, observer, connector, expected_delay_s=expected_delay_s)
        self._reset()

    def end(self, how: End, error: Exception) -> None:
        """End the connection, and forget all grants if that begins anew."""
        self.node.end(how, error)
        if how in ANEW:
            self._reset()

    def _reset(self) -> None:
        self._granted: list[tuple[object, Confirmed]] = []
        self._waiting = False

    def confirm(self, confirmed: Confirmed) -> None:
        """Call ``confirmed()`` with None when enough replicas have all grants so far, else with the error."""
        if not self._granted and not self._waiting:
            self._table.timer.post(self._wait, self._table.state)  # after all replies of this turn
        self._granted.append((self.node.pipeline, confirmed))

    def _wait(self) -> None:
        if self._waiting or not self._granted:
            return
        granted, self._granted = self._granted, []
        here = [confirmed for pipeline, confirmed in granted if pipeline is self.node.pipeline]
        for pipeline, confirmed in granted:
            if pipeline is not self.node.pipeline:  # a WAIT on another connection does not cover the grant
                text = "The connection that the grant came on has gone before its replicas were asked"
                confirmed(LockUnavailable(text))
        if here:
            self._waiting = True
            _Wait(self._table, self.node, partial(self._notify, here)).start()

    def _notify(self, granted: list[Confirmed], error: WheelLockError | None) -> None:
        self._waiting = False
        for confirmed in granted:
            guarded(self._table.state, confirmed, None if error is None else copied(error))
        self._wait()
