"""How long a holder believes: from before sending, never beyond a silence, and told of the end in time, once."""

from __future__ import annotations

from functools import partial

import pytest

from tests.engine.rig import FINE, TICK_S, Rig
from tests.support.logged import logged
from wheel_lock.engine.future import Future
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.runtime.notifier import NOTIFIER


def test_what_another_thread_has_seen_lapse_is_not_confirmed_any_more(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.go_on(1.0)
    rig.server.one("renew")
    lease.record_lapse()
    assert not rig.believes(lease)
    rig.say(FINE)
    assert not rig.believes(lease)
    rig.post(lambda: rig.engine.lapse_seen(lease))
    assert rig.reasons == [("a", LossReason.NOT_CONFIRMED)]
    assert rig.server.one("release_many").pairs == [(b"a", lease.token)]


def assert_told_in_time(rig: Rig, lease: Lease, deadline: float, reason: LossReason) -> None:
    [(told_lease, event)] = rig.told
    assert told_lease is lease
    assert event.reason is reason
    assert event.deadline == pytest.approx(deadline)
    assert deadline - 2 * TICK_S <= event.at <= deadline
    assert lease.loss is reason


@pytest.mark.parametrize("connects", [False, True])
@pytest.mark.parametrize("timeout", [0.05, 0.333, 1.0, 1.0071, 30.0])
def test_the_loss_of_a_silent_lease_is_told_by_the_deadline(rig: Rig, timeout: float, connects: bool) -> None:
    lease = rig.hold("a", timeout)
    rig.launch.slow = not connects
    deadline = lease.deadline
    rig.go_on(timeout)
    assert_told_in_time(rig, lease, deadline, LossReason.NOT_CONFIRMED)


@pytest.mark.parametrize("extended", [False, True])
def test_the_key_of_a_lease_at_its_hold_limit_expires_by_itself_unless_it_was_extended(
    rig: Rig, extended: bool
) -> None:
    lease = rig.hold("a", max_hold=5.0)
    if extended:
        rig.extend(lease, 600.0)
        rig.agree()
    sent: list[str] = []
    rig.go_on(4.9, lambda: sent.extend(command.what for command in rig.server.agree()))
    sent.clear()
    rig.go_on(3.0, lambda: sent.extend(command.what for command in rig.server.agree()))
    assert lease.loss is LossReason.HOLD_LIMIT
    assert sent == (["release_many"] if extended else [])


def test_many_abandoned_leases_are_one_record(rig: Rig) -> None:
    leases = [rig.hold(f"shard:{number}") for number in range(7)]
    with logged() as log, pytest.warns(ResourceWarning, match="abandoned") as warned:
        for lease in leases:
            rig.post(partial(rig.engine.abandon, lease))
        assert len(rig.told) == 7
        rig.go_on(0.1)
        assert not log.said("abandoned")
        rig.go_on(0.5)
        [text] = log.said("abandoned")
        assert NOTIFIER.drain(10.0)
    assert text.startswith("lost 7 locks: 'shard:0', 'shard:1'")
    assert len(warned) == 7


def test_an_abandoned_lease_is_in_the_log_at_the_end_of_the_interpreter(rig: Rig) -> None:
    lease = rig.hold("a")
    with logged() as log, pytest.warns(ResourceWarning, match="abandoned"):
        rig.post(lambda: rig.engine.abandon(lease))
        rig.post(lambda: rig.engine.end(1.0, Future(lambda: None)))
        assert log.said("abandoned")
