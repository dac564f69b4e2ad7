"""Interruptions of finalisers, which the interpreter swallows: what they hand over arrives nevertheless."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

from tests.support.backend import Backend
from tests.support.interruptions import Interruption, at_every_place
from tests.support.lock_types import make
from tests.support.timers import NewTimer, ask, drain, fall_asleep
from tests.support.waiting import eventually
from wheel_lock import LockContext, Semaphore
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.sync.call import _ThreadMark
from wheel_lock.testing import settle

pytestmark = [
    pytest.mark.usefixtures("no_collection"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
    pytest.mark.servers("real"),
]

TIMEOUT_S = 60.0  # long, so that what is left behind is seen


def dropped(make: Callable[[], object], *, again_after: int | None = None, in_cycles: bool = False) -> Iterator[str]:
    """Make something and drop it, once for each place in its finalisers, of which there are several."""

    def scene(interruption: Interruption) -> None:
        kept = [make()]
        interruption.begin()
        kept.clear()
        if in_cycles:
            gc.collect()
        interruption.end()

    for number, where in enumerate(at_every_place(scene, again_after=again_after, in_finalisers=True)):  # noqa: B007
        yield where
    assert number > 0


@pytest.mark.parametrize(
    ("kind", "again_after"),
    [("exclusive", None), ("exclusive", 0), ("exclusive", 1), ("semaphore", None), ("fair", None)],
)
def test_a_lock_that_is_dropped_is_abandoned(context: LockContext, kind: str, again_after: int | None) -> None:
    def held() -> object:
        lock = make(context, kind, "a", timeout=TIMEOUT_S)
        assert lock.acquire()
        return lock

    for where in dropped(held, again_after=again_after):
        settle(context.timer)
        assert not context.held(), where
        context.force_release("a")


def test_the_leases_of_other_threads_through_a_dropped_object_are_abandoned(context: LockContext) -> None:
    over = threading.Event()

    def hold(given: list[Semaphore], taken: threading.Event) -> None:
        assert given.pop().acquire()
        taken.set()
        over.wait(20.0)  # its leases do not end with it

    def held() -> object:
        lock = context.semaphore("a", 10, timeout=TIMEOUT_S)
        for _ in range(2):
            taken = threading.Event()
            threading.Thread(target=hold, args=([lock], taken), daemon=True).start()
            assert taken.wait(20.0)
        assert lock.acquire()
        return lock

    for where in dropped(held):
        settle(context.timer)
        assert not context.held(), where
        context.force_release("a")
    over.set()


def test_the_connections_of_a_dropped_context_are_closed(backend: Backend, new_timer: NewTimer) -> None:
    timer = new_timer()

    def used() -> object:
        context = LockContext(backend.client(), timer=timer)
        with context.lock("a"):
            pass
        return context

    for where in dropped(used):
        eventually(lambda: not (timer._poller is not None and timer._poller.watched), message=where)


def test_the_end_of_a_thread_is_marked() -> None:
    owners = []

    def scene(interruption: Interruption) -> None:
        mark = _ThreadMark()
        owners.append(mark.owner)
        interruption.begin()
        del mark
        interruption.end()

    for where in at_every_place(scene, in_finalisers=True):
        assert owners[-1].ended, where


def test_a_mark_whose_making_was_interrupted_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    _ThreadMark.__new__(_ThreadMark)
    assert not printed


def test_a_dropped_timer_ends_its_thread_and_is_warned_of() -> None:
    names: list[str] = []

    def asleep() -> object:
        timer = HashedWheelTimer()
        names.append(timer.name)
        ask(timer)
        fall_asleep(timer)  # when its thread does not refer to it
        return timer

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for where in dropped(asleep, in_cycles=True):
            eventually(lambda: names[-1] not in {thread.name for thread in threading.enumerate()}, message=where)
            drain()
            assert any(names[-1] in str(warning.message) for warning in caught), where
