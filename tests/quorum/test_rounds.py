"""The rounds of an acquire of a quorum: what ends them, on a clock moved by hand."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import redis

from tests.engine.rig import NIL, OK, agreement, array, breaking, failure
from tests.quorum.rig import QuorumRig
from wheel_lock.engine.future import Future
from wheel_lock.errors import ContextClosed, LossReason, TooManyLocks, WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.quorum.lease import Majority
from wheel_lock.quorum.node import History, Masters, NodeConnector

RESPONSE_S = 2.0
pytestmark = pytest.mark.rig(response_timeout_s=RESPONSE_S)


def say_to_all(rig: QuorumRig, reply: bytes, number: int = 3) -> None:
    """Answer the one acquire that each master, or each of the first ones, has got."""
    for server in rig.servers[:number]:
        for command in server.take():
            if command.what in ("SET", "acquire"):
                server.say(reply)
    rig.turn()


def waiting(rig: QuorumRig, **more: Any) -> Future[Sequence[Lease] | None]:
    """A caller that waits: its first round was refused."""
    future = rig.begin(rig.lease(1.0), **more)
    say_to_all(rig, NIL)
    assert rig.engine.stats().waiting == 1
    return future


def test_one_that_waits_fails_when_a_stall_lasts(rig: QuorumRig) -> None:
    future = waiting(rig, limit=10.0)
    rig.go_on(RESPONSE_S - 0.1)
    assert not future.done
    rig.go_on(2.0)
    failure(future, WheelLockError, "Only 0 of 3 nodes answered")


def test_a_grant_during_which_the_process_stands_still_is_a_lost_lock(
    rig: QuorumRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = Majority.grant

    def grant(*arguments: Any) -> None:
        rig.clock.jump(2.0)
        granted(*arguments)

    monkeypatch.setattr(Majority, "grant", grant)
    lease = rig.lease(1.0)
    future = rig.begin(lease)
    say_to_all(rig, OK)
    assert future.result() == (lease,)
    assert not lease.is_valid(rig.now)
    rig.go_on(0.1)
    assert [event.reason for event in rig.losses] == [LossReason.NOT_CONFIRMED]


@pytest.mark.parametrize("how", ["close", "stop"])
@pytest.mark.parametrize("rounds", ["in the first round", "in a later round"])
def test_the_end_of_the_context_is_what_ends_an_acquire(rig: QuorumRig, how: str, rounds: str) -> None:
    future = rig.begin(rig.lease(30.0)) if rounds == "in the first round" else waiting(rig)
    if how == "close":
        rig.ask(lambda closed: rig.engine.close(1.0, closed))
    else:
        rig.timer.stop()
        rig.turn()
    failure(future, ContextClosed)
    assert not rig.engine.in_use


def test_a_node_that_is_another_one_too_is_looked_at_with_pauses(rig: QuorumRig) -> None:
    future = waiting(rig, limit=10.0)
    doubled: Any = rig.engine.engines[0].connector
    doubled.refusal = ConnectionRefusedError("it is the same master")
    doubled.twin = "elsewhere"
    rig.servers[0].close()
    rig.launch.slow = False
    rig.go_on(0.1)
    before, refusals = doubled.attempts, {"SET": NIL, "acquire": array(1000)}
    for _ in range(100):
        rig.go_on(0.03)
        for server in rig.servers[1:]:
            for command in server.take():
                server.say(refusals.get(command.what) or agreement(command))
    assert not future.done
    assert before < doubled.attempts <= before + 4


class Undeliverable(Future[Any]):
    """The result of a task whose event loop is closed."""

    @property
    def abandoned(self) -> bool:
        return True


def test_a_task_of_a_closed_loop_has_no_more_rounds(rig: QuorumRig) -> None:
    future = waiting(rig, future=Undeliverable(lambda: None))
    rig.commands()
    rig.go_on(5.0)
    assert rig.commands() == [[], [], []]
    assert not future.done
    assert not rig.engine.in_use


@pytest.mark.parametrize("timeout", [0.2, 30.0])
def test_a_first_connection_may_take_its_time_however_short_the_timeout(timeout: float) -> None:
    with QuorumRig(connected=False) as rig:
        lease = rig.lease(timeout)
        future = rig.begin(lease)
        rig.go_on(1.8)
        rig.connect()
        for server in rig.servers:
            server.one("SET")
        rig.say(OK, OK, OK)
        assert future.result() == (lease,)
        assert not rig.engine.counters.lost


def test_a_vote_that_fails_when_it_has_been_given_up_costs_no_other_lease(rig: QuorumRig) -> None:
    kept = rig.hold(6.0, 0, 1, 2)
    rig.begin(rig.lease(6.0))
    say_to_all(rig, NIL, 2)
    with breaking(type(EXCLUSIVE), "parse_acquire"):
        rig.say(None, None, OK)
    assert kept.is_valid(rig.now)


def test_groups_live_as_long_as_their_leases() -> None:
    with QuorumRig(renewal_slack=0.0) as rig:
        kept = rig.hold(10.0, 0, 1, 2)
        for number in range(600):
            lease = rig.hold(20.0 + number / 1000, 0, 1, 2)
            rig.ask(partial(rig.engine.release, lease))
            for server in rig.servers:
                server.agree()
            rig.turn()
        del lease
        rig.go_on(1.0, 0, 1, 2)
        gc.collect()
        assert len(rig.engine.router.groups) <= 2
        assert max(len(engine.router.renewer._groups) for engine in rig.engine.engines) <= 300
        assert kept.group is rig.engine.group(b"n", EXCLUSIVE, kept.options)
        rig.timer._forked()
        assert not kept.is_valid(rig.now)
        assert not any(vote.live is not None for vote in kept.votes)
        assert rig.engine.group(b"n", EXCLUSIVE, kept.options).alive


def test_a_vote_that_comes_late_is_asked_for_as_long_as_there_are_renewals_and_no_other_lock_beyond_max_held() -> None:
    with QuorumRig(max_held=1) as rig:
        rig.hold(3.0, 0, 1, max_renewals=1)
        rig.go_on(1.1, 0, 1)
        rig.servers[2].one("SET")
        rig.servers[2].say(NIL)
        rig.go_on(1.5, 0, 1)
        failure(rig.begin(rig.lease(3.0)), TooManyLocks)
        assert rig.servers[2].take() == []


def test_the_engines_of_a_retired_context_hang_up(rig: QuorumRig) -> None:
    rig.post(rig.engine.retire)
    rig.go_on(1.0, 0, 1, 2)
    rig.commands()
    assert all(server.hung_up for server in rig.servers)


def test_one_that_others_hold_the_lock_against_is_refused_when_its_time_is_up(rig: QuorumRig) -> None:
    future = waiting(rig, limit=0.5)
    while not future.done:
        rig.go_on(0.05)
        for server in rig.servers:
            for command in server.take():
                server.say({"SET": NIL, "acquire": array(300)}.get(command.what, agreement(command)))
    assert future.result() is None


@pytest.mark.parametrize("writes", [False, True])
def test_silent_masters_are_waited_for_no_longer_than_the_caller_waits(rig: QuorumRig, writes: bool) -> None:
    future = rig.begin(rig.lease(30.0, fencing=writes), limit=0.5)
    if writes:
        rig.turn()
        for server in rig.servers:
            server.agree()
    rig.go_on(0.52)
    assert future.done


# What a connection to a master says about it: a restart, and that it is another node of the quorum, too


RUN_ID = "0123456789abcdef" * 2 + "01234567"
OTHER = RUN_ID[::-1]


class Master:
    """What is asked, and answers, as a connection of redis-py."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.error: Exception | None = None

    def send_command(self, *words: str) -> None:
        assert words == ("INFO", "server")

    def read_response(self) -> bytes:
        if self.error is not None:
            raise self.error
        return f"run_id:{self.run_id}\r\nuptime_in_seconds:1000\r\n".encode()


