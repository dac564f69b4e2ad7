"""An exception anywhere in the timer's thread ends that thread, says so, and leaves no message unread."""

from __future__ import annotations

import gc
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import wheel_lock
from tests.threads_.runs import interrupt
from tests.threads_.scheduler import Stage
from tests.threads_.seams import Clock
from wheel_lock.runtime.timer import HashedWheelTimer

EVERYWHERE = bool(os.environ.get("THREADS_EVERYWHERE"))  # also where CPython raises no asynchronous one
TIMERS_THREAD = 2  # index of the timer's thread, behind the caller's and the one that launches it


class Dropped:
    def __del__(self) -> None:
        sorted([3, 1, 2])


def whole_library() -> list[ModuleType]:
    """What the timer's thread may come by: the library, and what it uses of the standard library."""
    ours = [module for name, module in sys.modules.items() if name.startswith(wheel_lock.__name__)]
    names = ("weakref", "contextlib", "functools", "threading", "logging", "warnings", "queue", "selectors", __name__)
    return [module for module in [*ours, *(sys.modules[name] for name in names)] if hasattr(module, "__file__")]


@pytest.fixture
def collected() -> Iterator[None]:
    """The collector calls Python code before and behind each collection."""

    def look(phase: str, info: dict[str, int]) -> None:
        len(phase)

    gc.callbacks.append(look)
    yield
    gc.callbacks.remove(look)


def in_cycle(thing: Any) -> None:
    cycle = [thing]
    cycle.append(cycle)


@pytest.mark.usefixtures("collected")
def test_it_ends_of_it_and_the_next_one_goes_on(swallowed: list[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="wheel_lock")

    def scene(stage: Stage) -> Callable[[], object]:
        timer = HashedWheelTimer(clock=Clock(stage), slots=8)
        read: list[str] = []
        turns: list[int] = []
        stage.when_interrupted = lambda: turns.append(timer.turns)
        swallowed.clear()

        def drop() -> None:
            dropped = Dropped()
            weakref.finalize(dropped, len, read)
            in_cycle(dropped)
            del dropped
            gc.collect(0)

        def use() -> None:
            expiring = timer.new_timeout(lambda timeout: read.append("timeout"), 0.02)
            cancelled = timer.new_timeout(print, 0.02)
            timer.post(drop)
            timer.post(partial(read.append, "message"))
            cancelled.cancel()
            stage.wait(lambda: expiring.expired, 1.0)
            timer.post(partial(read.append, "last"))  # in C: interrupted in it, a message is lost with the thread
            stage.sleep(0.1)
            timer.stop()

        stage.actor(use)

        def check() -> None:
            assert not timer.running
            assert "last" in read
            if not timer.deaths:
                assert set(read) == {"timeout", "message", "last"}
                assert not turns or swallowed or timer.turns == turns[0], "it has gone on without a word"

        return check

    assert interrupt(scene, TIMERS_THREAD, *whole_library(), everywhere=EVERYWHERE) > 50
