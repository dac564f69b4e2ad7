"""Acquires and releases: how they end, what is sent again, and that no grant is left behind without a waiting caller."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.rig import BUSY, NIL, OK, TAKEN, Rig, agreement, array, error, failure, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.acquire_all import AcquireAll
from wheel_lock.engine.requests.adopt import Adopt, Adoption, AdoptMany
from wheel_lock.engine.requests.execution import BOTH, EARLIER, LATEST, NONE, NOT_EXECUTED, SENT, Execution
from wheel_lock.engine.waiting.many import MultiLockWaiter
from wheel_lock.errors import (
    ContextClosed,
    InvalidHandoff,
    LockNotAcquired,
    LockServerError,
    LockTimeout,
    LockUnavailable,
    LossReason,
    TooManyLocks,
    WheelLockError,
)
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.replies import OTHER_FENCE
from wheel_lock.options import lock_options
from wheel_lock.protocol.handoff import Handoff
from wheel_lock.protocol.resp import MalformedReply
from wheel_lock.runtime.tokens import new_token


@pytest.mark.parametrize(
    ("kind", "reply", "said"),
    [(EXCLUSIVE, BUSY, "BUSY"), (FENCED, BUSY, "BUSY"), (EXCLUSIVE, array(1, "OOM no"), "OOM")],
)
def test_an_error_reply_to_a_second_try_does_not_leave_the_first_ones_grant_behind(
    rig: Rig, kind: LockType, reply: bytes, said: str
) -> None:
    attempt = rig.acquire("a", 30.0, kind=kind)
    rig.server.take()  # granted, and the reply is lost
    rig.reconnect()
    assert len(rig.server.take()) == 1
    rig.say(reply)
    failure(attempt.future, LockServerError, said)
    rig.go_on(0.1)
    pairs = [command.pairs for command in rig.server.take()]
    assert pairs == [[(b"a", attempt.lease.token)]], "a grant is left behind"


def test_no_more_than_max_held_are_held_or_being_acquired() -> None:
    with Rig(max_held=2) as rig:
        held = rig.hold("a")
        pending = rig.acquire("b")
        failure(rig.acquire("c").future, TooManyLocks, "the limit of this context is 2")
        rig.reply(None, NIL)
        assert pending.future.result() is False
        rig.hold("d")
        rig.release(held)
        rig.hold("e")
        assert [lease.name for lease in rig.held] == ["d", "e"]


def test_losses_are_reported_once_with_their_names(rig: Rig) -> None:
    leases = rig.hold_many(names(4))
    rig.go_on(1.0)
    rig.reply(None, array(1, 0))
    future = rig.release_many(leases)
    assert rig.server.one("release_many").names == names(4)[1:]
    rig.say(array(1, 0, 2, TAKEN))
    assert future.result() == {"lock:0": LossReason.KEY_GONE, "lock:1": LossReason.KEY_GONE, "lock:2": LossReason.TAKEN}
    assert rig.reasons == [
        ("lock:0", LossReason.KEY_GONE),
        ("lock:1", LossReason.KEY_GONE),
        ("lock:2", LossReason.TAKEN),
    ]


def test_a_key_of_another_type_is_a_loss_and_another_error_is_an_error(rig: Rig) -> None:
    leases = rig.hold_many(names(3))
    future = rig.release_many(leases)
    rig.say(array(1, "WRONGTYPE no string", 2, "READONLY no writes"))
    failure(future, LockServerError, r"READONLY .* \(lock 'lock:1'\)")
    assert rig.reasons == [("lock:0", LossReason.TAKEN)]
    assert not rig.held
    assert not any(rig.is_valid(lease) for lease in leases)


WANTS_KEYS = error("ERR all the keys that the script uses should be passed using the KEYS array")


def test_a_bulk_acquire_that_is_given_up_is_not_asked_for_in_another_way(rig: Rig) -> None:
    attempt = rig.acquire_many(names(3), limit_s=0.5)
    rig.go_on(0.6)
    assert isinstance(attempt.future.error, LockTimeout)
    assert rig.whats() == ["acquire_many", "release_many"]
    rig.say(WANTS_KEYS)
    assert rig.server.take() == []
    rig.say(WANTS_KEYS)  # but what cleans up after it is
    assert rig.whats() == ["release_many"] * 3
    assert rig.held == {}


def begin_together(rig: Rig, letters: str) -> tuple[list[Lease], Future[Any]]:
    """Ask for several locks together, without waiting."""
    leases = [rig.lease(name, renew=False) for name in letters]
    future: Future[Any] = Future(lambda: None)
    options = lock_options(3.0, renew=False)
    rig.post(MultiLockWaiter(rig.engine.wait_queues, options, leases, False, False, None, future).begin)
    return leases, future


@pytest.mark.rig(declare_keys=True)
def test_several_locks_in_parts_are_granted_only_while_all_of_them_are_valid(rig: Rig) -> None:
    leases, future = begin_together(rig, "ab")
    rig.be_silent(1.0)
    rig.reply("acquire_all", integer(0))
    rig.clock.jump(2.0)  # the process stands still: the first one ends
    rig.reply("acquire_all", integer(0))
    assert not rig.is_valid(leases[0])
    released = rig.server.take()
    assert {name for command in released for name in command.names} == {"a", "b"}
    rig.say(*map(agreement, released))
    assert future.done
    assert future.result() is None
    assert rig.losses == []
    assert rig.held == {}


@pytest.mark.rig(declare_keys=True)
def test_a_caller_of_several_locks_that_does_not_wait_does_not_wait_for_a_server_that_refuses_connections(
    rig: Rig,
) -> None:
    rig.hold("warm-up", renew=False)
    rig.be_away()
    _, future = begin_together(rig, "ab")
    rig.go_on(1.0)
    failure(future, LockUnavailable, "not listening")


def test_an_adoption_of_many_that_is_given_up_in_flight_is_undone(rig: Rig) -> None:
    lease, handoff = rig.lease("a"), Handoff("a", new_token(), "exclusive", None, 3.0, 1.0, None, None, None)
    adopting = AdoptMany(rig.engine.leases)
    rig.post(lambda: adopting.begin([(lease, lock_options(3.0), handoff)], 0, Future(lambda: None)))
    assert rig.server.one("adopt").arguments[1:3] == (handoff.token, lease.token)
    rig.post(adopting.give_up)
    rig.say(integer(1))
    assert not rig.held
    assert rig.server.one("release_many").pairs == [(b"a", lease.token)]


def test_a_lease_that_is_adopted_with_another_fence_is_refused(rig: Rig) -> None:
    lease, future = rig.lease("a", kind=FENCED), Future[bool](lambda: None)
    handoff = Handoff("a", b"token", "fenced", 7, 3.0, None, None, None, None)
    rig.post(Adopt(rig.engine.leases, lease, lock_options(3.0), handoff, future).begin)
    rig.say(integer(OTHER_FENCE))
    failure(future, InvalidHandoff)
    assert lease.state is State.REFUSED


def test_a_number_is_no_refusal_of_several(rig: Rig) -> None:
    request = AcquireAll(rig.engine.leases, [rig.lease("a"), rig.lease("b")], lock_options(3.0), Future(lambda: None))
    with pytest.raises(MalformedReply):
        request.read(1)


def test_an_acquire_has_another_master_looked_out_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []
    monkeypatch.setattr(rig.engine.router, "watch_master", lambda: looks.append(None))
    rig.acquire("a")
    assert len(looks) == 1
    rig.acquire_many(names(2))
    assert len(looks) == 2


# What is known about the attempts of a request: the table, against the set of those that may have been executed


KNOWN = {(True, True): BOTH, (True, False): LATEST, (False, True): EARLIER, (False, False): NONE}
"""By whether the latest attempt may have been executed, and an earlier one."""


@given(st.lists(st.sampled_from((SENT, NOT_EXECUTED))))
def test_the_table_says_which_tries_may_have_been_executed(happens: list[tuple[Execution, ...]]) -> None:
    execution, latest, possible = NONE, 0, set[int]()
    for after in happens:
        execution = after[execution]
        if after is SENT:
            latest += 1
            possible.add(latest)
        else:
            possible.discard(latest)
        assert execution is KNOWN[latest in possible, bool(possible - {latest})]


# Replication: grants wait for WAIT, one at a time, with a time limit that includes it, and fail with it


REPLICA_TIMEOUT_S = 0.5
replicated = pytest.mark.rig(min_replicas=1, replica_timeout_s=REPLICA_TIMEOUT_S)


@replicated
def test_one_wait_is_in_flight_at_a_time_and_the_next_covers_what_came_meanwhile(rig: Rig) -> None:
    attempts = [rig.acquire(name) for name in "abc"]
    rig.reply(None, OK)
    assert rig.server.one("WAIT").arguments == (b"1", b"500")
    rig.say(OK, OK)
    server = rig.server
    assert server.take() == []
    rig.say(integer(1))
    assert [attempt.future.done for attempt in attempts] == [True, False, False]
    server.one("WAIT")
    server.say(integer(1))
    rig.turn()
    assert all(attempt.future.result() for attempt in attempts)


@replicated
def test_the_time_limit_of_a_try_includes_two_waits(rig: Rig) -> None:
    attempt = rig.acquire("a", 60.0)
    rig.be_silent(rig.engine.options.response_timeout_s + 2 * REPLICA_TIMEOUT_S - 0.1)
    assert not attempt.future.done
    rig.go_on(0.2)
    failure(attempt.future, LockTimeout)


@pytest.mark.parametrize("reply", [OK, integer(-1), b""])
@replicated
def test_a_wait_without_a_number_of_replicas_confirms_nothing_and_ends_at_once(rig: Rig, reply: bytes) -> None:
    attempt = rig.acquire("a")
    rig.reply("SET", OK)
    rig.server.one("WAIT")
    rig.say(reply) if reply else rig.hang_up()
    failure(attempt.future, LockUnavailable, "No connection")


# Adoptions of many: what comes too late, what is refused at once, and what a silent node is not asked


def adoption(rig: Rig, name: str, hold_left: float | None = None) -> Adoption:
    """What is adopted; it may be held for so many seconds more."""
    until = None if hold_left is None else time.time() + hold_left
    handoff = Handoff(name, b"exporter", "lock", None, 3.0, 1.0, None, until, hold_left)
    return rig.lease(name), handoff.options(), handoff


def begin_adoptions(rig: Rig, *adoptions: Adoption) -> AdoptMany:
    many = AdoptMany(rig.engine.leases)
    rig.post(lambda: many.begin(adoptions, 0, Future(lambda: None)))
    return many


def test_what_may_be_held_for_a_moment_only_is_released(rig: Rig) -> None:
    late = adoption(rig, "a", 0.01)
    many = begin_adoptions(rig, late)
    rig.reply("adopt", integer(1))
    assert many._future.done
    assert isinstance(many.errors[late[0]], LockNotAcquired)
    assert rig.whats() == ["release_many"]


def test_what_is_adopted_is_released_when_the_caller_gives_up(rig: Rig) -> None:
    adoptions = [adoption(rig, name, 3.0) for name in names(2)]
    many = begin_adoptions(rig, *adoptions)
    assert rig.whats() == ["adopt"] * 2
    rig.say(integer(1))
    assert list(rig.held) == [adoptions[0][0]]
    rig.post(many.give_up)
    assert sorted(name for command in rig.server.take() for name in command.names) == names(2)
    assert not rig.held


def test_a_node_that_does_not_answer_gets_no_more_adoptions(rig: Rig) -> None:
    adoptions = [adoption(rig, name) for name in names(3)]
    many = begin_adoptions(rig, adoptions[0])
    rig.server.one("adopt")
    rig.be_silent(rig.engine.options.response_timeout_s + 0.1)
    assert many._future.done
    rig.post(lambda: many.begin(adoptions[1:], 0, Future(lambda: None)))
    assert many._future.done
    assert [type(many.errors[lease]) for lease, _, _ in adoptions] == [LockTimeout] * 3
    assert "adopt" not in rig.whats()


def test_a_call_goes_on_when_its_first_adoption_is_refused_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    (refused, *_), other = adoptions = [adoption(rig, name) for name in names(2)]
    begin = Adopt.begin

    def begin_or_refuse(self: Adopt) -> None:
        if self.lease is refused:
            self.future.set_exception(TooManyLocks("full", refused.name))
        else:
            begin(self)

    monkeypatch.setattr(Adopt, "begin", begin_or_refuse)
    many = begin_adoptions(rig, *adoptions)
    assert not many._future.done
    rig.reply("adopt", integer(1))
    assert many._future.done
    assert [*many.errors] == [refused]
    assert [*rig.held] == [other[0]]


def test_the_next_part_fails_if_our_own_code_fails_between_the_parts(rig: Rig) -> None:
    adoptions = [adoption(rig, name) for name in names(2)]
    many, parts = AdoptMany(rig.engine.leases), [Future[None](lambda: None) for _ in range(2)]
    rig.post(lambda: many.begin(adoptions[:1], 1, parts[0]))
    assert parts[0].done
    rig.post(lambda: many.crashed(ZeroDivisionError()))
    rig.post(lambda: many.begin(adoptions[1:], 0, parts[1]))
    failure(parts[1], WheelLockError, "An internal error: ZeroDivisionError")


def test_very_many_that_are_refused_at_once_are_refused_one_after_the_other(rig: Rig) -> None:
    rig.close_engine()
    adoptions = [adoption(rig, name) for name in names(2000)]
    many = begin_adoptions(rig, *adoptions)
    assert many._future.done
    assert {type(error) for error in many.errors.values()} == {ContextClosed}
    assert len(many.errors) == 2000
