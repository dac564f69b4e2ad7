"""Swap: one lease in the place of another, begun twice, released before its time, and what becomes of it if it fails."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.engine.rig import FINE, START, Rig, breaking, error, failure, integer
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Later
from wheel_lock.engine.requests.adopt import Swap
from wheel_lock.errors import LockLost, LockNotHeld, LockUnavailable, LossReason, WheelLockError
from wheel_lock.lease import Lease
from wheel_lock.lock_types import READ, WRITE
from wheel_lock.options import lock_options
from wheel_lock.runtime.ends import End

REASONS = {0: LossReason.KEY_GONE, -1: LossReason.TAKEN}


class Swapping:
    """A writer that is to become a reader.

    Attributes:
        old: The writer's lease, held.
        new: The reader's.
        operation: What whoever stops writing waits for.
    """

    def __init__(self, rig: Rig, timeout: float = 3.0, **terms: Any) -> None:
        self.rig = rig
        attempt = rig.acquire("a", timeout, kind=WRITE, **terms)
        rig.reply("acquire_write", integer(0))
        assert attempt.future.result()
        self.old = attempt.lease
        self.new = rig.lease("a", timeout, kind=READ, **terms)
        self.future: Future[None] = Future(lambda: None)
        self.swap = Swap(rig.engine.leases, self.old, self.new, lock_options(timeout, **terms), self.future)

    def begin(self) -> None:
        self.rig.post(self.swap.begin)

    def begun(self) -> Swapping:
        """Begun, and on its way."""
        self.begin()
        command = self.rig.server.one("swap_holder")
        assert command.arguments[1:3] == (self.old.token, self.new.token)
        return self

    def assert_over(self, *, reason: LossReason | None = None) -> None:
        """Neither is held, and a loss was reported once if at all."""
        rig = self.rig
        assert not rig.is_valid(self.old)
        assert not rig.is_valid(self.new)
        assert rig.swaps == {}
        assert rig.stats().held == 0
        assert rig.reasons == ([] if reason is None else [("a", reason)])


@pytest.fixture
def swapping(rig: Rig) -> Swapping:
    return Swapping(rig)


def assert_cleaned_up(rig: Rig, *leases: Lease) -> None:
    """Nothing is sent but clean-ups of these leases."""
    commands = rig.server.take()
    assert all(command.what == "release_holders" for command in commands)
    assert sorted(command.arguments[1] for command in commands) == sorted(lease.token for lease in leases)
    rig.say(*[FINE] * len(commands))


@pytest.mark.parametrize("when", ["at once", "in flight", "confirmed"])
def test_begun_twice_it_is_sent_once(rig: Rig, swapping: Swapping, when: str) -> None:
    if when == "at once":
        rig.timer.post(swapping.swap.begin, rig.engine)
    swapping.begun()
    if when == "in flight":
        swapping.begin()
    rig.say(integer(1))
    if when == "confirmed":
        swapping.begin()
    assert rig.server.take() == []
    assert rig.is_valid(swapping.new)


def test_what_takes_its_place_has_what_is_left_of_its_limits(rig: Rig) -> None:
    swapping = Swapping(rig, 30.0, max_hold=5.0, max_renewals=3)
    rig.jump(1.0)
    swapping.begun()
    rig.say(integer(1))
    limits = swapping.new.limits
    assert limits is not None
    assert (limits.hold_until, limits.max_renewals) == (pytest.approx(START + 5.0), 3)


# Released before it is confirmed


def test_what_is_released_in_flight_is_released_once_when_it_is_there(rig: Rig, swapping: Swapping) -> None:
    swapping.begun()
    release, again = rig.release(swapping.new), rig.release(swapping.new)
    assert rig.server.take() == []
    assert not release.done
    rig.say(integer(1))
    assert swapping.future.result() is None
    assert rig.server.one("release_holders").arguments[1] == swapping.new.token
    assert not release.done
    assert not rig.is_valid(swapping.new)
    rig.say(FINE)
    assert release.result() is None
    failure(again, LockNotHeld)
    swapping.assert_over()
    rig.go_on(10.0)
    assert rig.server.take() == []


@pytest.mark.parametrize("reply", REASONS)
def test_what_the_server_says_is_gone_is_lost_for_everybody(rig: Rig, swapping: Swapping, reply: int) -> None:
    swapping.begun()
    release = rig.release(swapping.new)
    rig.say(integer(reply))
    for future in (swapping.future, release):
        assert failure(future, LockLost).reason is REASONS[reply]
    assert swapping.new.loss is REASONS[reply]
    swapping.assert_over(reason=REASONS[reply])
    assert failure(rig.release(swapping.new), LockLost).reason is REASONS[reply]


def test_a_swap_that_finds_it_lost_says_why(rig: Rig, swapping: Swapping) -> None:
    rig.post(lambda: rig.engine.leases.mark_lost([swapping.old], LossReason.KEY_GONE))
    swapping.begin()
    release = rig.release(swapping.new)
    for future in (swapping.future, release):
        assert failure(future, LockLost).reason is LossReason.KEY_GONE
    assert rig.server.take() == []
    swapping.assert_over(reason=LossReason.KEY_GONE)


def test_a_swap_of_what_is_lost_meanwhile_says_why(rig: Rig, swapping: Swapping) -> None:
    swapping.begun()
    rig.post(lambda: rig.engine.leases.mark_lost([swapping.old], LossReason.KEY_GONE))
    rig.post(swapping.swap.give_up)
    assert swapping.new.loss is LossReason.KEY_GONE


def test_one_that_is_confirmed_behind_the_deadline_is_a_loss(rig: Rig, swapping: Swapping) -> None:
    swapping.begun()
    rig.clock.jump(4.0)
    rig.say(integer(1))
    failure(swapping.future, LockLost)
    swapping.assert_over(reason=LossReason.NOT_CONFIRMED)


def test_one_without_an_answer_is_a_loss_by_the_deadline_of_what_it_replaces(rig: Rig, swapping: Swapping) -> None:
    deadline = swapping.old.deadline
    swapping.swap.node.expected_delay_s = 0.5  # a WAIT for replicas
    swapping.begun()
    rig.launch.slow = True
    rig.go_to(deadline)
    failure(swapping.future, WheelLockError)
    swapping.assert_over(reason=LossReason.NOT_CONFIRMED)


def test_one_that_waits_for_an_alarm_ends_with_the_thread(
    rig: Rig, swapping: Swapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.engine.router, "redirection", lambda request, _: Later(1.0))
    swapping.begun()
    rig.say(error("TRYAGAIN the slot is being moved"))
    rig.end(End.DIED)
    failure(swapping.future, LockUnavailable)
    assert rig.swaps == {}


def test_a_failure_of_the_librarys_own_is_reported(failing: Rig) -> None:
    swapping = Swapping(failing).begun()
    with breaking(type(READ), "parse_adopt"):
        failing.say(integer(1))
    failure(swapping.future, WheelLockError)
    failing.go_on(0.5)
    assert_cleaned_up(failing, swapping.old, swapping.new)
    swapping.assert_over(reason=LossReason.INTERNAL_ERROR)
    assert swapping.new.loss is LossReason.INTERNAL_ERROR


ENDS: dict[str, Callable[[Rig, Swapping], object]] = {
    "given up": lambda rig, swapping: rig.post(swapping.swap.give_up),
    "closed": lambda rig, swapping: rig.ask(partial(rig.engine.close, 1.0)),
    "closed, its time up": lambda rig, swapping: (rig.ask(partial(rig.engine.close, 1.0)), rig.go_on(1.1)),
    "closed without a connection": lambda rig, swapping: (
        rig.server.close(),
        rig.turn(),
        rig.ask(partial(rig.engine.close, 1.0)),
        rig.go_on(1.1),
    ),
    "thread died": lambda rig, swapping: rig.end(End.DIED),
    "stopped": lambda rig, swapping: (rig.end(End.STOPPED), rig.turn()),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("answered", [False, True])
def test_a_release_that_waits_for_the_swap_ends_with_it(rig: Rig, swapping: Swapping, end: str, answered: bool) -> None:
    swapping.begun()
    releases = [rig.release(swapping.new), rig.release(swapping.new)]
    ENDS[end](rig, swapping)
    if answered and not rig.server.closed:
        for _ in range(3):  # what is cleaned up, too
            for command in rig.server.take():
                rig.server.say(integer(1) if command.what == "swap_holder" else FINE)
            rig.turn()
    rig.go_on(rig.engine.options.response_timeout_s + 0.1)
    assert [release.done for release in releases] == [True, True]
    assert swapping.future.done
    assert not rig.is_valid(swapping.new)
    assert not rig.is_valid(swapping.old)
    assert rig.swaps == {}
    assert rig.reasons == []  # nothing is lost for who has let go of it


def test_a_child_knows_of_no_swap(rig: Rig, swapping: Swapping) -> None:
    swapping.begun()
    rig.fork()
    assert rig.swaps == {}
    failure(rig.release(swapping.new), LockLost)
