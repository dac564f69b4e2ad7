"""The majority of a quorum's lease is continuous: one that has ended does not come back, whatever is read first."""

from __future__ import annotations

import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.rig import GONE, TAKEN, array, error, failure, integer
from tests.quorum.rig import QuorumRig
from tests.support.backend import without_collection
from wheel_lock.errors import LockLost, LockServerError, LossReason, WheelLockError
from wheel_lock.lease import Owner, State


@pytest.mark.parametrize(
    ("votes", "until"),
    [
        ([(0, 4)], 1),
        ([(0, 4), (0, 9)], 4),
        ([(0, 4), (0, 9), (0, 7)], 7),
        ([(0, 4), (0, 9), (3.5, 7)], 7),  # the third begins to count before the first ends
        ([(0, 4), (0, 9), (4, 7)], 7),
        ([(0, 4), (0, 9), (4.5, 7)], 4),  # and half a second later
        ([(0, 0.5), (0, 9), (2, 7)], 1),
    ],
)
def test_a_majority_ends_with_its_first_gap(rig: QuorumRig, votes: list[tuple[float, float]], until: float) -> None:
    lease = rig.lease(4.0)
    for vote, (counts_from, deadline) in zip(lease.votes, votes, strict=False):
        granted: Any = SimpleNamespace(loss=None, state=State.HELD, group=lease.group, deadline=deadline)
        vote.lease, vote.counts_from = granted, counts_from
    assert lease.majority_until(1.0) == until


def test_an_extension_that_too_few_nodes_confirm_is_no_loss_of_a_lease_that_is_held(rig: QuorumRig) -> None:
    lease = rig.hold(6.0, 0, 1)
    rig.engine.engines[2].history.empty_since = rig.now - 2.5
    rig.go_on(3.45, 0, 1, 2)
    assert lease.renewals == 1
    extended = rig.ask(lambda future: rig.engine.extend(lease, 1000, False, future))
    rig.servers[2].one("extend")
    rig.say(None, None, integer(5000))  # it does not count yet
    rig.go_on(0.1, 0, 2)
    rig.say(None, integer(GONE))
    assert lease.is_valid(rig.now)
    assert not isinstance(failure(extended, WheelLockError, "Only 1 of 3 nodes agree"), LockLost)
    assert rig.losses == []


def test_an_extension_of_a_lease_that_ends_meanwhile_is_a_loss(rig: QuorumRig) -> None:
    lease = rig.hold(6.0, 0, 1)
    extended = rig.ask(lambda future: rig.engine.extend(lease, 1000, False, future))
    rig.servers[0].agree()
    rig.servers[1].say(integer(GONE))
    rig.go_on(1.0)
    failure(extended, LockLost)
    assert len(rig.losses) == 1


def test_an_extension_does_not_wait_for_one_silent_node(rig: QuorumRig) -> None:
    lease = rig.hold(6.0, 0, 1, 2)
    extended = rig.ask(lambda future: rig.engine.extend(lease, 1000, False, future))
    rig.go_on(0.6, 0, 1)
    assert extended.result() is None


def test_a_failed_extension_keeps_nothing_of_its_caller(rig: QuorumRig) -> None:
    lease = rig.hold(6.0, 0, 1, 2)
    extended = rig.ask(lambda future: rig.engine.extend(lease, 1000, False, future))
    rig.say(*[error("NOREPLICAS Not enough good replicas to write")] * 3)
    assert failure(extended, LockServerError, "Only 0 of 3 nodes answered").code == "NOREPLICAS"
    owners: weakref.WeakSet[Owner] = weakref.WeakSet()

    def call() -> None:
        owner = Owner()  # of a frame of the traceback
        owners.add(owner)
        extended.result()

    with without_collection():
        with suppress(LockServerError):
            call()
        assert not owners


def test_a_release_of_a_lease_that_is_lost_meanwhile_fails(rig: QuorumRig) -> None:
    lease = rig.hold(6.0, 0, 1, 2)
    released = rig.ask(lambda future: rig.engine.release(lease, future))
    rig.post(lambda: rig.engine.leases.mark_lost([lease], LossReason.KEY_GONE))
    rig.go_on(0.1, 0, 1, 2)
    assert failure(released, LockLost).reason is LossReason.KEY_GONE


def test_a_question_that_too_few_nodes_answer_fails(rig: QuorumRig) -> None:
    lease = rig.hold(6.0, 0, 1, 2)
    owned = rig.ask(lambda future: rig.engine.owned(lease, future))
    rig.go_on(5.5)
    failure(owned, WheelLockError, "Only 0 of 3 nodes")


def test_an_extension_during_another_one_is_refused_as_on_one_server(rig: QuorumRig) -> None:
    lease = rig.hold(30.0, 0, 1, 2)
    rig.ask(lambda future: rig.engine.extend(lease, 1000, False, future))
    second = rig.ask(lambda future: rig.engine.extend(lease, 1000, False, future))
    failure(second, WheelLockError, "^The lock is being extended already")


@pytest.mark.parametrize("verb", ["release", "extend"])
def test_what_is_lost_can_be_neither_released_nor_extended(rig: QuorumRig, verb: str) -> None:
    lease, engine = rig.hold(3.0, 0, 1, 2), rig.engine
    engine.leases.mark_lost([lease], LossReason.TAKEN)
    future = rig.ask(
        lambda future: engine.release(lease, future) if verb == "release" else engine.extend(lease, 1000, False, future)
    )
    assert failure(future, LockLost).reason is LossReason.TAKEN


def test_an_extension_is_a_lease_that_a_master_may_forget(rig: QuorumRig) -> None:
    lease = rig.hold(3.0, 0, 1, 2)
    rig.ask(lambda future: rig.engine.extend(lease, 20_000, False, future))
    assert rig.engine.router.longest_s > 22.0


def test_the_loss_of_a_majority_has_the_reason_of_its_last_vote(rig: QuorumRig) -> None:
    rig.hold(3.0, 0, 1, 2)
    rig.go_on(1.1)
    for server in rig.servers:
        server.one("renew")
    rig.say(*[array(1, TAKEN)] * 3)
    assert [event.reason for event in rig.losses] == [LossReason.TAKEN]


def test_a_lease_that_is_not_renewed_asks_for_no_vote_that_it_has_not_got(rig: QuorumRig) -> None:
    lease = rig.hold(3.0, 0, 1, renew=False)
    rig.go_on(2.0)
    assert lease.is_valid(rig.now)
    assert rig.commands() == [[], [], []]


def test_a_timeout_is_long_enough_for_the_ticks_of_the_nodes() -> None:
    with QuorumRig(tick_ms=100) as rig, pytest.raises(ValueError, match="tick"):
        rig.lease(0.2)
