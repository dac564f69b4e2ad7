"""When a reply is waited for with the GIL held: after a late one, for a while, and not for a server that is slow."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.engine.rig import NotingRequest, PairConnection
from wheel_lock.net import brief_wait
from wheel_lock.net.brief_wait import BriefWait
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.runtime import held_calls
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock

SOON_S, LATE_S = 0.001, 0.01


class Server:
    """What a wait sees: a server that answers at once, or not."""

    def __init__(self) -> None:
        self.quick = True
        self.waits = 0

    def wait(self) -> bool:
        self.waits += 1
        return self.quick


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(brief_wait, "reply_waiter", lambda sock: server.wait)
    return server


@pytest.fixture
def brief(server: Server) -> Iterator[BriefWait]:
    with socket.socket() as sock:
        yield BriefWait(sock, lambda: True)


def ask(brief: BriefWait, delay_s: float, unanswered: int = 1) -> None:
    """Write once, and read the reply so much later unless a wait has seen it."""
    if not brief.after_write(unanswered, 100.0):
        brief.before_read(100.0 + delay_s)


def test_while_replies_are_quick_there_is_no_wait(brief: BriefWait, server: Server) -> None:
    for _ in range(1000):
        ask(brief, SOON_S)
    assert server.waits == 0


def test_a_slow_server_costs_three_waits_in_a_thousand_replies(brief: BriefWait, server: Server) -> None:
    server.quick = False
    for _ in range(10_000):
        ask(brief, LATE_S)
    assert 27 <= server.waits <= 30


@pytest.mark.skipif(held_calls._send is None, reason="this system's calls are not held")
def test_a_reply_that_is_there_is_read_in_the_turn_of_its_request() -> None:
    clock = ManualClock()
    timer = HashedWheelTimer(clock=clock, threaded=False)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    channel = PipelinedConnection(timer, PairConnection(ours), None, lambda: None, lambda *_: None)
    first, second, third = [NotingRequest(b"PING\r\n") for _ in range(3)]
    channel.send(first)
    timer.turn()
    clock.jump(LATE_S)
    theirs.send(b":1\r\n")
    timer.turn()
    assert first.replies == [1]
    channel.send(second)
    theirs.send(b":2\r\n")  # as quick as can be
    clock.jump(LATE_S)
    channel.flush()
    assert second.replies == [2]
    assert timer.now == clock.now()
    channel.send(third)
    timer.turn()  # nothing comes within the wait
    assert third.replies == []
    theirs.send(b":3\r\n")
    timer.turn()
    assert third.replies == [3]
    channel.close()
    theirs.close()
