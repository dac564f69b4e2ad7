"""Blocks: leases that one call has confirmed are renewed together until something happens to one of them or to the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.rig import FINE, NOSCRIPT, START, TICK_S, Command, Rig, error
from wheel_lock.block import Block
from wheel_lock.engine.interfaces import group_of
from wheel_lock.errors import LossReason
from wheel_lock.lease import HELD, RENEWING, Lease, ThreadOwner, local_deadline
from wheel_lock.lock_types.caller_token import CALLER_TOKEN

COUNT = 10
TIMEOUT_S, INTERVAL_S = 30.0, 10.0


def names(prefix: str = "lock:", count: int = COUNT) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def hold_block(rig: Rig, count: int = COUNT) -> list[Lease]:
    """Hold leases that are in one block, and due in one interval."""
    leases = rig.hold_many(names(count=count), TIMEOUT_S)
    rig.go_on(INTERVAL_S, rig.agree)
    assert block_of(leases).size == count
    return leases


def block_of(leases: Sequence[Lease]) -> Block:
    (block,) = {lease.block for lease in leases}
    assert isinstance(block, Block)
    return block


def sent(rig: Rig, seconds: float) -> list[Command]:
    """Let a healthy server renew for a while; return the calls of renewals."""
    seen: list[Command] = []
    rig.go_on(seconds, lambda: seen.extend(rig.server.agree()))
    return [command for command in seen if command.what == "renew"]


def test_leases_that_were_granted_together_go_on_together(rig: Rig) -> None:
    leases = hold_block(rig)
    block = block_of(leases)
    for number in range(2, 5):
        (call,) = sent(rig, INTERVAL_S)
        assert call.names == names()
        assert block_of(leases) is block
        assert {(lease.state, lease.renewals, lease.deadline) for lease in leases} == {
            (HELD, number, local_deadline(START + number * INTERVAL_S, TIMEOUT_S))
        }
    stats = rig.stats()
    assert (stats.renewed, stats.batches) == (4 * COUNT, 4)
    assert stats.renewal_lag_max_s < TICK_S
    assert stats.renewal_time_left_min_s == pytest.approx(local_deadline(0.0, TIMEOUT_S) - INTERVAL_S)


def test_a_holder_that_has_seen_the_deadline_pass_as_the_block_was_confirmed_has_lost(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.go_on(INTERVAL_S)
    leases[0].record_lapse()
    rig.reply("renew", FINE)
    assert not rig.is_valid(leases[0])
    rig.post(lambda: rig.engine.lapse_seen(leases[0]))
    assert rig.reasons == [("lock:0", LossReason.NOT_CONFIRMED)]
    assert rig.server.one("release_many").pairs == [(b"lock:0", leases[0].token)]


@pytest.mark.rig(declare_keys=True)
def test_nothing_is_sent_for_a_chosen_token_whose_deadline_was_seen_to_pass(rig: Rig) -> None:
    lease = rig.hold("a", TIMEOUT_S, kind=CALLER_TOKEN, token="host-1")
    rig.go_on(INTERVAL_S)
    lease.record_lapse()
    rig.reply("renew", FINE)
    rig.post(lambda: rig.engine.lapse_seen(lease))
    assert rig.reasons == [("a", LossReason.NOT_CONFIRMED)]
    assert rig.server.take() == []


@pytest.mark.rig(batch_size=2 * COUNT - 1, max_calls_in_flight=1, renewal_slack=0.25)
def test_what_is_due_is_sent_before_blocks_that_join_it(rig: Rig) -> None:
    lone = rig.hold("lone", TIMEOUT_S)
    rig.go_on(1.0)
    leases = rig.hold_many(names(), TIMEOUT_S)
    group: Any = group_of(lone)
    slack, group.slack_ticks = group.slack_ticks, 0
    rig.go_on(INTERVAL_S + 4.0, rig.agree)
    group.slack_ticks = slack
    rig.engine.router.renewer.flow.joint.note(group, block_of(leases).tick)
    rig.server.take()
    rig.go_on(INTERVAL_S - 5.0)
    (call,) = rig.server.take()
    assert call.names == ["lone", *names()]
    assert lone.state is RENEWING


def test_an_extended_lease_has_left(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.extend(leases[0], 100.0)
    rig.agree()
    assert leases[0].block is None
    assert leases[0].deadline > leases[1].deadline
    (call,) = sent(rig, INTERVAL_S)
    assert call.names == names()[1:]
    assert leases[0].renewals == 1


def refuse(rig: Rig) -> None:
    rig.reply("renew", error("MISCONF no disk"))


def be_silent(rig: Rig) -> None:
    rig.be_silent(6.0)


@pytest.mark.parametrize("trouble", [refuse, Rig.hang_up, be_silent])
def test_the_trouble_of_a_call_splits_the_block_and_its_leases_are_renewed_or_lost_one_by_one(
    rig: Rig, trouble: Callable[[Rig], object]
) -> None:
    leases = hold_block(rig)
    rig.go_on(INTERVAL_S)
    before = leases[0].deadline
    trouble(rig)
    assert {lease.block for lease in leases} == {None}
    assert set(leases) <= set(rig.engine.router.renewer.overdue)
    assert {lease.deadline for lease in leases} == {before}
    rig.connector.refusal = ConnectionRefusedError("not listening")
    rig.go_to(before)
    assert sorted(rig.reasons) == [(name, LossReason.NOT_CONFIRMED) for name in names()]


def test_a_call_that_is_sent_again_is_without_those_that_have_left(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.go_on(INTERVAL_S)
    rig.release(leases[0])
    rig.server.take()
    rig.say(NOSCRIPT, b":1\r\n")
    again = rig.server.one("renew")
    assert (again.use_eval, again.names) == (True, names()[1:])
    rig.say(FINE)
    assert block_of(leases[1:]).size == COUNT - 1


def test_a_confirmation_behind_the_deadline_is_no_renewal(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.go_on(INTERVAL_S)
    rig.server.one("renew")
    rig.server.say(FINE)
    rig.clock.jump(TIMEOUT_S)
    rig.turn()
    assert sorted(rig.reasons) == [(name, LossReason.NOT_CONFIRMED) for name in names()]
    assert [command.what for command in rig.server.take()] == ["release_many"]
    assert leases[0].renewals == 1


def test_one_whose_owner_has_ended_is_lost_alone(rig: Rig) -> None:
    owner = ThreadOwner()
    leases = [*rig.hold_many(names(), TIMEOUT_S), *rig.hold_many(names("other:"), TIMEOUT_S)]
    for lease in leases[:COUNT]:
        lease.owner = owner
    sent(rig, 2 * INTERVAL_S)
    assert block_of(leases).size == 2 * COUNT
    owner.ended = True
    with pytest.warns(ResourceWarning, match="abandoned"):
        (call,) = sent(rig, INTERVAL_S)
        rig.drain()
    assert call.names == names("other:")
    assert {reason for _, reason in rig.reasons} == {LossReason.ABANDONED}
    assert len(rig.losses) == COUNT


@pytest.mark.rig(batch_size=20)
def test_small_blocks_merge_at_a_joint_tick_and_large_ones_stay(rig: Rig) -> None:
    large = hold_block(rig, 12)
    rig.go_on(0.5, rig.agree)
    one = rig.hold_many(names("one:", 8), TIMEOUT_S, renew_every=INTERVAL_S)
    rig.go_on(INTERVAL_S, rig.agree)
    assert block_of(large) is not block_of(one)
    rig.go_on(0.5, rig.agree)
    other = rig.hold_many(names("other:", 8), TIMEOUT_S, renew_every=INTERVAL_S)
    before = block_of(large)
    rig.go_on(3 * INTERVAL_S, rig.agree)
    assert block_of(large) is before
    assert block_of([*one, *other]).size == 16
    assert block_of(one).tick == before.tick
    assert [len(call.names) for call in sent(rig, INTERVAL_S)] == [12, 16]


@pytest.mark.rig(batch_size=8)
def test_the_rest_of_what_does_not_fit_into_a_call_stays_a_block(rig: Rig) -> None:
    leases = rig.hold_many(names(count=18), TIMEOUT_S)
    rig.go_on(2 * INTERVAL_S, rig.agree)
    blocks = [lease.block for lease in leases]
    assert len(set(blocks)) == 3  # one is None, of the last two
    sent(rig, 3 * INTERVAL_S)
    assert [lease.block for lease in leases] == blocks
