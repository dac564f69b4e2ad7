"""Notifiers: each call is made, once and in order, on one thread at a time, also if that is about to end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.threads_.runs import explore, interrupt
from tests.threads_.scheduler import Stage
from wheel_lock.runtime import notifier, sole_thread
from wheel_lock.runtime.notifier import _LINGER_S, Notifier


def scene(stage: Stage) -> Callable[[], object]:
    posted = Notifier()
    made: list[tuple[str, int]] = []
    inside: list[tuple[str, int]] = []

    def call(poster: str, number: int) -> None:
        assert not inside, "two threads"
        inside.append((poster, number))
        stage.offer()
        made.append(inside.pop())

    def post(poster: str) -> None:
        posted.post(call, poster, 0)
        stage.sleep(_LINGER_S)  # its thread is about to end
        posted.post(call, poster, 1)

    stage.actor(partial(post, "first"))
    stage.actor(partial(post, "second"))

    def check() -> None:
        assert [number for poster, number in made if poster == "second"] == [0, 1]
        ours = [number for poster, number in made if poster == "first"]
        assert ours == [0, 1] or (stage.interrupted and ours in ([], [0]))
        assert not posted.busy
        assert not posted._sole
        assert not posted._sole.launched

    return check


def test_each_call_is_made_once_and_in_order() -> None:
    assert explore(scene, notifier, sole_thread, threads=4) > 100


def test_a_poster_that_is_interrupted_does_not_keep_others_from_being_called() -> None:
    assert interrupt(scene, 0, notifier, sole_thread) > 5
