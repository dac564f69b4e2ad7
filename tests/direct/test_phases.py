"""Each phase of a hold is ended by one side, whatever the other does between two instructions, as under a debugger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import wheel_lock.engine.direct
from tests.direct.opened import on_path, only_hold, opened, path_of
from tests.support.backend import LONG_S, Backend, without_collection
from tests.support.timers import ask
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, WheelLockError
from wheel_lock.engine.direct.connection import DirectConnection
from wheel_lock.engine.direct.hold import ACQUIRING, HOLDING, LEFT, RELEASING, TAKEN, DirectHold
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.lease import State
from wheel_lock.locks.callers import RELEASED, CallerFuture
from wheel_lock.testing import settle

NAME = "order:42"
TIMEOUT_S = 60.0
HERE = str(Path(wheel_lock.engine.direct.__file__).parent)
_PARTS = ("hold.py", "path.py")


class AtInstruction:
    """Calls `meanwhile` before the nth instruction of the direct path that this thread executes. Once."""

    def __init__(self, nth: int, meanwhile: Callable[[], object]) -> None:
        self.where = ""
        self._left = nth
        self._meanwhile = meanwhile
        self._before = sys.gettrace()

    def __enter__(self) -> None:
        sys.settrace(self._on_call)

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(HERE) or not frame.f_code.co_filename.endswith(_PARTS):
            return None
        if not frame.f_trace_opcodes:
            frame.f_trace_opcodes = True
            sys.settrace(
                self._on_call
            )  # from Python 3.12 on it is this call that switches the events of instructions on
        return self._on_instruction

    def _on_instruction(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode" and not self.where:
            self._left -= 1
            if self._left < 0:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}, instruction {frame.f_lasti}"
                sys.settrace(None)
                self._meanwhile()
                sys.settrace(self._on_call)
        return self._on_instruction


def before_every_instruction(
    scene: Callable[[Callable[[Callable[[], object]], AtInstruction]], object],
) -> Iterator[str]:
    """Play a scene once for each instruction; it gets what makes the watcher of the instructions in its block."""
    # From Python 3.12 on the first trace of a function switches the events of its instructions on, too late for itself.
    scene(lambda meanwhile: AtInstruction(sys.maxsize, meanwhile))
    nth, where = 0, "the first"
    while where:
        watcher: list[AtInstruction] = []

        def at(
            meanwhile: Callable[[], object], watcher: list[AtInstruction] = watcher, nth: int = nth
        ) -> AtInstruction:
            watcher.append(AtInstruction(nth, meanwhile))
            return watcher[-1]

        scene(at)
        where = watcher[-1].where
        nth += 1
        yield where or f"nowhere any more, after {nth - 1} instructions"
    assert nth > 50


@pytest.fixture
def context(real: Backend) -> Iterator[LockContext]:
    """A context on a timer of its own, whose thread sleeps: what it does is done here."""
    context = real.context(timer=real.timer(), response_timeout=20.0)
    with without_collection():
        yield context
    context.close()


pytestmark = pytest.mark.usefixtures("unwatched")


def held_on_path(context: LockContext, name: str = NAME) -> tuple[Lock, DirectHold]:
    direct = opened(context)
    ask(context.timer)
    lock = context.lock(name, TIMEOUT_S)
    lock.acquire()
    assert on_path(lock)
    return lock, only_hold(direct)


def nothing_is_left(context: LockContext, real: Backend, where: str) -> None:
    settle(context.timer)
    eventually(lambda: not real.view.exists(NAME), LONG_S, where)
    eventually(lambda: not context._engine.leases.held and not path_of(context).claim, LONG_S, where)
    stats = context.stats()
    assert (stats.held, stats.acquired, stats.lost) == (0, stats.released, 0), where


def new_hold(context: LockContext) -> DirectHold:
    direct = opened(context)
    engine, future = context._engine, context.lock(NAME)._new_future()
    lock = context.lock(NAME)
    wait = lock._new_waiter(False, None, None, future)
    assert isinstance(wait, FirstTry)
    assert isinstance(direct._connection, DirectConnection)
    assert engine.direct is direct
    return DirectHold(direct, wait, direct._connection)


ENDED: dict[str, tuple[dict[str, object], str, bool]] = {
    "acquiring": ({}, ACQUIRING, False),
    "refused": ({ACQUIRING: LEFT}, LEFT, False),
    "held": ({ACQUIRING: HOLDING}, HOLDING, True),
    "releasing": ({ACQUIRING: HOLDING, HOLDING: [RELEASING]}, RELEASING, False),
    "released": ({ACQUIRING: HOLDING, HOLDING: [RELEASING], RELEASING: LEFT}, LEFT, False),
}


@pytest.mark.parametrize(("ends", "phase", "taken_over"), ENDED.values(), ids=ENDED)
def test_the_phase_that_the_timers_thread_ends(
    context: LockContext, ends: dict[str, object], phase: str, taken_over: bool
) -> None:
    for _ in range(2):
        hold = new_hold(context)
        hold.ends.update(ends)
        assert (hold.take_over(), hold.take_over()) == (taken_over, taken_over)
        assert (hold.take(), hold.take()) == (phase, phase)
        assert (TAKEN in hold.ends.values()) is (phase is not LEFT)
        if phase is ACQUIRING:
            assert hold.release(CallerFuture[None], RELEASED) is None  # type: ignore[arg-type]


def test_the_timers_thread_takes_over_anywhere_in_a_release(context: LockContext, real: Backend) -> None:
    def scene(at: Callable[[Callable[[], object]], AtInstruction]) -> None:
        lock, _ = held_on_path(context)
        with at(path_of(context).take_over):
            lock.release()
        assert not lock.is_held

    for where in before_every_instruction(scene):
        nothing_is_left(context, real, where)


def test_a_caller_releases_anywhere_while_its_lock_is_taken_over(context: LockContext, real: Backend) -> None:
    def scene(at: Callable[[Callable[[], object]], AtInstruction]) -> None:
        lock, hold = held_on_path(context)
        done: list[CallerFuture[None] | None] = []
        with at(lambda: done.append(hold.release(lock._new_future, RELEASED))):
            path_of(context).take_over()
        if done == [None] or not done:
            lock.release()
        elif done[0] is not None:
            done[0].wait()
            done[0].result()
        assert hold.lease.state is State.RELEASED

    for where in before_every_instruction(scene):
        nothing_is_left(context, real, where)


@pytest.mark.parametrize("phase", ["acquire", "release"])
def test_a_caller_that_stands_still_until_the_path_is_anothers(context: LockContext, real: Backend, phase: str) -> None:
    """What it does when it goes on concerns its own lock only: the other one stays on the path, and is taken over."""

    def scene(at: Callable[[Callable[[], object]], AtInstruction]) -> None:
        direct = opened(context)
        ask(context.timer)
        lock, other = context.lock(NAME, TIMEOUT_S), context.lock("other", TIMEOUT_S)
        if phase == "release":
            lock.acquire()

        def much_later() -> None:
            for hold in list(direct.claim.values()):
                direct.go_on(hold)  # as after many looks
            opened(context)
            assert other.acquire()
            others.append(on_path(other))

        others: list[bool] = []
        try:
            with at(much_later):
                if phase == "acquire":
                    lock.acquire()
                else:
                    lock.release()
        except WheelLockError:
            pass
        if others:
            assert on_path(other) or other._lease in context._engine.leases.held
            context.timer.post(direct.take_over)
            ask(context.timer)
            assert other._lease is not None
            assert other._lease in context._engine.leases.held
            assert other._lease.tick >= 0
            other.release()
            seen.append(others[0])
        if lock.is_held:
            lock.release()

    seen: list[bool] = []
    for where in before_every_instruction(scene):
        settle(context.timer)
        eventually(lambda: not real.view.exists(NAME), LONG_S, where)
        assert not context._engine.leases.held, where
        assert not path_of(context).claim, where
    assert sum(seen) > 50
