"""`exclusively`: one thread at a time, and the lock is free afterwards, wherever one of them is interrupted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.threads_.runs import explore, interrupt
from tests.threads_.scheduler import Stage
from tests.threads_.seams import Lock
from wheel_lock import exclusion
from wheel_lock.exclusion import exclusively


def scene(stage: Stage) -> Callable[[], object]:
    lock = Lock(stage)
    inside: set[str] = set()
    through: list[str] = []

    def work(name: str) -> None:
        assert not inside, "two at once"
        inside.add(name)
        stage.offer()
        inside.discard(name)

    def use(name: str) -> None:
        exclusively(lock, partial(exclusively, lock), work, name)
        through.append(name)

    stage.actor(partial(use, "first"))
    stage.actor(partial(use, "second"))

    def check() -> None:
        assert lock.owner is None
        assert len(through) == (1 if stage.interrupted else 2)

    return check


def test_one_thread_at_a_time() -> None:
    assert explore(scene, exclusion) > 20


def test_the_lock_of_a_thread_that_is_interrupted_is_free() -> None:
    assert interrupt(scene, 0, exclusion) >= 3
