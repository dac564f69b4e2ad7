"""Many at once: whole answers or errors, chunk by chunk, and nothing is left behind."""

from __future__ import annotations

import pytest

from tests.engine.rig import BUSY, FINE, REFUSED, START, TAKEN, Rig, array, failure, names
from wheel_lock.engine.requests.bulk import BATCHES_IN_FLIGHT
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, LossReason
from wheel_lock.lease import State


@pytest.mark.parametrize("taken", [[], [1, 4], [1, 2, 3, 4, 5]])
def test_taken_entries_are_refused_and_the_rest_is_held(rig: Rig, taken: list[int]) -> None:
    attempt = rig.acquire_many(names(5))
    rig.say(array(*[word for number in taken for word in (number, TAKEN)]))
    assert attempt.future.result() is None
    states = [State.REFUSED if number in taken else State.HELD for number in range(1, 6)]
    assert [lease.state for lease in attempt.leases] == states
    assert rig.stats().acquired == rig.stats().held == 5 - len(taken)
    rig.go_on(5.0, rig.agree)
    assert [rig.believes(lease) for lease in attempt.leases] == [state is State.HELD for state in states]


def test_no_more_than_a_few_chunks_are_under_way_and_an_error_stops_the_rest() -> None:
    with Rig(batch_size=1) as rig:
        attempt = rig.acquire_many(names(50))
        assert len(rig.server.take()) == BATCHES_IN_FLIGHT
        rig.say(FINE)
        assert len(rig.server.take()) == 1
        rig.say(BUSY)
        undone = rig.server.one("release_many")  # of what may have been granted half-way through
        for _ in range(BATCHES_IN_FLIGHT - 1):
            rig.say(FINE)
        failure(attempt.future, LockServerError)
        released = [name for command in rig.server.take() for name in command.names]
        assert len(released) == BATCHES_IN_FLIGHT  # those that had been granted
        assert not set(undone.names) & set(released)
        assert {lease.state for lease in attempt.leases[9:]} == {State.REFUSED}


@pytest.mark.parametrize("reply", [BUSY, array(1, "OOM no memory", 2, "OOM no memory")])
def test_an_error_reply_to_a_second_try_leaves_no_grant_of_the_first_behind(rig: Rig, reply: bytes) -> None:
    attempt = rig.acquire_many(["a", "b"], 30.0)
    rig.server.take()  # granted, and the reply is lost
    rig.reconnect()
    rig.reply("acquire_many", reply)
    assert attempt.future.error is not None
    rig.go_on(0.1)
    released = {pair for command in rig.server.take() for pair in command.pairs}
    assert released == {(lease.key, lease.token) for lease in attempt.leases}, "no grant is left behind"


def test_without_a_connection_nothing_is_sent_and_the_caller_is_told(rig: Rig) -> None:
    rig.connector.refusal = REFUSED
    attempt = rig.acquire_many(names(3))
    rig.go_to(START + 5.01)
    failure(attempt.future, LockUnavailable, "nobody listens")
    rig.connector.refusal = None
    rig.go_on(5.0)
    assert rig.connector.servers == []


def test_a_chunk_granted_too_late_is_released(rig: Rig) -> None:
    attempt = rig.acquire_many(["a", "b"], 1.0)
    rig.server.take()
    rig.server.say(FINE)
    rig.jump(1.5)
    assert attempt.future.result() is None
    assert {lease.state for lease in attempt.leases} == {State.REFUSED}
    assert rig.server.one("release_many").names == ["a", "b"]


# Release


def test_losses_are_reported_by_name_and_told_once(rig: Rig) -> None:
    leases = rig.hold_many(names(4))
    rig.go_on(1.0)
    rig.reply(None, array(1, 0))
    future = rig.release_many(leases)
    assert rig.server.one("release_many").names == names(4)[1:]
    rig.say(array(1, 0, 2, TAKEN))
    assert future.result() == {
        "lock:0": LossReason.KEY_GONE,
        "lock:1": LossReason.KEY_GONE,
        "lock:2": LossReason.TAKEN,
    }
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
    assert not any(rig.believes(lease) for lease in leases)


def test_renewals_go_on_between_the_chunks_of_a_long_release() -> None:
    with Rig(batch_size=1) as rig:
        rig.hold("kept", 3.0)
        leases = rig.hold_many(names(40), 30.0)
        rig.server.take()
        future = rig.release_many(leases)
        rig.go_on(1.0)
        assert sorted({command.what for command in rig.server.agree()}) == ["release_many", "renew"]
        rig.go_on(0.5, rig.agree)
        assert future.done


def test_a_release_that_nobody_answers_ends_within_a_response_timeout() -> None:
    with Rig(batch_size=1) as rig:
        leases = rig.hold_many(names(40), 60.0)
        rig.launch.slow = True
        future = rig.release_many(leases)
        rig.go_on(6.0)
        failure(future, LockTimeout)


def test_leases_of_different_terms_are_released_by_calls_of_their_own(rig: Rig) -> None:
    leases = [rig.hold("a", 3.0), rig.hold("b", 3.0), rig.hold("c", 6.0)]
    future = rig.release_many(leases)
    assert [command.names for command in rig.server.take()] == [["a", "b"], ["c"]]
    rig.say(FINE * 2)
    assert future.result() == {}
