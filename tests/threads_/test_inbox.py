"""Messages to the timer's thread: each is read, once, whatever that thread is doing when it is posted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.threads_.runs import explore
from tests.threads_.scheduler import Stage
from tests.threads_.seams import timer_on
from wheel_lock.runtime import loop

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
