"""How long a holder believes: from before sending, never beyond a silence, and told of the end in time, once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.engine.rig import FINE, OK, START, TICK_S, Rig, failure
from tests.support.logged import logged
from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost, LossReason
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.runtime.notifier import NOTIFIER

BELIEF_S = 3.0 * 0.99 - 0.002  # how long a lease with a timeout of 3 s is believed in, from before it was sent


@pytest.mark.parametrize("connected", [True, False])
def test_an_acquire_counts_from_before_it_was_sent_and_not_from_before_it_was_connected(
    rig: Rig, connected: bool
) -> None:
    rig.launch.slow = not connected
    lease = rig.acquire("a").lease
    if not connected:
        rig.jump(0.4)
        rig.connect()
    sent_at = rig.now
    rig.jump(0.3)
    rig.say(OK)
    assert lease.deadline == pytest.approx(sent_at + BELIEF_S)
    assert lease.acquired_at == pytest.approx(sent_at)


@pytest.mark.parametrize("reply_after", [0.0, 0.2, 0.6])
def test_a_renewal_counts_from_before_it_was_sent(rig: Rig, reply_after: float) -> None:
    lease = rig.hold("a")
    rig.be_silent(1.0)
    assert lease.state is State.RENEWING
    assert rig.server.one("renew").names == ["a"]
    rig.jump(reply_after)
    rig.say(FINE)
    assert lease.state is State.HELD
    assert lease.deadline == pytest.approx(START + 1.0 + BELIEF_S)
    assert lease.renewals == 1


def test_a_confirmation_never_moves_the_deadline_back(rig: Rig) -> None:
    # Extended, the lease is renewed when that prolongs the server's expiry, which is 1 % later than what we believe.
    lease = rig.hold("a", 10.0, renew_every=0.05)
    future = rig.extend(lease, 15.0, replace=True)
    rig.agree()
    assert future.result() is None
    extended = lease.deadline
    assert extended == pytest.approx(START + 15.0 * 0.99 - 0.002)
    seen = [extended]

    def look() -> None:
        rig.agree()
        seen.append(lease.deadline)

    rig.go_on(6.0, look)
    assert lease.renewals > 1
    assert seen == sorted(seen)


def test_a_grant_that_is_read_after_its_deadline_is_none_and_is_released(rig: Rig) -> None:
    attempt = rig.acquire("a", 1.0)
    rig.server.one("SET")
    rig.jump(0.995)
    rig.say(OK)
    assert attempt.future.result() is False
    assert rig.server.one("release_many").pairs == [(b"a", attempt.lease.token)]
    assert rig.told == []
    assert rig.stats().acquired == 0


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


# When it is told


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


def test_a_server_that_answers_no_call_is_not_asked_in_a_tight_loop(rig: Rig) -> None:
    rig.hold("a")
    rig.go_on(6.0)
    # A sixth of the timeout, or half of what is left of it: six or seven tries fit in before less than two ticks are.
    assert rig.connector.attempts <= 10
    assert sum(command.what == "renew" for server in rig.connector.servers for command in server.take()) <= 10


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


@pytest.mark.parametrize("limits", [{"max_hold": 60.0, "max_renewals": 5}, {"max_renewals": 1}])
def test_a_silent_server_is_the_reason_even_if_there_are_limits(rig: Rig, limits: dict[str, Any]) -> None:
    lease = rig.hold("a", **limits)
    rig.launch.slow = True
    deadline = lease.deadline
    rig.go_on(3.0)
    assert lease.renewals == 0
    assert_told_in_time(rig, lease, deadline, LossReason.NOT_CONFIRMED)


def test_an_owner_that_has_ended_is_renewed_no_more_and_its_lease_is_abandoned(rig: Rig) -> None:
    owner = Owner()
    lease = rig.hold("a", owner=owner)
    other = rig.hold("b")
    rig.go_on(1.5, rig.agree)
    assert lease.renewals == 1
    owner.ended = True
    with pytest.warns(ResourceWarning, match="the lock 'a' was abandoned without a release"):
        rig.go_on(3.0, rig.agree)
        assert rig.reasons == [("a", LossReason.ABANDONED)]
    [(_, event)] = rig.told
    assert event.at <= event.deadline
    assert lease.renewals == 1
    assert rig.believes(other)


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


def test_a_release_at_the_deadline_says_that_the_lease_was_lost(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.launch.slow = True
    rig.clock.jump(BELIEF_S + 0.001)  # nobody has turned the timer
    future: Future[None] = Future(lambda: None)
    rig.engine.release(lease, future)
    failure(future, LockLost, "not confirmed in time")
    rig.turn()
    assert len(rig.told) == 1
