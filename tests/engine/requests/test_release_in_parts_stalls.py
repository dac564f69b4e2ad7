"""What lapses, and whose owner ends, during a stall between the parts of a release."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.engine.requests.parts import MANY, PART, half_released, post_release, released, turn_until
from tests.engine.rig import FINE, Rig, names
from wheel_lock.engine.future import Future
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, Owner, State
from wheel_lock.lock_types.caller_token import CALLER_TOKEN

pytestmark = pytest.mark.usefixtures("small_parts")


def namesakes(rig: Rig, timeout: float) -> list[Lease]:
    """Hold locks with a token that others may have chosen, too."""
    return [rig.hold(name, timeout, kind=CALLER_TOKEN) for name in names(MANY)]


@pytest.mark.parametrize("turns", [1, 3, 5])
def test_nothing_is_sent_for_a_caller_token_that_lapses_during_a_stall(rig: Rig, turns: int) -> None:
    leases = namesakes(rig, 30.0)
    future = post_release(rig, leases)
    for _ in range(turns):
        rig.timer.turn()
    commands = rig.server.take()
    sent = released(commands)
    assert sent == Counter(names(MANY)[: {1: PART, 3: 2 * PART, 5: MANY}[turns]])
    rig.clock.jump(31.0)  # another owner may have acquired the rest with the same token
    rig.server.say(FINE * len(commands))
    assert released(turn_until(rig, lambda: future.done)) == Counter()
    left = names(MANY)[sent.total() :]
    assert future.result() == dict.fromkeys(left, LossReason.NOT_CONFIRMED)
    assert sorted(rig.reasons) == sorted((name, LossReason.NOT_CONFIRMED) for name in left)


# Owners that end


def watched(rig: Rig, lease: Lease) -> bool:
    """Return whether the lease is on the wheel, in an unanswered batch, or overdue."""
    return lease in rig.timer.wheel or lease.state is State.RENEWING or lease in rig.engine.router.renewer.overdue


def owned(rig: Rig, leases: list[Lease]) -> Owner:
    owner = Owner()
    for lease in leases:
        lease.owner = owner
    return owner


def half_released_beside_an_ended_owner(rig: Rig) -> tuple[list[Lease], Future[Any]]:
    """Release many in parts, and have the owner of other leases end and these become due between two parts."""
    others = rig.hold_many([f"other:{name}" for name in names(3)], 3.0)
    leases = rig.hold_many(names(MANY), 30.0)
    owner = owned(rig, others)
    rig.server.take()
    future = half_released(rig, leases)
    owner.ended = True
    rig.clock.jump(1.5)
    rig.timer.turn()
    return others, future


def test_a_lease_of_an_ended_owner_that_is_due_between_the_parts_is_watched_and_abandoned_behind_them(rig: Rig) -> None:
    others, future = half_released_beside_an_ended_owner(rig)
    assert not future.done
    assert all(watched(rig, lease) for lease in others)
    assert rig.told == []
    with pytest.warns(ResourceWarning, match="abandoned"):
        turn_until(rig, lambda: future.done and not any(map(rig.believes, others)))
        rig.drain()
    assert rig.reasons == [(lease.name, LossReason.ABANDONED) for lease in others]
