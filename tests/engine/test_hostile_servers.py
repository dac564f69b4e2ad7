"""A server that says what none would say, or more than anybody can read, costs the connection on which it does."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from tests.engine.rig import FINE, NIL, OK, NotingRequest, Rig, array, integer, names, pair_connection
from tests.hostile.fuzzing import Listener, wired
from tests.support.background import Background
from tests.support.tls import TlsFiles
from wheel_lock.engine.future import Future
from wheel_lock.lease import State
from wheel_lock.lock_types import FENCED
from wheel_lock.net.connection import PipelinedConnection, PushConnection
from wheel_lock.net.connector import RedisPyConnector, is_fatal
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol.resp import Reply

NONSENSE = [
    *(b"hello\r\n", b"\x00\xff\xfe\r\n", b"\r\n", b"*abc\r\n", b"*99999999999999999999\r\n", b"$-7\r\n"),
    *(b":12a\r\n", b"$3\r\nabcdef\r\n"),
]
HOSTILE = [
    b"*4294967295\r\n",
    b"*100000000\r\n",
    b"%1\r\n*0\r\n:1\r\n",
    b"*1\r\n" * 1000,
    b"*2\r\n:1\r\n" * 1000,
    b"~1\r\n*0\r\n",
    b"+" + b"x" * 70_000,
    b":99999999999999999999\r\n",
    *NONSENSE,
]


def nothing(*arguments: object) -> None: ...


def answered(requests: list[NotingRequest]) -> int:
    return sum(len(request.replies) for request in requests)


def send_all(sock: socket.socket, data: bytes) -> Background[None]:
    """Send from a thread, and go on when the other end hangs up."""

    def send() -> None:
        with suppress(OSError):
            sock.sendall(data)

    return Background(send)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for what in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, what, 1 << 22)
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def asking(
    rig: Rig, sock: socket.socket, count: int = 0
) -> tuple[PipelinedConnection, list[NotingRequest], list[Exception]]:
    """A channel, its requests, which are on the wire, and the errors with which it was lost."""
    asked, lost = [NotingRequest() for _ in range(count)], list[Exception]()
    channel = PipelinedConnection(rig.timer, pair_connection(sock), None, nothing, lambda _, error: lost.append(error))
    for request in asked:
        channel.send(request)
    rig.timer.turn()
    return channel, asked, lost


def drive(rig: Rig, until: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if until():
            return
        rig.timer.turn()
    raise AssertionError("it does not come to an end")


def test_a_flood_of_messages_is_heard_a_part_in_each_turn(rig: Rig, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    heard: list[Reply] = []
    channel = PushConnection(rig.timer, pair_connection(ours), None, nothing, nothing)
    channel.on_push = heard.append
    theirs.settimeout(0.0)
    count = 0
    with suppress(BlockingIOError):
        while count < 20_000:
            theirs.sendall(b":1\r\n*1\r\n:2\r\n")
            count += 2
    most = 0
    while len(heard) < count - 2:
        before = len(heard)
        rig.timer.turn()
        assert len(heard) > before  # of what has been read nothing is forgotten
        most = max(most, len(heard) - before)
    assert most <= 2 * PushConnection.most
    assert heard[:4] == [1, [2], 1, [2]]
    channel.drop(ConnectionAbortedError("the test is over"))


def test_replies_to_no_request_drop_the_connection_at_once(rig: Rig, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    _, _, lost = asking(rig, ours)
    sending = send_all(theirs, b":1\r\n" * 262_144)
    drive(rig, lambda: bool(lost))
    sending.result()
    assert "nothing was asked for" in str(lost[0])


def test_a_very_long_text_is_read_a_part_in_each_turn_and_not_kept(
    rig: Rig, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    channel, asked, _ = asking(rig, ours, 2)
    size = 64 << 20
    sending = send_all(theirs, b"$%d\r\n" % size + b"x" * size + b"\r\n:1\r\n")
    drive(rig, lambda: bool(asked[1].replies))
    sending.result()
    assert [request.replies for request in asked] == [[b"(too long)"], [1]]
    assert channel._reader._reader.len() < 2048
    channel.drop(ConnectionAbortedError("the test is over"))


def secured(tls_files: TlsFiles, ours: socket.socket, theirs: socket.socket) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Both ends, speaking TLS."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tls_files.cert, tls_files.key)
    asking = ssl.create_default_context(cafile=str(tls_files.ca))
    ours.setblocking(True)
    shaking = Background(lambda: serving.wrap_socket(theirs, server_side=True))
    return asking.wrap_socket(ours, server_hostname="localhost"), shaking.result()


def test_what_tls_has_buffered_is_read_in_later_turns(
    rig: Rig, tls_files: TlsFiles, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = secured(tls_files, *pair)
    ours.setblocking(False)
    channel, asked, lost = asking(rig, ours, 6)
    text = b"x" * 900_000
    sending = send_all(theirs, b"$900000\r\n%b\r\n" % text * 6)
    ticks: list[int] = []
    while answered(asked) < 6:
        before = answered(asked)
        rig.timer.turn()
        ticks.append(answered(asked) - before)
        assert not lost
    sending.result()
    assert max(ticks) <= 3  # a turn reads a MiB before what is due, and one behind it
    assert [request.replies for request in asked] == [[text]] * 6
    channel.drop(ConnectionAbortedError("the test is over"))
    theirs.close()


@pytest.mark.parametrize("reply", HOSTILE)
def test_a_hostile_message_costs_the_connection_for_wake_ups(rig: Rig, reply: bytes) -> None:
    held = rig.hold("held", 30.0)
    rig.wakeups.listen(b"c", Listener())
    rig.turn()
    bad = rig.connector.listeners.servers[-1]
    bad.say(reply)
    rig.turn()
    bad.read()
    assert bad.hung_up
    rig.go_on(1.0, rig.agree)
    assert len(rig.connector.listeners.servers) == 2
    assert held.state is State.HELD


@pytest.mark.parametrize(
    "reply",
    [
        b"*4294967295\r\n",
        b"%1\r\n*0\r\n:1\r\n",
        b"*1\r\n" * 100 + b":1\r\n",
        b"+" + b"x" * 70_000,
        b"$12x\r\n",
        b":abc\r\n",
    ],
)
def test_a_hostile_answer_while_connecting_is_no_reason_to_give_up_for_good(reply: bytes) -> None:
    connector = RedisPyConnector(wired([reply]))
    with connector.client(10.0) as client, pytest.raises(redis.exceptions.RedisError, match="is malformed") as raised:
        client.execute_command("ANYTHING")
    assert not is_fatal(raised.value)


def test_answers_while_connecting_are_read() -> None:
    with RedisPyConnector(wired([b"*2\r\n$3\r\nabc\r\n*1\r\n:7\r\n"])).client(10.0) as client:
        assert client.execute_command("ANYTHING") == [b"abc", [7]]
    connector = RedisPyConnector(wired([b"-NOAUTH Authentication required.\r\n"]))
    with connector.client(10.0) as client, pytest.raises(redis.exceptions.AuthenticationError):
        client.execute_command("ANYTHING")


def acquire_again(rig: Rig) -> Future[Any]:
    """Acquire, have the connection break before the reply, and the second attempt sent."""
    attempt = rig.acquire("a")
    rig.reconnect()
    return attempt.future


WRONG_REPLIES: dict[str, tuple[Callable[[Rig], Future[Any]], list[bytes]]] = {
    "acquire": (
        lambda rig: rig.acquire("a").future,
        [b"+QUEUED\r\n", b"$3\r\nYES\r\n", integer(1), array(1, 0), array(2, 0), array("OK"), FINE],
    ),
    "acquire again": (acquire_again, [OK, NIL, integer(1), array(1, 0), array(2, 1), array(1, 1, 1, 1)]),
    "acquire fenced": (lambda rig: rig.acquire("a", kind=FENCED).future, [OK, NIL, FINE, integer(-1), b"$1\r\n5\r\n"]),
    "acquire many": (
        lambda rig: rig.acquire_many(names(3)).future,
        [OK, NIL, integer(1), array(4, 1), array(1, 1, 1, 1), array(1, 7)],
    ),
    "release": (
        lambda rig: rig.release(rig.hold("a")),
        [OK, NIL, FINE, integer(1 << 40), integer(-2), b"$1\r\n1\r\n", b"#t\r\n"],
    ),
    "extend": (
        lambda rig: rig.extend(rig.hold("a"), 5.0, replace=True),
        [OK, NIL, FINE, integer(-3), integer(MAX_TTL_MS + 1), b"$4\r\n5000\r\n"],
    ),
}


@pytest.mark.parametrize("what", WRONG_REPLIES)
def test_a_reply_that_makes_no_sense_decides_nothing_and_it_is_asked_again(what: str) -> None:
    begin, replies = WRONG_REPLIES[what]
    for reply in (*replies, *NONSENSE):
        with Rig() as rig:
            future = begin(rig)
            held = {lease: lease.deadline for lease in rig.held}
            rig.reply(None, reply)
            assert not future.done
            assert {lease: lease.deadline for lease in rig.held} == held
            rig.go_on(0.1, rig.agree)
            assert future.result() in (True, None)
            assert len(rig.held) == {"acquire many": 3, "release": 0}.get(what, 1)
            assert all(rig.is_valid(lease) for lease in rig.held)
            assert rig.losses == []
