"""What a death of the timer's thread, or an interrupted caller, leaves half done is completed; failures are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.direct.opened import on_path, only_hold, opened, path_of
from tests.support.backend import LONG_S, Backend, Losses, without_collection
from tests.support.interruptions import Interruption, at_every_place
from tests.support.timers import ask, kill
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LossReason
from wheel_lock.engine.direct import path
from wheel_lock.engine.direct.hold import HOLDING, RELEASING, DirectHold
from wheel_lock.engine.future import Future, noop
from wheel_lock.lease import State
from wheel_lock.testing import settle

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
NAME = "order:42"
TIMEOUT_S = 60.0  # long, so that what is left behind is seen


@pytest.fixture
def _no_collection() -> Iterator[None]:
    with without_collection():
        yield


def works(context: LockContext, where: str) -> None:
    """Check that the path can be used, and that what is held on it is taken over."""
    opened(context)
    with context.lock("next", TIMEOUT_S) as lock:
        assert on_path(lock), where
        context.timer.post(path_of(context).take_over)
        ask(context.timer)
        assert not on_path(lock), where
        assert lock._lease in context._engine.leases.held, where
        assert lock._lease.tick >= 0, where
    settle(context.timer)
    assert not path_of(context).claim, where


def freed_soon(context: LockContext, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Have the thread die, and look in quick succession; return when the path is free, and it looks as usual again."""
    with monkeypatch.context() as quick:
        quick.setattr(path, "LOOK_S", 0.001)
        quick.setattr(path, "_LONGEST_LOOKS", 2)
        kill(context.timer)
        eventually(lambda: not path_of(context).claim and not path_of(context).watched, LONG_S, where)
        ask(context.timer)


# Deaths of the timer's thread


def look(context: LockContext, hold: DirectHold) -> None:
    for _ in range(2):
        path_of(context)._look(context.timer.clock.now())


def collide(context: LockContext, hold: DirectHold) -> None:
    path_of(context).collided()


def finish(context: LockContext, hold: DirectHold) -> None:
    hold.ends[HOLDING] = [RELEASING]
    hold.finish_release(Future(noop))


def give_up(context: LockContext, hold: DirectHold) -> None:
    in_its_acquire(hold)
    hold.give_up()


def in_its_acquire(hold: DirectHold) -> None:
    """Have it as if its caller had not read the reply to its acquire."""
    hold.lease.state = State.PENDING
    hold.ends.clear()


@pytest.mark.usefixtures("unwatched", "_no_collection")
@pytest.mark.parametrize("work", [look, collide, finish, give_up])
def test_the_timers_thread_dies_anywhere_in_its_work(
    context: LockContext,
    real: Backend,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[LockContext, DirectHold], object],
) -> None:
    """The work is done here, where each place can be struck, while that thread sleeps; then it dies."""
    losses: list[Losses] = []
    locks: list[Lock] = []
    acquired: list[int] = []

    def scene(interruption: Interruption) -> None:
        real.view.delete(NAME)  # that of the scene before would expire
        opened(context)
        for _ in range(2):
            with context.lock("counted"):
                pass
        losses.append(Losses())
        locks.append(context.lock(NAME, TIMEOUT_S, on_lost=losses[-1]))
        assert locks[-1].acquire(), interruption
        acquired.append(context.stats().acquired)
        assert on_path(locks[-1])
        ask(context.timer)
        hold = only_hold(path_of(context))
        interruption.begin()
        work(context, hold)
        interruption.end()

    for where in at_every_place(scene):
        freed_soon(context, monkeypatch, where)
        events, lock = losses[-1].delivered(), locks[-1]
        assert not lock.is_held, where
        stats = context.stats()
        assert stats.held == 0, where
        if work in (look, collide):
            assert [event.reason for event in events] == [LossReason.THREAD_DIED], where
            assert stats.acquired == acquired[-1], where
            assert stats.acquired == stats.released + stats.lost, where
        else:
            assert stats.acquired == acquired[-1] - (work is give_up), where
            context._engine.counters.released += stats.acquired - stats.released - stats.lost
        works(context, where)


# The connection


def test_failures_are_forgotten_when_the_path_has_been_in_use(context: LockContext) -> None:
    direct = path_of(context)
    direct._worth_it = 8
    for number in range(10):
        assert direct._worth_it == 8, number
        direct._uses_before = direct.uses
        with context.lock(NAME):
            pass

    def forgotten() -> bool:
        with context.lock(NAME):
            pass
        return direct._worth_it == path._WORTH_IT

    eventually(forgotten, LONG_S)
