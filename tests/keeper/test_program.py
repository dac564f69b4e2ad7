"""The keeper's program in a thread, with clients that send what no process of this library sends."""

from __future__ import annotations

import itertools
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock.keeper import program
from wheel_lock.keeper import server as server_module
from wheel_lock.keeper.burial import Store
from wheel_lock.keeper.crew import Work
from wheel_lock.keeper.entries import REGIONS, Entry
from wheel_lock.keeper.program import VERSION, Keeper, Session
from wheel_lock.keeper.server import Broken, Server, read_replies

HELLO = {"what": "begin", "version": VERSION, "regions": REGIONS, "delay_s": 0.0}
SCRIPT: dict[str, Any] = {"sha1": "f" * 40, "source": "return 1", "keys": [], "arguments": 1, "channel": ""}
SERVER: dict[str, Any] = {"what": "server", "node": 7, "names": [], "scripts": [SCRIPT], "most": 500}
DESCRIPTION: dict[str, Any] = {"host": "h", "port": 1, "ca_file": None, "certificate": None, "key": None}
LONG_S = 30.0

Ends = tuple[socket.socket, socket.socket]


class Served:
    """A keeper in a thread, which ends when its parent, a process of the test's own, has ended and nothing is left."""

    def __init__(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(b"")
        self.listener.listen()
        self.listener.setblocking(False)
        self._parent = subprocess.Popen(["sleep", "3600"])
        self._proof = os.pidfd_open(self._parent.pid)
        self.keeper = Keeper(self.listener, self._proof)
        self._running = Background(self.keeper.run)
        self._clients: list[socket.socket] = []
        self._papers: list[int] = []

    def papers(self) -> list[int]:
        """Return a new proof of this process and a new record, which are there until the end."""
        papers = [os.pidfd_open(os.getpid()), os.memfd_create("record")]
        self._papers += papers
        return papers

    def client(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(LONG_S)
        client.connect(self.listener.getsockname())
        self._clients.append(client)
        return client

    def begun(self, papers: Sequence[int] = ()) -> socket.socket:
        """Return a client whose session has begun, with papers of its own unless these are given."""
        client = self.client()
        begin_session(client, papers or self.papers())
        return client

    def end(self) -> None:
        for client in self._clients:
            client.close()
        self._parent.kill()
        self._parent.wait()
        self._running.result(LONG_S)
        for fd in (self._proof, *self._papers):
            os.close(fd)
        self.listener.close()


@pytest.fixture
def dead() -> Iterator[int]:
    """A pidfd of a process that has ended."""
    process = subprocess.Popen(["true"])
    proof = os.pidfd_open(process.pid)
    process.wait()
    yield proof
    os.close(proof)


def send(client: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    socket.send_fds(client, [message if isinstance(message, bytes) else json.dumps(message).encode()], list(fds))


def begin_session(client: socket.socket, papers: Sequence[int]) -> None:
    send(client, HELLO, papers)
    assert json.loads(client.recv(1 << 16)) == {"version": VERSION}


def end_session(client: socket.socket) -> None:
    """End its session, which has not ended before."""
    send(client, {"what": "end"})
    assert client.recv(1 << 16) == b""


def passed(client: socket.socket, server: dict[str, Any] = SERVER) -> socket.socket:
    """Pass a connection to a server; return its other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        send(client, server, [theirs.fileno()])
    return ours


@pytest.mark.parametrize(
    "message",
    [
        b"{", b"[]", b"{}", b'{"what": "begin"}', b"\xff", {**HELLO, "version": VERSION + 1}, {**HELLO, "regions": []},
        {**HELLO, "delay_s": "soon"},
        {**HELLO, "delay_s": float("inf")}, {**SERVER, "scripts": []}, HELLO,
    ],
)  # fmt: skip
def test_a_message_that_is_none_ends_its_session_and_no_other(served: Served, message: object) -> None:
    papers = served.papers()
    good, bad, another = served.begun(papers), served.client(), served.client()
    send(bad, message, [] if message is HELLO else papers)
    assert bad.recv(1 << 16) == b""
    send(another, {"what": "nothing that is known"})
    begin_session(another, papers)
    end_session(another)
    end_session(good)


@pytest.mark.parametrize(
    "message",
    [b"", b"{", {"what": "nothing"}, HELLO, {**SERVER, "what": "leave"}, {**SERVER, "names": 1}, SERVER],
    ids=["nothing", "none", "unknown", "begun before", "needs none", "no server", "no socket"],
)
def test_no_descriptor_that_is_passed_stays_open_where_the_message_is_refused(served: Served, message: object) -> None:
    client = served.begun()
    if message == {**SERVER, "names": 1}:
        ours, theirs = (end.detach() for end in socket.socketpair())
    else:
        ours, theirs = os.pipe()
    send(client, message, [theirs, theirs])
    os.close(theirs)
    assert select.select([ours], [], [], LONG_S)[0] == [ours]  # all of its other ends are closed
    os.close(ours)


def test_what_is_no_pidfd_proves_nothing(served: Served) -> None:
    reader, writer = os.pipe()
    os.close(writer)  # readable from now on
    client, (_, file) = served.client(), served.papers()
    send(client, HELLO, [reader, file])
    assert client.recv(1 << 16) == b""
    os.close(reader)


def test_the_pidfd_of_another_process_proves_nothing(served: Served, dead: int) -> None:
    if not peer_pidfds():
        pytest.skip("this kernel does not say who has connected")
    _, file = served.papers()
    client = served.begun([dead, file])
    with passed(client, {**SERVER, "scripts": []}) as ours:
        end_session(client)  # so the session was still open
        assert ours.recv(1) == b""


def peer_pidfds() -> bool:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, program._SO_PEERPIDFD))
        except OSError:
            return False
    return True


def test_another_user_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert served.client().recv(1 << 16) == b""


@pytest.mark.parametrize("begun", [False, True], ids=["it has no process", "it can release nothing"])
def test_a_session_ends_with_its_connection(served: Served, begun: bool) -> None:
    client = served.begun() if begun else served.client()
    eventually(lambda: served.keeper._sessions)
    client.close()
    eventually(lambda: not served.keeper._sessions)


def test_an_event_about_another_descriptor_with_the_number_of_a_proof_proves_nothing(
    served: Served, line: Ends
) -> None:
    session = Session(line[0])
    session.proofs, session.record = [os.pidfd_open(os.getpid())], os.memfd_create("record")
    served.keeper._prove(session, session.proofs[0])
    assert not served.keeper._graves
    session.close()


def test_a_new_session_with_a_record_takes_the_place_of_the_old_one_when_it_can_release(served: Served) -> None:
    papers = served.papers()
    old = served.begun(papers)
    with passed(old) as ours:
        new = served.begun(papers)
        with passed(new):
            assert old.recv(1 << 16) == b""
            assert ours.recv(1) == b""
            end_session(new)


def test_a_server_that_is_not_used_any_more_is_left(served: Served) -> None:
    client = served.begun()
    left, used = [passed(client, {**SERVER, "node": node}) for node in range(2)]
    send(client, {"what": "leave", "node": 0})
    send(client, {"what": "leave", "node": 5})  # which it never had
    assert left.recv(1) == b""
    used.close()
    assert json.loads(client.recv(1 << 16)) == {"what": "lost", "node": 1}
    send(client, {"what": "end"})
    left.close()


def test_the_end_of_a_connection_to_the_server_is_reported(served: Served) -> None:
    client = served.begun()
    for _ in range(2):
        passed(client, {**SERVER, "scripts": []}).close()
        assert json.loads(client.recv(1 << 16)) == {"what": "lost", "node": 7}
    send(client, {"what": "end"})


ENTRIES: list[Entry] = [(1, 1000, b"$1\r\na\r\n"), (1, 1000, b"$1\r\nb\r\n")]


@contextmanager
def answering(replies: bytes, **settings: object) -> Iterator[tuple[Server, socket.socket]]:
    """Yield a server that has replied beforehand, and its end of the connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(replies)
        yield Server(theirs, {**SERVER, **settings}), ours


@pytest.mark.parametrize(
    "replies",
    [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"$3\r\na\r\n\r\n", b"*2\r\n:1\r\n-ERR x\r\n", b"-BUSY\r\n", b"*-1\r\n"],
)
def test_a_reply_of_any_kind_is_read_to_its_end(replies: bytes) -> None:
    with answering(2 * replies, most=2) as (server, ours):
        server.release([*ENTRIES, (1, 1000, b"$1\r\nc\r\n")])
        head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n" + b"f" * 40 + b"\r\n$1\r\n0\r\n"
        assert ours.recv(1 << 16) == (head % 5) + b"$1\r\na\r\n$1\r\nb\r\n" + (head % 4) + b"$1\r\nc\r\n"


def test_a_channel_that_is_not_in_the_entry_is_made_of_its_name() -> None:
    with answering(b"*0\r\n", scripts=[{**SCRIPT, "arguments": 3, "channel": "wake:"}]) as (server, ours):
        server.release([(1, 1000, b"$2\r\nab\r\n$1\r\nt\r\n")])
        assert ours.recv(1 << 16).endswith(b"$1\r\n0\r\n$2\r\nab\r\n$1\r\nt\r\n$9\r\nwake:{ab}\r\n")


def test_a_script_that_the_server_has_forgotten_is_sent_as_text() -> None:
    keyed = {**SCRIPT, "keys": [1], "arguments": 2}
    with answering(2 * b"-NOSCRIPT no such\r\n" + 2 * b":1\r\n", scripts=[keyed]) as (server, ours):
        server.release([(1, 1000, b"$1\r\na\r\n$1\r\nb\r\n"), (1, 1000, b"$1\r\na\r\n$1\r\nc\r\n")])
        rest = [b"$1\r\n1\r\n$1\r\n%b\r\n$1\r\na\r\n" % name for name in (b"b", b"c")]
        first, second = [b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + b"f" * 40 + b"\r\n" + words for words in rest]
        text = b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n" + rest[0]  # which the server knows from then on
        assert ours.recv(1 << 16) == first + second + text + second


KEYED = {**SCRIPT, "keys": [0]}
ASKING = b"*1\r\n$6\r\nASKING\r\n"


class Nodes:
    """Nodes of a cluster, by their places, whose replies are written beforehand."""

    def __init__(self, *replies: bytes) -> None:
        self._pairs = [socket.socketpair() for _ in replies]
        self.servers = []
        for number, ((ours, theirs), reply) in enumerate(zip(self._pairs, replies, strict=True)):
            ours.sendall(reply)
            ours.shutdown(socket.SHUT_WR)
            self.servers.append(Server(theirs, {**SERVER, "names": [f"h:{number}"], "scripts": [KEYED]}))

    def close(self) -> list[bytes]:
        """Return what each was sent."""
        sent = []
        for ours, theirs in self._pairs:
            theirs.close()
            sent.append(ours.makefile("rb").read())
            ours.close()
        return sent


def release(store: Store, entries: list[Entry]) -> int:
    """Release entries one server after the other; return how many are left."""
    left: list[int] = []
    store.release(entries, left.append)
    return left.pop()


def at_once(work: Work, pause_s: float, place: Hashable) -> None:
    if not pause_s:
        work()


def test_a_node_that_is_named_is_asked_for_what_is_on_its_way_and_is_the_first_the_next_time() -> None:
    moved = b"+OK\r\n-NOSCRIPT\r\n+OK\r\n:1\r\n"
    nodes = Nodes(b"-ASK 5 h:1\r\n", b":1\r\n" + moved + b":1\r\n:1\r\n")
    store = Store(nodes.servers, at_once)
    assert release(store, ENTRIES) == release(store, ENTRIES) == 0
    first, second = nodes.close()
    assert first.count(b"EVALSHA") == 1
    assert (second.count(b"EVALSHA"), second.count(b"EVAL\r\n"), second.count(ASKING)) == (4, 1, 2)


@pytest.mark.parametrize(
    ("said", "more", "left"),
    [
        (b"h:1", b"+OK\r\n:1\r\n", 0),
        (b":1", b"+OK\r\n:1\r\n", 0),
        (b"?:1", b"+OK\r\n:1\r\n", 0),
        (b"h:1", b"+OK\r\n-MOVED 5 h:1\r\n", 1),
        (b"another:1", b"", 1),
        (b"nonsense", b"", 1),
    ],
)
def test_what_is_at_a_node_without_a_connection_is_left(said: bytes, more: bytes, left: int) -> None:
    nodes = Nodes(b"-MOVED 5 %b\r\n" % said, b":1\r\n" + more)
    assert release(Store(nodes.servers, at_once), ENTRIES) == left
    nodes.close()


def test_what_was_left_at_a_broken_connection_is_looked_for_elsewhere() -> None:
    nodes = Nodes(b"", b":1\r\n:1\r\n:1\r\n-ERR x\r\n")
    store = Store(nodes.servers, at_once)
    assert release(store, ENTRIES) == 0
    assert store.servers == nodes.servers[1:]
    assert release(store, ENTRIES) == 1
    nodes.close()


READONLY = b"READONLY You can't write against a read only replica."


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (b"-NOPERM this user has no permissions\r\n", 2),
        (b"*2\r\n:2\r\n$%d\r\n%b\r\n" % (len(READONLY), READONLY), 1),
        (b"*4\r\n:1\r\n$%d\r\n%b\r\n:2\r\n+OOM\r\n" % (len(READONLY), READONLY), 2),
        (b"*4\r\n:1\r\n:0\r\n:2\r\n:1\r\n", 0),
        (b"*4\r\n:0\r\n+ERR\r\n:3\r\n+ERR\r\n", 0),
        (b"*3\r\n:1\r\n:1\r\n:1\r\n", 0),
    ],
    ids=["the call", "one of it", "all of it", "gone, or another's", "of none", "odd"],
)
def test_what_a_server_refuses_is_not_released(reply: bytes, left: int) -> None:
    with answering(reply + b"*0\r\n") as (server, _):
        store = Store([server], at_once)
        assert release(store, ENTRIES) == left
        assert (store.refused, store.silent) == (left > 0, set())
        assert release(store, ENTRIES) == 0
        assert not store.refused


@pytest.mark.parametrize("reply", [b"", b"?\r\n", b":1", b"$9\r\nabc", b"$x\r\n"])
def test_a_reply_that_is_none_breaks_the_connection(reply: bytes) -> None:
    with answering(reply) as (server, ours):
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(Broken):
            server.release(ENTRIES[:1])


def test_pidfds_are_distinguished_from_other_descriptors(served: Served, dead: int) -> None:
    own, file = served.papers()
    assert program._is_pidfd(own)
    assert program._is_pidfd(dead)
    assert not program._is_pidfd(file)
    assert select.select([dead], [], [], 0)[0] == [dead]


def test_a_server_that_is_silent_is_asked_on_where_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_SILENCE_S", 0.01)
    entries: list[Entry] = [(1, 1000, b"$40000\r\n%040000d\r\n" % number) for number in range(100)]
    with answering(b"", most=1) as (server, ours):
        assert server.release(entries) == {}  # it does not read, so not all has been sent
        assert server.release(entries) == {}
        answers = Background(lambda: answer(ours))
        eventually(lambda: len(server.release(entries)) == len(entries))
        server.close()
        answers.result()


def answer(sock: socket.socket) -> None:
    """Answer to calls, which have to be whole."""
    with sock.makefile("rb") as file:
        while head := file.readline():
            assert head == b"*4\r\n"
            for _ in range(4):
                length = int(file.readline()[1:])
                assert len(file.read(length + 2)) == length + 2
            sock.sendall(b":1\r\n")


def test_a_server_that_answers_slowly_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_EXCHANGE_S", 0.05)
    over = threading.Event()
    with answering(b"+") as (server, ours):

        def drip() -> None:
            while not over.wait(0.005):
                ours.sendall(b"x")

        dripping = Background(drip)
        assert server.release(ENTRIES) == {}
        over.set()
        dripping.result()


@pytest.mark.parametrize(
    "reply",
    [b"+" + b"x" * (1 << 17), b"$2000000\r\n", b"*2000000\r\n", b"*1\r\n" * (1 << 20), b":1" + b"1" * (1 << 17)],
    ids=["line", "string", "array", "nested", "number"],
)
def test_a_reply_that_is_too_long_is_none(reply: bytes) -> None:
    replies = read_replies()
    next(replies)
    with pytest.raises(Broken):
        replies.send(reply)


def test_a_reply_is_read_however_it_is_cut_and_nested() -> None:
    text = b"*2\r\n*1\r\n$3\r\na\r\n\r\n-ERR x\r\n-MOVED 5 h:1\r\n$-1\r\n" + b"*1\r\n" * 10_000 + b":1\r\n"
    for size in (1, 7, len(text)):
        replies, got = read_replies(), []
        next(replies)
        for at in range(0, len(text), size):
            reply = replies.send(text[at : at + size])
            while reply is not None:
                got.append(reply)
                reply = next(replies)
        assert [reply.error for reply in got] == [b"", b"MOVED 5 h:1", b"", b""]
        assert [reply.elements for reply in got] == [[b"a\r\n", b"ERR x"], [], [], [1]]


# What clients do that no process of this library does


@pytest.fixture
def line() -> Iterator[Ends]:
    """Both ends of a client's connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def session_of(control: socket.socket, nodes: int) -> tuple[Session, list[socket.socket]]:
    """Return a session with servers, and their ends."""
    session, ends = Session(control), [socket.socketpair() for _ in range(nodes)]
    session.record = os.memfd_create("record")
    session.servers = {number: Server(theirs, SERVER) for number, (_, theirs) in enumerate(ends)}
    return session, [ours for ours, _ in ends]


def test_a_client_that_ends_while_its_last_message_is_read_is_buried(
    served: Served, monkeypatch: pytest.MonkeyPatch, line: Ends
) -> None:
    ours, theirs = line
    session, (end,) = session_of(ours, 1)
    for node, described in ((8, DESCRIPTION), (9, None)):  # answered, and not understood
        theirs.send(json.dumps({**SERVER, "node": node, "tls": described}).encode())
    theirs.close()
    buried: list[Session] = []

    monkeypatch.setattr(program, "_has_ended", lambda fd: True)
    monkeypatch.setattr(session, "bury", lambda graves: buried.append(session))
    served.keeper._prove(session, -1)
    assert buried == [session]
    assert session.servers.keys() == {0, 8}
    session.close()
    end.close()


@pytest.mark.parametrize("fills", [False, True], ids=["it has ended", "it does not read"])
def test_a_lost_server_of_a_client_that_cannot_be_told_costs_that_server_only(
    served: Served, fills: bool, line: Ends
) -> None:
    ours, theirs = line
    session, ends = session_of(ours, 2)
    if fills:
        with suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 1000)
    else:
        theirs.close()
    served.keeper._lose_server(session, 0)
    assert session.servers.keys() == {1}
    assert (session.control is None) is fills  # so that it begins another session when it reads
    for end in ends:
        end.close()
    session.close()


def test_a_session_begins_before_it_has_servers(served: Served) -> None:
    client = served.client()
    with passed(client) as ours:
        assert client.recv(1 << 16) == b""
        assert ours.recv(1) == b""


def test_one_client_that_sends_without_end_delays_no_other_one(
    served: Served, monkeypatch: pytest.MonkeyPatch, line: Ends
) -> None:
    count = itertools.count()
    monkeypatch.setattr(socket, "recv_fds", lambda *arguments: (next(count) < 10_000 and b'{"what": 1}', [], 0, None))
    session = Session(line[0])
    served.keeper._receive(session)
    assert next(count) == program.MOST_MESSAGES
    session.close()


class Watched(dict[int, Session]):
    """The sessions of a keeper, which counts how often it goes through all of them."""

    rounds = 0

    def values(self) -> Any:
        self.rounds += 1
        return super().values()

    def items(self) -> Any:
        self.rounds += 1
        return super().items()


def test_what_is_done_for_one_client_does_not_grow_with_others(served: Served) -> None:
    watched = served.keeper._sessions = Watched()
    client = served.begun()
    with passed(client) as ours:
        end_session(client)
        assert ours.recv(1) == b""
    assert watched.rounds == 0


def test_a_session_ends_when_what_its_client_has_left_has_expired(served: Served) -> None:
    client = served.begun()
    with passed(client) as ours:
        send(client, {"what": "expire", "in_s": 0.2})
        client.close()
        assert ours.recv(1) == b""
    eventually(lambda: not served.keeper._sessions)
    assert served.keeper._leaving == {}


_UNREAD = """
import os, sys
from wheel_lock.keeper.crew import say
heard, said = os.openpty() if sys.argv[1] == "terminal" else os.pipe()
os.set_blocking(said, False)
try:
    while True:
        os.write(said, bytes(4096))
except BlockingIOError:
    os.set_blocking(said, True)
if sys.argv[1] == "terminal":
    os.read(heard, 64)  # so that it has room for a part of a line
os.dup2(said, 2)
for number in range(10_000):
    say(f"line {number}")
print("goes on", flush=True)
lines = b""
while b"no one read them" not in lines:  # a line may arrive in two parts
    lines += os.read(heard, 1 << 16).lstrip(bytes(1))
print(lines.decode().splitlines()[-1])
"""


@pytest.mark.parametrize("where", ["pipe", "terminal"])
def test_a_keeper_whose_lines_nobody_reads_goes_on_and_says_later_how_many_are_lost(where: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _UNREAD, where], capture_output=True, text=True, timeout=60, check=True
    )
    assert re.fullmatch(r"goes on\nwheel-lock keeper: \d+ lines were left out, because no one read them\n", done.stdout)
