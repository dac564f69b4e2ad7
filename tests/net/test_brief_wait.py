"""When a reply is waited for with the GIL held: after a late one, for a while, and not for a server that is slow."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator

import pytest

from tests.engine.rig import NotingRequest, PairConnection
from wheel_lock.net import brief_wait
from wheel_lock.net.brief_wait import BriefWait
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.protocol.resp import Reply
from wheel_lock.runtime import held_calls
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock

SOON_S, LATE_S = 0.001, 0.01

needs_held_calls = pytest.mark.skipif(held_calls._send is None, reason="this system's calls are not held")


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


def test_after_a_late_reply_the_next_ones_are_waited_for(brief: BriefWait, server: Server) -> None:
    ask(brief, LATE_S)
    for _ in range(1000):
        ask(brief, SOON_S)
    assert server.waits == 100
    ask(brief, LATE_S)
    ask(brief, SOON_S)
    assert server.waits == 101


def test_a_slow_server_costs_three_waits_in_a_thousand_replies(brief: BriefWait, server: Server) -> None:
    server.quick = False
    for _ in range(10_000):
        ask(brief, LATE_S)
    assert 27 <= server.waits <= 30


def test_with_several_unanswered_there_is_no_wait_and_none_is_late(brief: BriefWait, server: Server) -> None:
    ask(brief, LATE_S, unanswered=2)
    ask(brief, SOON_S)
    assert server.waits == 0
    ask(brief, LATE_S)
    ask(brief, SOON_S, unanswered=2)
    ask(brief, SOON_S, unanswered=0)
    assert server.waits == 0
    ask(brief, SOON_S)
    assert server.waits == 1


@needs_held_calls
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


class Repeated(NotingRequest):
    """A request whose reply has it sent again at once, so often."""

    def __init__(self, channel: PipelinedConnection, times: int) -> None:
        super().__init__(b"PING\r\n")
        self._channel = channel
        self._left = times

    def on_reply(self, reply: Reply) -> None:
        super().on_reply(reply)
        if self._left:
            self._left -= 1
            self._channel.send(Repeated(self._channel, self._left))


@pytest.mark.parametrize("connections", [1, 3])
def test_there_is_at_most_one_wait_in_a_turn(monkeypatch: pytest.MonkeyPatch, connections: int) -> None:
    """However often the handler of a reply sends again, and on however many connections: what is due waits meanwhile."""
    clock = ManualClock()
    timer = HashedWheelTimer(clock=clock, threaded=False)
    waited_in: list[int] = []
    replies = 0

    def waiter(sock: socket.socket) -> Callable[[], bool]:
        def wait() -> bool:
            waited_in.append(timer.turns)
            answer(sock)
            return True

        return wait

    def answer(sock: socket.socket) -> None:
        nonlocal replies
        replies += 1
        ends[sock].send(b":1\r\n")

    monkeypatch.setattr(brief_wait, "reply_waiter", waiter)
    ends: dict[socket.socket, socket.socket] = {}
    channels = []
    for _ in range(connections):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        ends[ours] = theirs
        channels.append(PipelinedConnection(timer, PairConnection(ours), None, lambda: None, lambda *_: None))
        channels[-1].send(Repeated(channels[-1], 20))
    timer.turn()
    clock.jump(LATE_S)
    for ours in ends:
        answer(ours)  # late: from here on there are waits
    while replies < 20 * connections:
        timer.turn()
        for ours, channel in zip(ends, channels, strict=True):
            if not select.select([ours], [], [], 0.0)[0] and channel.unanswered:
                answer(ours)
    assert len(waited_in) > 5
    assert len(set(waited_in)) == len(waited_in)
    for channel, theirs in zip(channels, ends.values(), strict=True):
        channel.close()
        theirs.close()


def test_a_socket_that_others_read_is_not_waited_for() -> None:
    class Other(socket.socket):
        def recv(self, size: int, flags: int = 0, /) -> bytes:
            return super().recv(size, flags)

    with Other() as other:
        assert not BriefWait(other, lambda: True).possible
