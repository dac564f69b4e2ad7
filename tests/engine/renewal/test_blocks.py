"""Blocks: leases that one call has confirmed are renewed together until something happens to one of them or to the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.engine.rig import FINE, Rig, error
from wheel_lock.block import Block
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease

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


def test_a_holder_that_has_seen_the_deadline_pass_as_the_block_was_confirmed_has_lost(rig: Rig) -> None:
    leases = hold_block(rig)
    rig.go_on(INTERVAL_S)
    leases[0].record_lapse()
    rig.reply("renew", FINE)
    assert not rig.is_valid(leases[0])
    rig.post(lambda: rig.engine.lapse_seen(leases[0]))
    assert rig.reasons == [("lock:0", LossReason.NOT_CONFIRMED)]
    assert rig.server.one("release_many").pairs == [(b"lock:0", leases[0].token)]


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
