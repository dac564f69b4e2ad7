"""A process's side of its keeper, step by step: who has the session, and what becomes of it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio

from tests.keeper.test_program import Served
from tests.support.waiting import eventually
from wheel_lock.keeper import keeping
from wheel_lock.keeper.entries import read_record
from wheel_lock.keeper.keeping import Keeping
from wheel_lock.keeper.phase import NEXT, Phase, Sign
from wheel_lock.net.cluster import ClusterConnector
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
        self.ends: list[socket.socket] = []

    def listener(self) -> Server:
        return self

    def connect(self, timeout_s: float) -> Any:
        if self.down:
            raise ConnectionRefusedError("nothing listens")
        ours, theirs = socket.socketpair()
        self.ends.append(ours)
        return SimpleNamespace(sock=theirs, after_fork_in_child=theirs.close)


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
        self.keeping = Keeping(self.timer, options, self.attempts.append, None)  # type: ignore[arg-type]
        self.keeping._warn = self.said.append  # type: ignore[assignment]

    def server(self) -> Any:
        self.servers.append(Server())
        return self.servers[-1]

    def attempt(self) -> None:
        self.attempts.pop(0)()
        self.timer.turn()

    def hear(self) -> None:
        for call in list(self.timer.watched.values()):
            call(0)

    @property
    def sessions(self) -> int:
        return len(set(self.served.keeper._sessions.values()))


@pytest.fixture
def rig() -> Iterator[Rig]:
    served = Served()
    rig = Rig(served)
    yield rig
    rig.keeping.end(End.CLOSED, ConnectionError())
    while rig.attempts:
        rig.attempt()
    for server in rig.servers:
        for end in server.ends:
            end.close()
    served.end()


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


def test_the_session_is_not_touched_while_a_helper_thread_has_it(rig: Rig) -> None:
    server = rig.server()
    rig.keeping.connected(server)
    rig.attempt()
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
    assert rig.said == ["nothing listens"]
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
    eventually(lambda: (rig.hear(), rig.keeping.phase is Phase.PAUSING)[1])
    rig.timer.alarms.pop()()
    rig.attempt()
    assert rig.keeping.complete
    assert len(two.ends) == 2
    assert len(rig.said) == 1


def test_a_keeper_that_says_what_none_says_is_none(rig: Rig) -> None:
    rig.keeping.connected(rig.server())
    rig.attempt()
    (session,) = set(rig.served.keeper._sessions.values())
    assert session.control is not None
    session.control.send(b"[]")
    eventually(lambda: (rig.hear(), rig.keeping.phase is Phase.MISSING)[1])


def test_the_keeper_of_another_user_gets_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "user_of", lambda control: os.getuid() + 1)
    server = rig.server()
    rig.keeping.connected(server)
    rig.attempt()
    assert rig.said == ["what listens there is another user's"]
    assert server.ends == []


def test_a_forked_child_has_a_record_of_its_own(rig: Rig) -> None:
    rig.keeping.connected(rig.server())
    rig.attempt()
    record, session = rig.keeping._record, rig.keeping._session
    assert record is not None
    assert session is not None
    if (pid := os.fork()) == 0:
        rig.keeping.end(End.FORKED, ConnectionError())
        os._exit(not (rig.keeping._session is rig.keeping._record is None and rig.keeping.phase is Phase.ABSENT))
    assert os.waitpid(pid, 0)[1] == 0
    assert read_record(record.file) == []
    assert rig.sessions == 1


def test_a_node_has_each_name_by_which_others_name_it() -> None:
    client = redis.asyncio.RedisCluster(host="seen", port=1, address_remap=lambda place: ("seen", place[1] + 1))
    connector = ClusterConnector(client)
    assert connector.names_of(("seen", "2")) == ("seen:2",)
    connector._place("inside", "1")
    connector._place("inside", "5")
    assert connector.names_of(("seen", "2")) == ("seen:2", "inside:1")
