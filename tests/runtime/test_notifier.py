"""The notifier thread: in order, one after the other, whatever a callback does to it."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.background import EVENTUALLY_S, in_a_fork
from tests.support.interruptions import Interrupted, Interruption, at_every_place
from tests.support.timers import (
    ALLOCATIONS,
    Garbage,
    Gate,
    RaisingHandler,
    drain,
    log_handler,
    messages,
    with_garbage_at_every_allocation,
)
from tests.support.waiting import eventually
from wheel_lock.runtime import native
from wheel_lock.runtime.notifier import NOTIFIER, Notifier, Task
from wheel_lock.runtime.timer import HashedWheelTimer

NewLinger = Callable[[float], None]


@pytest.fixture
def new_linger(monkeypatch: pytest.MonkeyPatch) -> NewLinger:
    """What sets for how many seconds an idle thread is kept."""
    return lambda seconds: monkeypatch.setattr(sys.modules[Notifier.__module__], "_LINGER_S", seconds)


class Fails:
    """A callback that raises an error with a name."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self) -> None:
        raise self._error

    def __repr__(self) -> str:
        return "the callback of the accountants"


def test_there_is_no_thread_before_there_is_something_to_tell() -> None:
    before = threading.active_count()
    notifier = Notifier()
    assert threading.active_count() == before
    assert notifier.drain(EVENTUALLY_S)  # of nothing
    assert threading.active_count() == before
    notifier.post(lambda: None)
    assert notifier.drain(EVENTUALLY_S)
    assert notifier._sole.thread is not None


def test_the_thread_ends_when_nothing_is_left_to_tell_and_the_next_call_starts_another(new_linger: NewLinger) -> None:
    new_linger(0.05)
    notifier = Notifier()
    threads: list[threading.Thread] = []
    for _ in range(2):
        notifier.post(lambda: threads.append(threading.current_thread()))
        assert notifier.drain(EVENTUALLY_S)
        eventually(lambda: not threads[-1].is_alive(), message="the idle thread ends")
    assert threads[0] is not threads[1]
    gone = weakref.ref(notifier)
    del notifier
    eventually(lambda: gone() is None, message="the notifier is collected")


