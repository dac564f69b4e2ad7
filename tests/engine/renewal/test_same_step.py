"""What comes due in one step of the wheel: what is called first may end, or move, what would have been called next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.engine.rig import TICK_S, Rig, array, names
from tests.engine.waiting_rig import Wait, WaitingRig
from wheel_lock.engine.future import Future
from wheel_lock.engine.waiting.multi_lock import MultiLockWaiter
from wheel_lock.errors import LockTimeout
from wheel_lock.lease import Lease, State

INTERVAL_S = 1.0


def release(rig: Rig, leases: list[Lease]) -> None:
    rig.engine.release_many(leases, Future(lambda: None))


def release_one_by_one(rig: Rig, leases: list[Lease]) -> None:
    for lease in leases:
        rig.engine.release(lease, Future(lambda: None))


def abandon(rig: Rig, leases: list[Lease]) -> None:
    for lease in leases:
        rig.engine.abandon(lease)


@pytest.mark.parametrize("end", [release, release_one_by_one, abandon])
@pytest.mark.parametrize("terms", [{}, {"max_renewals": 3}])
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


def wait_together(rig: WaitingRig, *names: str) -> Wait:
    """Begin to wait for several locks at once."""
    alone = [rig.waiter(name).acquisition.as_waiter() for name in names]
    future: Future[Sequence[Lease] | None] = Future(lambda: None)
    leases = [lease for each in alone for lease in each._template]
    together = MultiLockWaiter(rig.engine.wait_queues, alone[0].options, leases, False, True, None, future)
    rig.post(together.begin)
    return Wait(names[0], together, future)


def test_one_that_joins_a_line_in_the_step_in_which_its_time_was_up_ends_alone() -> None:
    """Who asks for the first time hears nothing in time, so those who came meanwhile go where others stand already."""
    with WaitingRig() as rig:
        together = wait_together(rig, "a", "b")
        asking, behind = [rig.wait("a", blocking_timeout=timeout) for timeout in (0.4, 0.5)]
        rig.reply(None, array(1, 30_000))  # another holds the first of the two names
        assert rig.waiting == 1
        rig.go_on(0.3)
        rig.jump(0.3)
        assert isinstance(asking.error, LockTimeout)
        assert together.goes_on
        rig.go_on(1.0)
        assert isinstance(behind.error, LockTimeout)
        assert "internal" not in str(behind.error)
        assert together.goes_on
