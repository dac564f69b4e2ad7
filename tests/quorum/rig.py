"""A quorum of three scripted masters on a timer that is turned by hand: see tests/engine/rig.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.rig import NIL, OK, Command, HandTurned, ScriptedConnector, ScriptedServer
from wheel_lock.engine.future import Future
from wheel_lock.lease import NO_OWNER, Lease, Owner
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.observe import LostEvent
from wheel_lock.options import ContextOptions, lock_name, lock_options
from wheel_lock.protocol.resp import lease_args
from wheel_lock.quorum import node
from wheel_lock.quorum.engine import QuorumEngine
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.tokens import new_token

Waiting = Future[Sequence[Lease] | None]


class _Connector(ScriptedConnector):
    """The connector of one of the masters."""

    twin: str | None = None
    owner: str | None = None


class QuorumRig(HandTurned[LostEvent]):
    """An engine of a quorum of three.

    Args:
        connected: Whether the masters are connected to. Where not, ``connect()`` lets them be.
        tick_ms: The tick of the timer.
        options: Settings of the context.
    """

    def __init__(self, *, connected: bool = True, tick_ms: int = 10, **options: Any) -> None:
        super().__init__(tick_ms)
        self._connectors = [_Connector(self.clock) for _ in range(3)]
        connectors: list[Any] = self._connectors
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node, "NodeConnector", lambda client, history, masters: client)
            self.engine = QuorumEngine(connectors, ContextOptions(**options), self.timer)
        for engine in self.engine.engines:
            engine.node._launch = self.launch
            if connected:
                self.timer.post(engine.node.connect)
        self.turn()
        self.launch.slow = True  # a probe of a silent master would be another connection

    def reconnect(self) -> None:
        """Have all masters hang up, and be connected to anew."""
        for server in self.servers:
            server.close()
        self.launch.slow = False
        self.connect()
        self.go_on(0.2, *range(len(self.servers)))

    @property
    def servers(self) -> list[ScriptedServer]:
        """The other ends of the masters' newest connections."""
        return [connector.servers[-1] for connector in self._connectors]

    def go_on(self, seconds: float, *agreeing: int) -> None:
        """Let time pass in which the masters of these numbers grant whatever arrives, and the others say nothing."""
        self._pass(self.now + seconds, lambda: self._let(agreeing))

    def _let(self, agreeing: Sequence[int]) -> None:
        self.turn()
        while [agreed for number in agreeing if (agreed := self.servers[number].agree())]:
            self.turn()

    def say(self, *replies: bytes | None) -> None:
        """Have the first master say the first of these, and so on; None for one that says nothing. Turn."""
        for server, reply in zip(self.servers, replies, strict=False):
            server.say(reply or b"")
        self.turn()

    def commands(self) -> list[list[Command]]:
        """What has arrived at each master since the last call."""
        return [server.take() for server in self.servers]

    def lease(self, timeout: float, owner: Owner = NO_OWNER, **terms: Any) -> QuorumLease:
        """A lease that is not acquired yet."""
        options = lock_options(timeout, **terms)
        key = lock_name("n", b"")
        group = self.engine.group(key, FENCED if options.fencing else EXCLUSIVE, options)
        return QuorumLease("n", lease_args(key, new_token()), group, owner, self._losses.append)

    def begin(self, lease: QuorumLease, *, limit: float | None = None, future: Waiting | None = None) -> Waiting:
        future = Future(lambda: None) if future is None else future
        until = None if limit is None else self.now + limit
        self.post(self.engine.new_wait(lease.options, lease, lease.key, False, True, until, future).begin)
        return future

    def hold(self, timeout: float, *granting: int, **more: Any) -> QuorumLease:
        """A lease that the masters of these numbers have granted, and the others have refused."""
        lease = self.lease(timeout, **more)
        future = self.begin(lease)
        for server in self.servers:
            server.one("SET")
        self.say(*[OK if number in granting else NIL for number in range(3)])
        assert future.result() == (lease,)
        return lease

    def close(self) -> None:
        for engine in self.engine.engines:
            engine.router.end(End.CLOSED, ConnectionAbortedError("the test is over"))
        for connector in self._connectors:
            connector.close()
        super().close()
