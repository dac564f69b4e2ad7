"""Work that must be done although it is interrupted."""

from __future__ import annotations

import sys

import pytest

from wheel_lock.runtime.interruptions import finaliser, insist

INTERRUPTIONS = 5


class Work:
    done = 0
    interrupted = 0

    def do(self) -> None:
        if Work.interrupted < INTERRUPTIONS:
            Work.interrupted += 1
            raise KeyboardInterrupt
        Work.done += 1

    __del__ = finaliser(do)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Work, "done", 0)
    monkeypatch.setattr(Work, "interrupted", INTERRUPTIONS)


def test_a_finaliser_does_its_work_once_however_often_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: reported.append(what.exc_type))
    Work.interrupted = 0
    Work()
    assert (Work.done, Work.interrupted) == (1, INTERRUPTIONS)
    assert reported == [KeyboardInterrupt]


def test_an_interruption_is_raised_when_the_work_is_done() -> None:
    work, Work.interrupted = Work(), 0
    with pytest.raises(KeyboardInterrupt):
        insist(Work.do, work)
    assert Work.done == 1


def test_work_that_always_fails_ends() -> None:
    calls: list[int] = []

    def fail(argument: int) -> None:
        calls.append(argument)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        insist(fail, 1)
    assert len(calls) < 20
