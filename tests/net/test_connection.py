"""The channel against a list of what was put in: whatever is written, taken out, read and answered, and in what pieces."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.rig import NotingRequest, pair_connection
from wheel_lock.net import brief_wait
from wheel_lock.net.brief_wait import BriefWait
from wheel_lock.net.connection import PipelinedConnection
from wheel_lock.runtime import held_calls
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.testing import ManualClock

PATTERN = bytes(range(251)) * 300  # no two nearby places look alike
ERROR = ConnectionResetError("dropped by the test")


class Piece(NotingRequest):
    """A request of so many bytes, which begin with its number."""

    def __init__(self, number: int, size: int) -> None:
        super().__init__((b"%d:" % number + PATTERN)[:size])
        self.number = number


class Turner:
    """What the channel needs of a timer: the test itself turns."""

    now = 0.0

    def __init__(self) -> None:
        self.handler: Callable[[int], object] | None = None
        self.events = 0
        self.wanted = False

    def watch(self, sock: socket.socket, events: int, handler: Callable[[int], object], domain: object) -> None:
        self.handler, self.events = handler, events

    def unwatch(self, sock: socket.socket) -> None:
        self.handler = None

    def flush_later(self, channel: PipelinedConnection) -> None:
        self.wanted = True

    def first_wait(self) -> bool:
        return True


class SecureSocket:
    """Takes what it is given as a whole or not at all, and wants it again then, as TLS does; some of it may have gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pending: bytes | None = None
        self._gone = 0

    def send(self, data: Any) -> int:
        data = bytes(data)
        if self._pending is not None:
            assert data.startswith(self._pending), "TLS would call that a bad retry"
        self._pending = data
        while self._gone < len(data):
            self._gone += self._sock.send(data[self._gone :])  # or BlockingIOError, which hides how much was sent
        self._pending, self._gone = None, 0
        return len(data)

    def pending(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class ChannelMachine(RuleBasedStateMachine):
    """Requests go in, are taken out, and reach a server that reads and answers as it likes."""

    secure = False

    @initialize(buffer=st.sampled_from([1, 20_000, 200_000]))
    def connect(self, buffer: int) -> None:
        self._buffer = buffer
        self._connect()

    def _connect(self) -> None:
        ours, self.theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._buffer)
        for sock in (ours, self.theirs):
            sock.setblocking(False)
        self.timer = Turner()
        self.lost: list[Exception] = []
        connection: Any = pair_connection(ours)
        if self.secure:
            connection.sock = SecureSocket(ours)
        timer: Any = self.timer
        self.channel = PipelinedConnection(
            timer, connection, None, lambda: None, lambda channel, error: self.lost.append(error)
        )
        self.pieces: list[Piece] = []
        self.inside: list[Piece] = []  # put in and not taken out, in order
        self.taken_out: list[Piece] = []
        self.read = bytearray()
        self.understood = 0  # how many requests the server has read as a whole
        self.answers = 0

    @rule(
        sizes=st.lists(st.sampled_from([12, 40, 100, 500, 5_000, 70_000]), min_size=1, max_size=80), end=st.booleans()
    )
    def put_in(self, sizes: list[int], end: bool) -> None:
        for size in sizes:
            piece = Piece(len(self.pieces), size)
            self.pieces.append(piece)
            self.inside.append(piece)
            self.channel.send(piece)
        if end:
            self.end_the_turn()

    @precondition(lambda self: self.inside)
    @rule(picks=st.lists(st.integers(min_value=0), min_size=1, max_size=20))
    def take_out(self, picks: list[int]) -> None:
        for pick in picks:
            if self.inside:
                piece = self.inside[-1 - pick % len(self.inside)]
                if self.channel.withdraw(piece):
                    self.inside.remove(piece)
                    self.taken_out.append(piece)
                assert not self.channel.withdraw(piece) or piece in self.inside

    @rule()
    def end_the_turn(self) -> None:
        if self.timer.wanted:
            self.timer.wanted = False
            self.channel.flush()

    @rule()
    def be_writable(self) -> None:
        if self.timer.handler is not None and self.timer.events & selectors.EVENT_WRITE:
            self.timer.handler(selectors.EVENT_WRITE)

    @rule(most=st.sampled_from([1, 50, 4_000, 1 << 20]))
    def read_some(self, most: int) -> None:
        while most:
            try:
                data = self.theirs.recv(min(most, 1 << 16))
            except BlockingIOError:
                break
            self.read += data
            most -= len(data)
        expected = b"".join(piece.data for piece in self.inside)
        assert expected.startswith(self.read), "something else, or something out of order, is on the wire"
        total = 0
        self.understood = 0
        for piece in self.inside:
            total += len(piece.data)
            if total > len(self.read):
                break
            self.understood += 1

    @rule(most=st.sampled_from([4_000, 1 << 20]))
    def let_all_arrive(self, most: int) -> None:
        self.end_the_turn()
        while len(self.read) < sum(len(piece.data) for piece in self.inside):
            before = len(self.read)
            self.be_writable()
            self.read_some(most)
            assert len(self.read) > before, "the rest is not written"

    @precondition(lambda self: self.understood > self.answers)
    @rule(count=st.integers(1, 100))
    def answer(self, count: int) -> None:
        for piece in self.inside[self.answers : self.understood][:count]:
            self.theirs.send(b":%d\r\n" % piece.number)
            self.answers += 1
        assert self.timer.handler is not None
        self.timer.handler(selectors.EVENT_READ)
        for place, piece in enumerate(self.inside):
            assert piece.replies == ([piece.number] if place < self.answers else [])

    @precondition(lambda self: len(self.pieces) > 20)
    @rule()
    def drop(self) -> None:
        before = len(self.read)
        unanswered = self.inside[self.answers :]
        on_the_wire = before
        while True:  # what is on its way counts as well
            try:
                on_the_wire += len(self.theirs.recv(1 << 16))
            except BlockingIOError:
                break
        self.channel.drop(ERROR)
        total = 0
        for piece in self.inside:
            began = total < on_the_wire
            total += len(piece.data)
            if piece in unanswered:
                assert piece.breaks == [ERROR]
                if began:
                    assert piece.unsents == 0, "it is on the wire in part"
                elif not self.secure:
                    assert piece.unsents == 1, "nothing of it is on the wire"
            else:
                assert not piece.breaks
        assert self.lost == [ERROR]
        assert self.channel.unanswered == 0
        self.theirs.close()
        self._connect()

    @invariant()
    def removed_handlers_are_not_called(self) -> None:
        for piece in getattr(self, "taken_out", ()):
            assert not piece.replies
            assert not piece.breaks
            assert not piece.unsents

    @invariant()
    def what_is_unanswered_is_counted(self) -> None:
        if getattr(self, "channel", None) is not None:
            assert self.channel.unanswered == len(self.inside) - self.answers
            assert self.channel._out_bytes == sum(map(len, self.channel._out.values()))
            assert self.channel._rest or not self.channel._rest.obj, "what has been written as a whole is kept"

    def teardown(self) -> None:
        if getattr(self, "channel", None) is not None:
            self.channel.close()
            self.theirs.close()


class SecureMachine(ChannelMachine):
    secure = True


@pytest.mark.parametrize("machine", [ChannelMachine, SecureMachine])
def test_whatever_happens_each_reply_goes_to_its_request(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=50))


# When a reply is waited for with the GIL held: after a late one, for a while, and not for a server that is slow


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
    channel = PipelinedConnection(timer, pair_connection(ours), None, lambda: None, lambda *_: None)
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
