"""A process's side of its keeper, step by step: who has the session, and what becomes of it."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from tests.direct.opened import on_path, opened
from tests.engine.rig import pair_connection
from tests.keeper.test_program import LONG_S, Served
from tests.keeper.test_record import new_lease
from tests.support.redis_server import RedisServer
from tests.support.tls import TlsFiles
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.engine.direct import path
from wheel_lock.keeper import child, keeping
from wheel_lock.keeper.entries import read_record
from wheel_lock.keeper.keeping import NEXT, Keeping, Phase, Sign
from wheel_lock.keeper.program import MOST_BYTES
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.tls import described, obstacle
from wheel_lock.runtime.ends import End

Call = Callable[[], object]


class Timer:
    """A timer that turns when the test says so."""

    now = 0.0
    stopped = False

    def __init__(self) -> None:
        self.posted: list[Call] = []
        self.alarms: list[Any] = []
        self.watched: dict[Any, Any] = {}

    def post(self, call: Call, domain: object) -> None:
        self.posted.append(call)

    def call_at(self, at: float, call: Callable[[float], object], domain: object) -> Any:
        self.alarms.append(partial(call, at))
        return self.alarms[-1]

    def cancel(self, alarm: Any) -> None:
        if alarm in self.alarms:
            self.alarms.remove(alarm)

    def watch(self, sock: Any, events: int, call: Any, domain: object) -> None:
        self.watched[sock] = call

    def unwatch(self, sock: Any) -> None:
        del self.watched[sock]

    def turn(self) -> None:
        posted, self.posted = self.posted, []
        for call in posted:
            call()


class Server:
    """A server, as a node and its connector are seen: connections to it are socket pairs."""

    capability, declares, server = 0, False, ("host", "1")

    def __init__(self) -> None:
        self.connector = self
        self.down = False
        self.description: dict[str, object] | None = None
        self.ends: list[socket.socket] = []

    def listener(self) -> Server:
        return self

    def describe(self) -> str:
        return "host:1"

    def connect(self, timeout_s: float) -> Any:
        if self.down:
            raise ConnectionRefusedError("nothing listens")
        ours, theirs = socket.socketpair()
        self.ends.append(ours)
        return SimpleNamespace(sock=theirs, description=self.description, after_fork_in_child=theirs.close)


class Rig:
    """One side in single steps, and a keeper in a thread."""

    def __init__(self, served: Served) -> None:
        self.timer, self.served = Timer(), served
        self.servers: list[Server] = []
        self.attempts: list[Call] = []
        self.said: list[str] = []
        address = served.listener.getsockname().decode("latin-1")
        options = SimpleNamespace(
            release_on_crash=address, release_delay_s=0.0, connect_timeout_s=1.0, batch_size=500, release_on_close=True
        )
        self.keeping = Keeping(self.timer, options, self.attempts.append, None, list)  # type: ignore[arg-type]
        self.keeping._warn = lambda why, node=None: self.said.append(f"{node}: {why}" if node else why)  # type: ignore[method-assign]

    def server(self) -> Any:
        self.servers.append(Server())
        return self.servers[-1]

    def connected(self) -> Any:
        """Return a server of which the keeper has been told."""
        server = self.server()
        self.keeping.connected(server)
        self.attempt()
        return server

    def attempt(self) -> None:
        self.attempts.pop(0)()
        self.timer.turn()

    def hear(self) -> None:
        for call in list(self.timer.watched.values()):
            call(0)

    @property
    def lacks(self) -> bool:
        """Whether the keeper is there, and has not got all that it needs."""
        return self.keeping.phase is Phase.KEPT and not self.keeping.complete

    @property
    def sessions(self) -> int:
        return len(set(self.served.keeper._sessions.values()))


@pytest.fixture
def rig(served: Served) -> Iterator[Rig]:
    rig = Rig(served)
    yield rig
    rig.keeping.end(End.CLOSED, ConnectionError())
    while rig.attempts:
        rig.attempt()
    for server in rig.servers:
        for end in server.ends:
            end.close()


def test_no_phase_follows_the_end() -> None:
    assert not [sign for phase, sign in NEXT if phase is Phase.CLOSED]
    assert set(NEXT.values()) == set(Phase)
    assert {sign for _, sign in NEXT} == set(Sign)


def test_the_keeper_gets_what_becomes_due_while_it_is_being_reached(rig: Rig) -> None:
    one, two = rig.server(), rig.server()
    rig.keeping.connected(one)
    rig.keeping.connected(two)
    assert len(rig.attempts) == 1
    rig.attempt()
    assert not rig.keeping.complete
    rig.attempt()
    assert rig.keeping.complete
    assert (len(one.ends), len(two.ends), rig.sessions) == (1, 1, 1)


def test_settings_of_tls_that_the_keeper_cannot_use_keep_no_other_server_from_it(rig: Rig, tmp_path: Path) -> None:
    one, two, authorities = rig.server(), rig.server(), tmp_path / "ca.pem"
    authorities.write_text("none")
    one.description = described(redis.SSLConnection(ssl_ca_certs=str(authorities)), ())
    authorities.unlink()
    rig.keeping.use({one: ("host:1",), two: ("host:2",)})
    rig.attempt()
    assert rig.lacks
    assert len(rig.said) == 1
    assert rig.said[0].startswith("host:1: the keeper cannot use the settings of TLS: [Errno 2] No such file")
    assert str(authorities) in rig.said[0]
    one.description = described(redis.SSLConnection(), ())
    rig.timer.alarms.pop()()
    rig.attempt()
    assert rig.keeping.complete
    assert len(two.ends) == 1


def test_a_server_whose_authorities_are_as_large_as_may_be_is_passed(rig: Rig, tls_files: TlsFiles) -> None:
    one = ssl.PEM_cert_to_DER_cert(tls_files.ca.read_text())
    for data in (one * (65_536 // len(one)), tls_files.ca.read_text() * (65_536 // tls_files.ca.stat().st_size)):
        assert obstacle({"ssl_ca_data": data}, None) is None
        server = rig.server()
        server.description = described(redis.SSLConnection(ssl_ca_data=data), ())
        rig.keeping.connected(server)
        rig.attempt()
        assert rig.keeping.complete


def test_a_server_whose_settings_are_too_long_for_a_message_keeps_no_other_one_from_the_keeper(rig: Rig) -> None:
    one, two = rig.server(), rig.server()
    one.description = {"login": ["x" * MOST_BYTES]}
    rig.keeping.use({one: ("host:1",), two: ("host:2",)})
    rig.attempt()
    assert rig.lacks
    assert rig.said == ["host:1: its settings are too long for a message to the keeper"]
    (session,) = set(rig.served.keeper._sessions.values())
    eventually(lambda: len(session.servers) == 1)


def test_the_session_is_not_touched_while_a_helper_thread_has_it(rig: Rig) -> None:
    server = rig.connected()
    session = rig.keeping._session
    assert session is not None
    heard = rig.timer.watched[session]
    rig.keeping.connected(server)
    assert rig.timer.watched == {}
    session.shutdown(socket.SHUT_RDWR)
    heard(0)  # an event that was read before
    assert session.fileno() >= 0
    rig.attempt()
    assert rig.keeping.phase is Phase.MISSING
    assert len(rig.said) == len(rig.timer.alarms) == 1
    rig.timer.alarms.pop()()
    rig.attempt()
    assert rig.keeping.complete


def test_what_is_closed_while_the_keeper_is_being_reached_is_left_with_nothing(rig: Rig) -> None:
    server = rig.server()
    for _ in range(2):
        rig.keeping.connected(server)
        rig.attempts[0]()
        rig.keeping.end(End.RETIRED, ConnectionError())
        assert rig.keeping.phase is Phase.ABSENT
        rig.attempts.clear()
        rig.timer.turn()
        eventually(lambda: rig.sessions == 0)
        assert [end.recv(1) for end in server.ends] == [b""] * len(server.ends)


def test_one_server_that_is_not_there_keeps_no_other_one_from_the_keeper(rig: Rig) -> None:
    one, two = rig.server(), rig.server()
    one.down = True
    rig.keeping.use({one: ("host:1",), two: ("host:2",)})
    rig.attempt()
    assert rig.said == ["host:1: nothing listens"]
    assert rig.lacks
    assert len(two.ends) == 1
    one.down = False
    rig.timer.alarms.pop()()
    rig.attempt()
    assert rig.keeping.complete
    assert (len(one.ends), len(two.ends)) == (1, 1)
    rig.keeping.use({two: ("host:2",)})
    rig.attempt()
    assert one.ends[0].recv(1) == b""
    two.ends[0].close()
    eventually(lambda: (rig.hear(), rig.lacks)[1])
    rig.timer.alarms.pop()()
    rig.attempt()
    assert rig.keeping.complete
    assert len(two.ends) == 2
    assert len(rig.said) == 1


def test_the_keeper_hears_of_a_server_that_is_not_used_any_more_when_a_thread_can_be_started(rig: Rig) -> None:
    def fails(call: Call) -> None:
        raise RuntimeError("can't start new thread")

    one, two = rig.server(), rig.server()
    rig.keeping.use({one: ("host:1",), two: ("host:2",)})
    rig.attempt()
    launch, rig.keeping._launch = rig.keeping._launch, fails
    rig.keeping.use({two: ("host:2",)})
    rig.timer.alarms.pop()()
    rig.keeping._launch = launch
    assert pause_s(rig) > 0.0
    assert rig.keeping.complete
    assert one.ends[0].recv(1) == b""
    assert (len(two.ends), rig.said) == (1, [])


@pytest.mark.parametrize("said", [b"[]", b"{}", b"\xff", b"[" * 60_000], ids=["list", "no number", "no text", "deep"])
def test_a_keeper_that_says_what_none_says_is_none(rig: Rig, said: bytes) -> None:
    rig.connected()
    (session,) = set(rig.served.keeper._sessions.values())
    assert session.control is not None
    session.control.send(said)
    eventually(lambda: (rig.hear(), rig.keeping.phase is Phase.MISSING)[1])


def test_the_keeper_of_another_user_gets_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "user_of", lambda control: os.geteuid() + 1)
    server = rig.connected()
    assert rig.said == ["what listens there is another user's"]
    assert server.ends == []


def test_a_forked_child_has_a_record_of_its_own(rig: Rig) -> None:
    rig.connected()
    record, session = rig.keeping._record, rig.keeping._session
    assert record is not None
    assert session is not None
    if (pid := os.fork()) == 0:
        rig.keeping.end(End.FORKED, ConnectionError())
        os._exit(
            not (
                rig.keeping._session is None and rig.keeping._record is not record and rig.keeping.phase is Phase.ABSENT
            )
        )
    assert os.waitpid(pid, 0)[1] == 0
    assert read_record(record.file) == []
    assert rig.sessions == 1


def test_a_context_that_was_closed_before_a_fork_is_closed_in_the_child(rig: Rig) -> None:
    rig.keeping.end(End.CLOSED, ConnectionError())
    rig.keeping.end(End.FORKED, ConnectionError())
    assert rig.keeping.phase is Phase.CLOSED
    assert rig.keeping._record is None


def fails(*arguments: object) -> int:
    raise OSError(errno.ENFILE, "Too many open files in system")


def test_memory_for_the_record_is_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", fails)
        rig.keeping._reset()
        rig.keeping.begin([])
        rig.keeping.connected(rig.server())
        rig.timer.alarms.pop()()
        assert len(rig.timer.alarms) == 1
        assert rig.attempts == []
    assert rig.said == ["there is no memory for the record: [Errno 23] Too many open files in system"]
    assert pause_s(rig) > 0.0
    assert rig.keeping.complete
    assert len(rig.said) == 1


def test_what_was_granted_without_memory_for_a_record_is_in_the_one_that_is_made_later(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "LOOK_S", LONG_S)  # the timer's thread does not take over what is on the direct path
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", fails)
        context = LockContext.from_url(redis_server.url, release_on_crash=tmp_path / "nobody")
        held, direct = context.lock("held", timeout=LONG_S), context.lock("direct", timeout=LONG_S)
        held.acquire()
        direct_path = opened(context)
        direct.acquire()
        assert on_path(direct)
        own = context._engine.keeping
        assert own is not None
        assert own._record is None
    with context:
        eventually(lambda: own._record is not None, LONG_S)
        record = own._record
        assert record is not None
        eventually(lambda: [body.split()[1] for _, _, body in read_record(record.file)] == [b"held"])
        context.timer.post(direct_path.take_over, context._engine)
        eventually(lambda: [body.split()[1] for _, _, body in read_record(record.file)] == [b"held", b"direct"])
        held.release()
        direct.release()
        assert read_record(record.file) == []


def test_the_record_is_there_before_a_command_of_any_thread_is_sent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = os.memfd_create, list[int]()

    def another_thread_begins(*arguments: Any) -> int:
        made.append(1)
        if len(made) == 1:
            rig.keeping.begin([])
        return make(*arguments)

    monkeypatch.setattr(os, "memfd_create", another_thread_begins)
    rig.keeping.connected(rig.server())
    assert len(made) < 2


@pytest.mark.parametrize("what", ["begin", "drop"])
def test_a_context_that_is_closed_meanwhile_is_no_failure_of_a_caller(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    reads = iter([rig.keeping._record, None])
    with monkeypatch.context() as patched:
        patched.setattr(Keeping, "_record", property(lambda keeping: next(reads)), raising=False)
        getattr(rig.keeping, what)([])


@pytest.mark.parametrize("what", ["begin", "drop"])
def test_a_forked_child_goes_on_with_what_the_fork_has_interrupted_in_the_parents_record(rig: Rig, what: str) -> None:
    class Forks(dict[Any, Any]):
        def __setitem__(self, key: object, value: object) -> None:
            rig.keeping.end(End.FORKED, ConnectionError())

        def pop(self, *key: object) -> Any:
            rig.keeping.end(End.FORKED, ConnectionError())
            return 0, []

    record = rig.keeping._record
    assert record is not None
    record._slots = Forks()
    getattr(rig.keeping, what)([new_lease(b"a")])
    assert rig.keeping._record is not record


def test_a_node_has_each_name_by_which_others_name_it() -> None:
    client = redis.asyncio.RedisCluster(host="seen", port=1, address_remap=lambda place: ("seen", place[1] + 1))
    connector = ClusterConnector(client)
    assert connector.names_of(("seen", "2")) == ("seen:2",)
    connector._place("inside", "1")
    connector._place("inside", "5")
    assert connector.names_of(("seen", "2")) == ("seen:2", "inside:1")


# Pauses, and what is said


def lose(rig: Rig, server: Server) -> None:
    """Have the keeper lose its latest connection to a server, and this side hear of it."""
    server.ends.pop().close()
    eventually(lambda: (rig.hear(), rig.lacks)[1])


def pause_s(rig: Rig) -> float:
    """Let the pause pass, and make the attempt; return how long the pause was."""
    (alarm,) = rig.timer.alarms
    rig.timer.alarms.clear()
    (until,) = alarm.args
    paused_s = until - rig.timer.now
    rig.timer.now = until
    alarm()
    rig.attempt()
    return float(paused_s)


def test_the_pauses_grow_for_a_server_that_is_lost_again_and_again(rig: Rig) -> None:
    server = rig.connected()
    pauses = []
    for _ in range(8):
        lose(rig, server)
        pauses.append(pause_s(rig))
    assert pauses[-1] > 2.0
    rig.timer.now += 10.0  # for which it has lasted
    lose(rig, server)
    assert pause_s(rig) < 0.1
    assert rig.said == []


def test_the_pauses_grow_for_a_keeper_that_ends_again_and_again(rig: Rig) -> None:
    rig.connected()
    pauses = []
    for _ in range(8):
        assert rig.keeping._session is not None
        rig.keeping._session.shutdown(socket.SHUT_RDWR)
        rig.hear()
        pauses.append(pause_s(rig))
    assert pauses[-1] > 2.0


def test_a_server_that_is_down_delays_no_other_one_that_is_lost(rig: Rig) -> None:
    one, two = rig.server(), rig.server()
    one.down = True
    rig.keeping.use({one: ("host:1",), two: ("host:2",)})
    rig.attempt()
    while pause_s(rig) < 20.0:
        assert rig.lacks
    assert rig.said == ["host:1: nothing listens"]
    lose(rig, two)
    eventually(lambda: (rig.hear(), len(rig.keeping._due) == 2)[1])
    assert pause_s(rig) < 0.1
    assert (len(one.ends), len(two.ends)) == (0, 1)


# What does not wait, and what is left of a session


class Line:
    """The session, as one end sees it: a send that may block is a mistake."""

    def __init__(self) -> None:
        self.blocks, self.sent, self.closed = True, list[Any](), False

    def setblocking(self, blocks: bool) -> None:
        self.blocks = blocks

    def send(self, data: bytes) -> None:
        assert not self.blocks
        self.sent.append(json.loads(data))
        raise BlockingIOError("the keeper is stopped")

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("doubt", [False, True])
def test_a_session_that_is_over_is_not_waited_for(rig: Rig, doubt: bool) -> None:
    line, record = Line(), SimpleNamespace(empty=not doubt, longest_s=7.0)
    attempt = keeping._Attempt(line, record, [], [])  # type: ignore[arg-type]
    rig.keeping._over(attempt)  # of which nothing is wanted any more
    assert line.closed
    assert line.sent == [{"what": "expire", "in_s": 7.0} if doubt else {"what": "end"}]


def test_a_fork_in_an_attempt_leaves_the_child_none_of_its_descriptors(rig: Rig) -> None:
    rig.keeping.connected(rig.connected())
    ours, connection = socket.socketpair()
    (attempt,) = rig.keeping._attempts
    assert attempt.session is not None
    attempt.connection = pair_connection(connection)
    inodes = [os.fstat(end.fileno()).st_ino for end in (attempt.session, connection)]
    if (pid := os.fork()) == 0:
        left = 1
        try:
            rig.keeping.end(End.FORKED, ConnectionError())
            left = sum(fd.stat().st_ino in inodes for fd in Path("/proc/self/fd").iterdir() if fd.exists())
        finally:
            os._exit(left)
    assert os.waitpid(pid, 0)[1] == 0
    for end in (ours, connection):
        end.close()


@pytest.mark.parametrize("step", [Keeping._begin, Keeping._over])
def test_a_fork_between_any_two_lines_leaves_the_child_no_session_of_its_parent(rig: Rig, step: FunctionType) -> None:
    rig.connected()
    session = rig.keeping._session
    assert session is not None
    inode, statuses = os.fstat(session.fileno()).st_ino, set()

    def fork(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not step.__code__ or event == "call":
            return fork if frame.f_code is step.__code__ else None
        if (pid := os.fork()) == 0:
            left = 1
            try:
                rig.keeping.end(End.FORKED, ConnectionError())
                left = sum(fd.stat().st_ino == inode for fd in Path("/proc/self/fd").iterdir() if fd.exists())
            finally:
                os._exit(left)
        statuses.add(os.waitpid(pid, 0)[1])
        return fork

    before = sys.gettrace()
    sys.settrace(fork)
    try:
        rig.connected()
    finally:
        sys.settrace(before)
    assert statuses == {0}


# The keeper of this process


@pytest.fixture
def own_child(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[child._Child]:
    """The child keeper of a parent, whose user was another one; a new one can be started."""
    own, parents = child._Child(), Served()
    own.address = parents.listener.getsockname()

    def start() -> None:
        own.address = rig.served.listener.getsockname()

    def user_of(control: socket.socket) -> int:
        is_parents: bool = control.getpeername() == parents.listener.getsockname()
        return os.geteuid() + is_parents

    monkeypatch.setattr(own, "_start", start)
    monkeypatch.setattr(child, "user_of", user_of)
    yield own
    parents.end()


def test_a_process_whose_user_has_changed_starts_a_keeper_of_its_own(rig: Rig, own_child: child._Child) -> None:
    with own_child.connect() as session:
        assert session.getpeername() == rig.served.listener.getsockname()


def test_the_user_by_whose_rights_a_process_acts_counts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(PermissionError):
        child.connected(rig.served.listener.getsockname())


def test_a_fork_while_a_keeper_is_being_started_does_not_listen_for_it() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        child.CHILD.listener, fd = listener, listener.fileno()
        if (pid := os.fork()) == 0:
            os._exit(os.path.exists(f"/proc/self/fd/{fd}"))
        child.CHILD.listener = None
        assert os.waitpid(pid, 0)[1] == 0
