"""Grants that count only when replicas have them.

WAIT tells how many replicas have everything that was written on its own connection, and blocks that connection meanwhile.
So acquires get a channel of their own, where nothing else is held up by it, and one WAIT stands for all grants that came
before it. A grant that too few replicas have is taken back: a failover could give the lock to somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.requests.base import CallerRequest
from wheel_lock.errors import LockUnavailable, NotReplicated, WheelLockError, copied
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node, NodeObserver
from wheel_lock.protocol.resp import MalformedReply, Reply, command
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.failures import guarded

Confirmed = Callable[[WheelLockError | None], object]


class _Wait(CallerRequest):
    """One WAIT, for all who have been granted something before."""

    __slots__ = ("_least", "_tell", "_timeout_ms")

    def __init__(self, table: LeaseTable, node: Node, tell: Confirmed) -> None:
        options = table.state.options
        super().__init__(table, node, None, options.response_timeout_s)
        self._least = options.min_replicas
        self._timeout_ms = max(1, round(options.replica_timeout_s * 1000))
        self._tell = tell

    @property
    def repeatable(self) -> bool:
        return False  # on another connection it would be about nothing

    def call(self) -> Command:
        return Command(None, 0, 0, command(b"WAIT", b"%d" % self._least, b"%d" % self._timeout_ms))

    def value_reply(self, reply: Reply) -> None:
        if type(reply) is not int or reply < 0:
            raise MalformedReply(f"{reply!r:.40} is no number of replicas")
        if self.finished:
            return
        self.finish()
        if reply >= self._least:
            self._tell(None)
        else:
            self._tell(NotReplicated(f"Only {reply} replicas have acknowledged the grant, of {self._least} that must"))

    def failed(self, error: WheelLockError) -> None:
        self._tell(error)


def new_node(table: LeaseTable, observer: NodeObserver, connector: Connector, expected_delay_s: float = 0.0) -> Node:
    """Return a node of an engine that reports to ``observer``."""
    state = table.state
    return Node(
        observer, state.timer, connector, state.options, state.counters, state.launch, expected_delay_s=expected_delay_s
    )


class ReplicationBarrier:
    """The channel on which acquires of one node go, and what waits for its replicas. Timer's thread only.

    One WAIT is under way at a time, so nothing waits behind more than one, and the next stands for all that came meanwhile.
    """

    def __init__(self, table: LeaseTable, observer: NodeObserver, connector: Connector) -> None:
        self._table = table
        expected_delay_s = 2 * table.state.options.replica_timeout_s  # by a WAIT ahead, and by one of its own
        self.node = new_node(table, observer, connector, expected_delay_s)
        self.begin_anew()

    def begin_anew(self) -> None:
        """After the death of the thread, or in a forked child: nobody waits."""
        self._granted: list[tuple[object, Confirmed]] = []
        self._asking = False

    def confirm(self, confirmed: Confirmed) -> None:
        """Have ``confirmed()`` told, when enough replicas have all that was granted by now, or why that is not so."""
        if not self._granted and not self._asking:
            self._table.timer.post(
                self._wait, self._table.state
            )  # when all replies that have come at once have been read
        self._granted.append((self.node.pipeline, confirmed))

    def _wait(self) -> None:
        if self._asking or not self._granted:
            return
        granted, self._granted = self._granted, []
        here = [confirmed for channel, confirmed in granted if channel is self.node.pipeline]
        for channel, confirmed in granted:
            if channel is not self.node.pipeline:  # on another connection WAIT would be about nothing
                confirmed(
                    LockUnavailable("The connection that the grant came on has gone before its replicas were asked")
                )
        if here:
            self._asking = True
            _Wait(self._table, self.node, partial(self._notify, here)).start()

    def _notify(self, granted: list[Confirmed], error: WheelLockError | None) -> None:
        self._asking = False
        for confirmed in granted:
            guarded(self._table.state, confirmed, None if error is None else copied(error))
        self._wait()
