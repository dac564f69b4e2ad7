"""The keeper's program in a thread, with clients that send what no process of this library sends."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.waiting import eventually
from wheel_lock.keeper import program
from wheel_lock.keeper.entries import REGIONS, Entry
from wheel_lock.keeper.program import VERSION, Broken, Keeper, Server, Session, Store

HELLO = {"what": "begin", "version": VERSION, "regions": REGIONS, "delay_s": 0.0}
SCRIPT: dict[str, Any] = {"sha1": "f" * 40, "source": "return 1", "keys": [], "arguments": 1, "channel": ""}
SERVER: dict[str, Any] = {"what": "server", "node": 7, "names": [], "scripts": [SCRIPT], "most": 500}
LONG_S = 30.0


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
        self._thread = threading.Thread(target=self.keeper.run)
        self._thread.start()
        self._clients: list[socket.socket] = []

    def client(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.settimeout(LONG_S)
        client.connect(self.listener.getsockname())
        self._clients.append(client)
        return client

    def end(self) -> None:
        for client in self._clients:
            client.close()
        self._parent.kill()
        self._parent.wait()
        self._thread.join(LONG_S)
        assert not self._thread.is_alive()
        os.close(self._proof)
        self.listener.close()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()


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


def pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    return reader, writer


@pytest.mark.parametrize(
    "message",
    [
        b"{", b"[]", b"{}", b'{"what": "begin"}', b"\xff", {**HELLO, "version": VERSION + 1}, {**HELLO, "regions": []},
        {**HELLO, "delay_s": "soon"}, {**SERVER, "scripts": []}, HELLO,
    ],
)  # fmt: skip
def test_a_message_that_is_none_ends_its_session_and_no_other(served: Served, message: object) -> None:
    good, file, proof = served.client(), os.memfd_create("record"), os.pidfd_open(os.getpid())
    try:
        send(good, HELLO, [proof, file])
        assert json.loads(good.recv(1 << 16)) == {"version": VERSION}
        bad = served.client()
        send(bad, message)
        assert bad.recv(1 << 16) == b""
        with served.client() as another:
            send(another, {"what": "nothing that is known"})
            send(another, HELLO, [proof, file])
            assert json.loads(another.recv(1 << 16)) == {"version": VERSION}
            send(another, {"what": "end"})
            assert another.recv(1 << 16) == b""
        send(good, {"what": "end"})
        assert good.recv(1 << 16) == b""
    finally:
        os.close(file)
        os.close(proof)


def test_what_is_no_pidfd_proves_nothing(served: Served) -> None:
    reader, writer = pipe()
    os.close(writer)  # readable from now on
    file = os.memfd_create("record")
    client = served.client()
    send(client, HELLO, [reader, file])
    assert client.recv(1 << 16) == b""
    os.close(reader)
    os.close(file)


def test_the_pidfd_of_another_process_proves_nothing(served: Served, dead: int) -> None:
    if not peer_pidfds():
        pytest.skip("this kernel does not say who has connected")
    file, client = os.memfd_create("record"), served.client()
    send(client, HELLO, [dead, file])
    assert json.loads(client.recv(1 << 16)) == {"version": VERSION}
    ours, theirs = socket.socketpair()
    send(client, {**SERVER, "scripts": []}, [theirs.fileno()])
    theirs.close()
    send(client, {"what": "end"})
    assert client.recv(1 << 16) == b""  # so the session was still open
    assert ours.recv(1) == b""
    ours.close()
    os.close(file)


def peer_pidfds() -> bool:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, program._SO_PEERPIDFD))
        except OSError:
            return False
    return True


def test_another_user_is_not_served(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    assert served.client().recv(1 << 16) == b""


def test_a_session_without_a_process_ends_with_its_connection(served: Served) -> None:
    client = served.client()
    eventually(lambda: len(served.keeper._sessions) == 1)
    client.close()
    eventually(lambda: not served.keeper._sessions)


def test_a_session_that_can_release_nothing_ends_with_its_connection(served: Served) -> None:
    file, proof, client = os.memfd_create("record"), os.pidfd_open(os.getpid()), served.client()
    send(client, HELLO, [proof, file])
    client.recv(1 << 16)
    client.close()
    eventually(lambda: not served.keeper._sessions)
    os.close(file)
    os.close(proof)


def test_an_event_about_another_descriptor_with_the_number_of_a_proof_proves_nothing(served: Served) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session = Session(ours)
    session.proofs, session.record = [os.pidfd_open(os.getpid())], os.memfd_create("record")
    served.keeper._prove(session, session.proofs[0])
    assert served.keeper._burials == []
    session.close()
    theirs.close()


def test_a_new_session_with_a_record_takes_the_place_of_the_old_one_when_it_can_release(served: Served) -> None:
    file, proof, clients = os.memfd_create("record"), os.pidfd_open(os.getpid()), [served.client(), served.client()]
    ends = [socket.socketpair() for _ in clients]
    for client, (_, theirs) in zip(clients, ends, strict=True):
        send(client, HELLO, [proof, file])
        assert json.loads(client.recv(1 << 16)) == {"version": VERSION}
        send(client, SERVER, [theirs.fileno()])
        theirs.close()
    assert clients[0].recv(1 << 16) == b""
    assert ends[0][0].recv(1) == b""
    send(clients[1], {"what": "end"})
    assert clients[1].recv(1 << 16) == b""
    for ours, _ in ends:
        ours.close()
    os.close(file)
    os.close(proof)


def test_a_server_that_is_not_used_any_more_is_left(served: Served) -> None:
    file, proof, client = os.memfd_create("record"), os.pidfd_open(os.getpid()), served.client()
    send(client, HELLO, [proof, file])
    client.recv(1 << 16)
    ends = [socket.socketpair() for _ in range(2)]
    for node, (_, theirs) in enumerate(ends):
        send(client, {**SERVER, "node": node}, [theirs.fileno()])
        theirs.close()
    send(client, {"what": "leave", "node": 0})
    send(client, {"what": "leave", "node": 5})  # which it never had
    assert ends[0][0].recv(1) == b""
    ends[1][0].close()
    assert json.loads(client.recv(1 << 16)) == {"what": "lost", "node": 1}
    send(client, {"what": "end"})
    ends[0][0].close()
    os.close(file)
    os.close(proof)


def test_the_end_of_a_connection_to_the_server_is_reported(served: Served) -> None:
    file, proof, client = os.memfd_create("record"), os.pidfd_open(os.getpid()), served.client()
    send(client, HELLO, [proof, file])
    client.recv(1 << 16)
    for _ in range(2):
        ours, theirs = socket.socketpair()
        send(client, {**SERVER, "scripts": []}, [theirs.fileno()])
        theirs.close()
        ours.close()
        assert json.loads(client.recv(1 << 16)) == {"what": "lost", "node": 7}
    send(client, {"what": "end"})
    os.close(file)
    os.close(proof)


@pytest.mark.parametrize(
    "replies",
    [b"+OK\r\n", b":1\r\n", b"$-1\r\n", b"$3\r\na\r\n\r\n", b"*2\r\n:1\r\n-ERR x\r\n", b"-BUSY\r\n", b"*-1\r\n"],
)
def test_a_reply_of_any_kind_is_read_to_its_end(replies: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = Server(theirs, {**SERVER, "most": 2})
        entries = [(1, 1000, b"$1\r\na\r\n"), (1, 1000, b"$1\r\nb\r\n"), (1, 1000, b"$1\r\nc\r\n")]
        ours.sendall(2 * replies)
        server.release(entries)
        head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n" + b"f" * 40 + b"\r\n$1\r\n0\r\n"
        assert ours.recv(1 << 16) == (head % 5) + b"$1\r\na\r\n$1\r\nb\r\n" + (head % 4) + b"$1\r\nc\r\n"


def test_a_channel_that_is_not_in_the_entry_is_made_of_its_name() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = Server(theirs, {**SERVER, "scripts": [{**SCRIPT, "arguments": 3, "channel": "wake:"}]})
        ours.sendall(b"*0\r\n")
        server.release([(1, 1000, b"$2\r\nab\r\n$1\r\nt\r\n")])
        assert ours.recv(1 << 16).endswith(b"$1\r\n0\r\n$2\r\nab\r\n$1\r\nt\r\n$9\r\nwake:{ab}\r\n")


def test_a_script_that_the_server_has_forgotten_is_sent_as_text() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keyed = {**SCRIPT, "keys": [1], "arguments": 2}
        server = Server(theirs, {**SERVER, "scripts": [keyed]})
        ours.sendall(2 * b"-NOSCRIPT no such\r\n" + 2 * b":1\r\n")
        server.release([(1, 1000, b"$1\r\na\r\n$1\r\nb\r\n"), (1, 1000, b"$1\r\na\r\n$1\r\nc\r\n")])
        rest = [b"$1\r\n1\r\n$1\r\n%b\r\n$1\r\na\r\n" % name for name in (b"b", b"c")]
        first, second = [b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n" + b"f" * 40 + b"\r\n" + words for words in rest]
        text = b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n" + rest[0]  # which the server knows from then on
        assert ours.recv(1 << 16) == first + second + text + second


KEYED = {**SCRIPT, "keys": [0]}
ENTRIES: list[Entry] = [(1, 1000, b"$1\r\na\r\n"), (1, 1000, b"$1\r\nb\r\n")]
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


def test_a_node_that_is_named_is_asked_for_what_is_on_its_way_and_is_the_first_the_next_time() -> None:
    moved = b"+OK\r\n-NOSCRIPT\r\n+OK\r\n:1\r\n"
    nodes = Nodes(b"-ASK 5 h:1\r\n", b":1\r\n" + moved + b":1\r\n:1\r\n")
    store = Store(nodes.servers)
    assert store.release(ENTRIES) == store.release(ENTRIES) == 0
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
    assert Store(nodes.servers).release(ENTRIES) == left
    nodes.close()


def test_what_was_left_at_a_broken_connection_is_looked_for_elsewhere_the_next_time() -> None:
    nodes = Nodes(b"", b":1\r\n:1\r\n-ERR x\r\n")
    store = Store(list(nodes.servers))
    assert store.release(ENTRIES) == 1
    assert store.servers == nodes.servers[1:]
    assert store.release(ENTRIES) == 0
    nodes.close()


@pytest.mark.parametrize("reply", [b"", b"?\r\n", b":1", b"$9\r\nabc", b"$x\r\n"])
def test_a_reply_that_is_none_breaks_the_connection(reply: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(reply)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(Broken):
            Server(theirs, {**SERVER, "most": 2}).release([(1, 1000, b"$1\r\na\r\n")])


def test_pidfds_are_distinguished_from_other_descriptors(dead: int) -> None:
    own, (reader, writer) = os.pidfd_open(os.getpid()), pipe()
    try:
        assert program._is_pidfd(own)
        assert program._is_pidfd(dead)
        assert not program._is_pidfd(reader)
        assert select.select([dead], [], [], 0)[0] == [dead]
    finally:
        for fd in (own, reader, writer):
            os.close(fd)
