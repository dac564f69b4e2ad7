"""What comes due in one step of the wheel: what is called first may end, or move, what would have been called next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.support import TICK_S, Rig, names
from wheel_lock.engine.operation import Operation
from wheel_lock.lease import Lease, State

INTERVAL_S = 1.0


def release(rig: Rig, leases: list[Lease]) -> None:
    rig.engine.release_many(leases, Operation(lambda: None))


def release_one_by_one(rig: Rig, leases: list[Lease]) -> None:
    for lease in leases:
        rig.engine.release(lease, Operation(lambda: None))


def abandon(rig: Rig, leases: list[Lease]) -> None:
    for lease in leases:
        rig.engine.abandon(lease)


@pytest.mark.parametrize("end", [release, release_one_by_one, abandon])
@pytest.mark.parametrize("terms", [{}, {"max_renewals": 3}, {"max_hold": 60.0}])
def test_a_lease_that_ends_in_the_step_in_which_it_is_due_is_not_renewed(
    rig: Rig, end: Callable[[Rig, list[Lease]], None], terms: dict[str, float]
) -> None:
    leases = [rig.hold(name, **terms) for name in names(4)]
    rig.timer.call_at(rig.now + INTERVAL_S - 2 * TICK_S, lambda now: end(rig, leases[:2]), rig.engine)
    rig.go_on(INTERVAL_S - 5 * TICK_S)
    rig.jump(0.2)
    sent = rig.server.take()
    assert [command.names for command in sent if command.what == "renew"] == [names(4)[2:]]
    rig.server.say(*[b":1\r\n" if command.what == "release" else b"*0\r\n" for command in sent])
    rig.go_on(10.0, rig.agree)
    final = State.LOST if end is abandon else State.RELEASED
    assert [lease.state for lease in leases[:2]] == [final] * 2
    assert all(map(rig.believes, leases[2:])) or "max_renewals" in terms


def test_a_cancelled_alarm_does_not_ring_though_it_has_come_due_in_the_same_step(rig: Rig) -> None:
    rung: list[str] = []

    def ring_and_cancel(now: float) -> None:
        rung.append("first")
        rig.timer.cancel(second)

    rig.timer.call_at(rig.now + 0.1, ring_and_cancel)
    second = rig.timer.call_at(rig.now + 0.2, lambda now: rung.append("second"))
    rig.jump(1.0)
    assert rung == ["first"]