class Node:
    """A node of a quorum, and what it connects to."""

    def __init__(self, masters: Masters, port: int) -> None:
        self.history = History(lambda: 5000.0, trusts_new=True)
        self.connector = NodeConnector(redis.Redis(port=port), self.history, masters)

    def connect(self, master: Any) -> None:
        self.connector._check(master)


@pytest.fixture
def nodes() -> tuple[Node, Node]:
    masters = Masters()
    return Node(masters, 1), Node(masters, 2)


def test_a_master_at_two_addresses_has_one_vote(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.connect(Master(RUN_ID))
    with pytest.raises(redis.ConnectionError, match="which has one vote"):
        second.connect(Master(RUN_ID))
    assert (first.connector.twin, second.connector.twin) == (None, "localhost:1")
    assert second.history.empty_since == 5000.0  # what it has granted as this node does not count
    second.connect(Master(OTHER))
    assert second.connector.twin is None


def test_an_address_that_another_server_has_got_is_free_for_that(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.connect(Master(RUN_ID))
    first.connect(Master(OTHER))
    second.connect(Master(RUN_ID))  # it has moved
    assert second.connector.twin is None


@pytest.mark.parametrize("run_id", ["", "n/a", "0" * 40])
def test_an_id_that_is_none_makes_no_two_masters_one_and_each_connection_may_follow_a_restart(
    nodes: tuple[Node, Node], run_id: str
) -> None:
    for node in nodes:
        node.connect(Master(run_id))
    assert nodes[0].history.empty_since > 0.0


def test_a_master_that_is_busy_is_asked_again_and_has_not_restarted(nodes: tuple[Node, Node]) -> None:
    master = Master(RUN_ID)
    nodes[0].connect(master)
    master.error = redis.ResponseError("BUSY Redis is busy running a script.")
    with pytest.raises(redis.ConnectionError, match="BUSY"):
        nodes[0].connect(master)
    assert nodes[0].history.empty_since < 5000.0
