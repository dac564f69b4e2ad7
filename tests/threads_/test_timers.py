"""A timer: each message is read once, and each timeout expires in time, is cancelled, or is returned by `stop()`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.threads_.runs import explore
from tests.threads_.scheduler import Stage
from tests.threads_.seams import timer_on
from wheel_lock.runtime import loop
from wheel_lock.runtime import timer as timer_module
from wheel_lock.runtime.timer import Timeout

# Messages, whatever the thread is doing when they are posted

POSTERS = {"one": 1, "two": 2}


@pytest.mark.parametrize("posters", POSTERS.values(), ids=POSTERS)
def test_no_message_is_left_unread(posters: int) -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        timer = timer_on(stage)
        read: list[tuple[int, int]] = []
        everything = [(poster, number) for poster in range(posters) for number in range(2)]

        def turn() -> None:
            while len(read) < len(everything):
                timer.turn(block=True)

        def post(poster: int) -> None:
            for number in range(2):
                timer.post(partial(read.append, (poster, number)))

        stage.actor(turn)
        for poster in range(posters):
            stage.actor(partial(post, poster))

        def check() -> None:
            assert sorted(read) == everything

        return check

    assert explore(scene, loop, threads=1 + posters) > 40


# Timeouts

LATE_S = 0.05


def test_a_new_timeout_expires_in_time() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        timer = timer_on(stage)
        made: list[Timeout] = []
        late: list[float] = []

        def turn() -> None:
            while len(late) < 2:
                timer.turn(block=True)

        def make() -> None:
            made.append(timer.new_timeout(expired, 5.0))
            made.append(timer.new_timeout(expired, 0.5))

        def expired(timeout: Timeout) -> None:
            late.append(stage.now - timeout.due_at)

        stage.actor(turn)
        stage.actor(make)

        def check() -> None:
            assert all(0 <= late_s < LATE_S for late_s in late), late
            assert all(timeout.expired for timeout in made)
            assert timer.pending == 0

        return check

    assert explore(scene, timer_module) > 50


def test_it_expires_or_is_cancelled_or_returned() -> None:
    def scene(stage: Stage) -> Callable[[], object]:
        timer = timer_on(stage)
        ran: list[Timeout] = []
        cancelled: list[bool] = []
        timeouts = [timer.new_timeout(ran.append, 0.0) for _ in range(2)]
        returned: set[Timeout] = set()

        def turn() -> None:
            while not timer.stopped:
                timer.turn(block=True)
            timer.turn()
            timer._sole.end()

        def cancel() -> None:
            cancelled.extend(timeout.cancel() for timeout in timeouts)

        stage.actor(turn)
        stage.actor(cancel)
        stage.actor(lambda: returned.update(timer.stop()))

        def check() -> None:
            for timeout, was_cancelled in zip(timeouts, cancelled, strict=True):
                assert [timeout in ran, was_cancelled, timeout in returned].count(True) == 1
            assert timer.pending == 0

        return check

    assert explore(scene, timer_module, threads=3) > 50
