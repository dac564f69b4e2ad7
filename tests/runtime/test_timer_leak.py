"""A timer that its owner has dropped without a stop(): what waits on it still comes, and then nothing is left of it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.support import recorded_warnings
from tests.support.background import EVENTUALLY_S
from tests.support.timers import ask, drain
from tests.support.waiting import eventually
from wheel_lock.runtime.timer import HashedWheelTimer


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def warned() -> Iterator[list[str]]:
    with recorded_warnings() as texts:
        yield texts
        drain()


def started() -> HashedWheelTimer:
    """A timer whose thread runs, and on which nothing is scheduled."""
    timer = HashedWheelTimer()
    ask(timer)
    return timer


def thread_names() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def is_gone(reference: weakref.ref[HashedWheelTimer], name: str) -> bool:
    gc.collect()
    return reference() is None and name not in thread_names()


def test_an_idle_one_is_collected_with_its_thread_and_its_descriptors(warned: list[str]) -> None:
    gc.collect()
    drain()
    before = descriptors()
    timers = [started() for _ in range(3)]
    assert descriptors() > before
    names = [timer.name for timer in timers]
    references = [weakref.ref(timer) for timer in timers]
    del timers
    for reference, name in zip(references, names, strict=True):
        eventually(lambda reference=reference, name=name: is_gone(reference, name), interval_s=0.05)  # type: ignore[misc]
    eventually(lambda: descriptors() <= before)
    eventually(lambda: len(warned) == 3)
    assert sorted(warned) == sorted(f"the timer {name} was dropped without stop()" for name in names)


def test_what_is_pending_on_it_still_comes(warned: list[str]) -> None:
    ran = threading.Event()
    HashedWheelTimer().new_timeout(lambda timeout: ran.set(), 0.3)
    gc.collect()
    assert ran.wait(EVENTUALLY_S)
    eventually(lambda: gc.collect() >= 0 and warned, interval_s=0.05)


def test_one_that_was_stopped_or_never_ran_is_collected_without_a_word(warned: list[str]) -> None:
    gc.collect()
    before = descriptors()
    stopped, unused = started(), HashedWheelTimer()
    stopped.stop()
    references = [weakref.ref(stopped), weakref.ref(unused)]
    del stopped, unused
    eventually(lambda: gc.collect() >= 0 and not any(reference() for reference in references), interval_s=0.05)
    eventually(lambda: descriptors() <= before)
    drain()
    assert warned == []