def test_draining_that_of_the_process_waits_for_all_others() -> None:
    other = Notifier()
    with Gate(other.post):
        assert not NOTIFIER.drain(0.01)
    assert NOTIFIER.drain(EVENTUALLY_S)


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()], ids=repr
)
def test_a_call_that_fails_is_logged_and_the_next_runs(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    threads: list[threading.Thread] = []
    NOTIFIER.post(lambda: threads.append(threading.current_thread()))
    NOTIFIER.post(Fails(error))
    NOTIFIER.post(lambda: threads.append(threading.current_thread()))
    (message,) = messages(caplog, logging.ERROR)
    assert "the callback of the accountants" in message
    assert caplog.records[-1].exc_info is not None
    assert caplog.records[-1].exc_info[1] is error
    assert threads[0] is threads[1]


def test_a_log_handler_that_fails_does_not_keep_the_next_call_from_running() -> None:
    called = threading.Event()
    with log_handler(RaisingHandler()):
        with Gate():  # so that all three are in the queue before the first runs
            NOTIFIER.post(Fails(ValueError()))
            NOTIFIER.post(logging.getLogger("wheel_lock").warning, "lost 1 lock(s)")
            NOTIFIER.post(called.set)
        assert called.wait(EVENTUALLY_S), "what was posted after a failure to log was never run"


def test_where_the_system_has_no_thread_a_post_logs_nothing_by_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Whoever posts may be the thread that renews the locks, and a handler may wait, for its lock if for nothing else.
    caplog.set_level(logging.DEBUG, "wheel_lock")
    notifier = Notifier()
    seen: list[str] = []

    def no_thread(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(native, "start_new_thread", no_thread)
        notifier.post(seen.append, "first")
        assert caplog.records == []
        assert seen == []
    notifier.post(seen.append, "second")
    assert notifier.drain(EVENTUALLY_S)
    assert seen == ["first", "second"]
    (record,) = caplog.records
    assert record.getMessage() == """notifications had to wait for a thread: RuntimeError("can't start new thread")"""
    assert record.threadName is not None
    assert record.threadName.startswith("wheel-lock-notifier-")


@pytest.mark.parametrize("again_after", [None, 0, 2], ids=lambda places: f"again after {places}")
def test_an_interrupted_post_is_carried_out_and_its_caller_interrupted(again_after: int | None) -> None:
    def scene(interruption: Interruption) -> None:
        notifier, seen = Notifier(), list[str]()
        interrupted = False
        try:
            interruption.begin()
            notifier.post(seen.append, "posted")
        except Interrupted:
            interrupted = True
        finally:
            interruption.end()
        assert interrupted == bool(interruption.where)
        eventually(lambda: seen == ["posted"], message="the call is run")
        notifier.post(seen.append, "next")
        assert notifier.drain(EVENTUALLY_S)
        assert seen == ["posted", "next"]

    for _ in at_every_place(scene, again_after=again_after):
        pass


@pytest.mark.parametrize("started", [False, True])
def test_what_interrupts_a_threads_start_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch, new_linger: NewLinger, started: bool
) -> None:
    new_linger(0.05)

    class TimeIsUp(RuntimeError):
        """A limit of a job, of the kind of exceptions that also says that there is no thread."""

    notifier, seen = Notifier(), list[str]()
    start, me = native.start_new_thread, threading.get_ident()

    for error in (KeyboardInterrupt, TimeIsUp):

        def interrupted(*arguments: Any, error: type[BaseException] = error) -> None:
            if threading.get_ident() != me:  # a timer that another test has left
                start(*arguments)
                return
            monkeypatch.setattr(native, "start_new_thread", start)
            if started:
                start(*arguments)
            raise error

        monkeypatch.setattr(native, "start_new_thread", interrupted)
        eventually(lambda: notifier._sole.thread is None, message="there is no thread")
        with pytest.raises(error):
            notifier.post(seen.append, error.__name__)
        eventually(lambda error=error: error.__name__ in seen, message="the call is run")  # type: ignore[misc]
    assert seen == ["KeyboardInterrupt", "TimeIsUp"]


@pytest.mark.parametrize("kind", [Notifier, HashedWheelTimer])
def test_a_post_from_a_finaliser_in_the_middle_of_a_post_is_run_like_any_other(
    kind: type[Notifier] | type[HashedWheelTimer],
) -> None:
    def check() -> None:
        made: list[Notifier | HashedWheelTimer] = []
        seen: list[str] = []

        def new_garbage() -> None:
            made.append(one := kind())  # a new one, so that the start of its thread is interrupted too
            Garbage(lambda: one.post(partial(seen.append, "finaliser")))

        with_garbage_at_every_allocation(lambda: made[-1].post(partial(seen.append, "call")), new_garbage)
        gc.collect()
        eventually(lambda: seen.count("call") == seen.count("finaliser") == ALLOCATIONS, EVENTUALLY_S)

    in_a_fork(check)


# Tasks that are handed over as one


class Job:
    """A task with a number, which it appends to a list."""

    def __init__(self, number: int, seen: list[int]) -> None:
        self.number = number
        self.seen = seen

    def task(self, job: Job) -> None:
        assert job is self
        self.seen.append(self.number)


class FailingJob(Job):
    def task(self, job: Job) -> None:
        super().task(job)
        raise SystemExit(f"job {self.number}")


def test_tasks_that_are_posted_together_run_in_order_between_what_was_posted_before_and_after() -> None:
    notifier, seen = Notifier(), list[int]()
    notifier.post(seen.append, -1)
    for first in (0, 500):
        jobs = deque[Task](Job(first + number, seen) for number in range(500))
        notifier.post_each(jobs)
    notifier.post(seen.append, 1000)
    assert notifier.drain(EVENTUALLY_S)
    assert seen == [-1, *range(1001)]
    eventually(lambda: not notifier.busy)  # the call of drain() is noted as ended right behind it


def test_a_task_that_fails_is_logged_and_those_posted_with_it_run(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    NOTIFIER.post_each(deque[Task]([Job(1, seen), FailingJob(2, seen), Job(3, seen)]))
    (message,) = messages(caplog, logging.ERROR)
    assert "FailingJob.task" in message
    assert seen == [1, 2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tasks_that_a_killed_thread_has_left_are_run_by_the_next_before_anything_else() -> None:
    notifier, seen = Notifier(), list[int]()
    killed: list[threading.Thread] = []

    class Killing(Job):
        """Has the thread killed right behind the call of the task, where no task is to blame."""

        @property
        def task(self) -> Any:
            self.seen.append(self.number)
            if not killed:
                killed.append(threading.current_thread())
                raise SystemExit
            return lambda job: None

    notifier.post(lambda: None)
    notifier.post_each(deque[Task]([Job(1, seen), Killing(2, seen), Job(3, seen), Job(4, seen)]))
    notifier.post(seen.append, 5)
    eventually(lambda: len(seen) == 5)
    assert seen == [1, 2, 3, 4, 5]
    eventually(lambda: not killed[0].is_alive())  # until here its end is reported, which is an error elsewhere


def test_a_child_that_a_task_forks_does_not_run_the_tasks_behind_it() -> None:
    notifier, seen = Notifier(), list[int]()
    wrong = multiprocessing.get_context("fork").Event()

    class Forking(Job):
        def task(self, job: Job) -> None:
            if os.fork() == 0:
                self.seen.append(0)  # which the jobs behind it see in the child only
                threading.Timer(0.5, os._exit, [0]).start()  # the thread that has forked returns into the notifier
            else:
                os.wait()

    class Telling(Job):
        def task(self, job: Job) -> None:
            if self.seen:
                wrong.set()

    notifier.post_each(deque[Task]([Forking(1, seen), Telling(2, seen)]))
    notifier.post(Telling(3, seen).task, None)
    assert notifier.drain(EVENTUALLY_S)
    assert not wrong.is_set()


class Marker:
    """Something whose end can be seen."""


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_call_is_kept_while_waiting_for_the_next(fails: bool) -> None:
    marker = Marker()
    gone = weakref.ref(marker)

    def call(marker: Marker) -> None:
        if fails:
            raise ValueError("not kept")

    with log_handler(logging.NullHandler()):
        NOTIFIER.post(call, marker)
        del marker
        eventually(lambda: gone() is None, message="the argument was dropped")


def test_the_notifier_cannot_wait_for_itself() -> None:
    answers: list[bool] = []
    NOTIFIER.post(lambda: answers.append(NOTIFIER.drain(EVENTUALLY_S)))
    drain()
    assert answers == [False]


def test_a_forked_child_has_an_empty_notifier_that_works() -> None:
    seen: list[str] = []
    with Gate():
        NOTIFIER.post(seen.append, "of the parent")

        def check() -> None:
            assert NOTIFIER.drain(EVENTUALLY_S)
            assert seen == []
            NOTIFIER.post(seen.append, "of the child")
            assert NOTIFIER.drain(EVENTUALLY_S)
            assert seen == ["of the child"]

        in_a_fork(check)
    drain()
    assert seen == ["of the parent"]
