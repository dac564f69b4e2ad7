"""A thread of which there is at most one: starts that come at the same time, fail, or are interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S
from tests.support.interruptions import Interruption
from wheel_lock.runtime import native
from wheel_lock.runtime.sole_thread import SoleThread
from wheel_lock.runtime.timer import HashedWheelTimer


class ThreadToStart:
    """A thread as `SoleThread` knows it, which runs nothing."""

    ident = None

    def __init__(self) -> None:
        self.starts = 0

    def start(self) -> None:
        self.starts += 1

    def is_alive(self) -> bool:
        return False

    def join(self, timeout: float | None = None) -> None:
        pass


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What is to be run by new threads of the system, in the order in which these were asked for."""
    asked: list[Callable[[], object]] = []

    def start_new_thread(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        asked.append(lambda: function(*arguments))

    monkeypatch.setattr(native, "start_new_thread", start_new_thread)
    return asked


def unexpected(error: BaseException) -> None:
    raise error


def test_while_a_thread_is_on_its_way_or_there_no_other_is_launched(launches: list[Callable[[], object]]) -> None:
    sole, thread = SoleThread(), ThreadToStart()
    sole.start(thread, unexpected)
    sole.start(ThreadToStart(), unexpected)
    launches[0]()
    sole.start(ThreadToStart(), unexpected)
    assert len(launches) == 1
    sole.end()
    sole.start(ThreadToStart(), unexpected)
    assert len(launches) == 2


def test_of_two_that_are_on_their_way_the_first_becomes_the_thread(launches: list[Callable[[], object]]) -> None:
    sole, threads = SoleThread(), [ThreadToStart(), ThreadToStart()]
    for thread in threads:
        sole.start(thread, unexpected)
        sole.launched = False  # as if it was interrupted right behind the launch
    for launch in launches:
        launch()
    assert [thread.starts for thread in threads] == [1, 0]
    assert sole.thread is threads[0]


def test_a_stop_waits_for_a_thread_that_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    start_new_thread, sleep, goes_on = native.start_new_thread, native.sleep, threading.Event()

    def start_late(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        start_new_thread(lambda: goes_on.wait(EVENTUALLY_S) and function(*arguments), ())

    def let_it_go_on(pause_s: float) -> None:
        goes_on.set()
        sleep(pause_s)

    timer, ran = HashedWheelTimer(), list[str]()
    with monkeypatch.context() as patched:
        patched.setattr(native, "start_new_thread", start_late)
        patched.setattr(native, "sleep", let_it_go_on)
        timer.post(lambda: ran.append("it"))
        timer.stop()
        running = timer.running
        goes_on.set()
    assert not running
    assert ran == ["it"]


def test_an_exception_in_the_new_thread_in_place_of_its_starter_keeps_it_from_nothing(
    launches: list[Callable[[], object]],
) -> None:
    """As CPython 3.11 may have it, with what `PyThreadState_SetAsyncExc` sets while the new thread does not run yet."""
    sole, thread, interruption = SoleThread(), ThreadToStart(), Interruption(0)
    sole.start(thread, unexpected)
    [launch] = launches
    try:
        interruption.begin()
        launch()
    finally:
        interruption.end()
    assert interruption.where
    assert (sole.thread, sole.launched, thread.starts) == (thread, False, 1)
