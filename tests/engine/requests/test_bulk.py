"""Many at once: whole answers or errors, chunk by chunk, and nothing is left behind."""

from __future__ import annotations

from tests.engine.rig import BUSY, FINE, TAKEN, Rig, array, failure, names
from wheel_lock.engine.requests.bulk import BATCHES_IN_FLIGHT
from wheel_lock.errors import LockServerError, LossReason
from wheel_lock.lease import State


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


def test_leases_of_different_terms_are_released_by_calls_of_their_own(rig: Rig) -> None:
    leases = [rig.hold("a", 3.0), rig.hold("b", 3.0), rig.hold("c", 6.0)]
    future = rig.release_many(leases)
    assert [command.names for command in rig.server.take()] == [["a", "b"], ["c"]]
    rig.say(FINE * 2)
    assert future.result() == {}
