"""The pulse: what keeps the process from running is known at once, and counted once."""

from __future__ import annotations

from tests.faults.support import Pulse, hold_the_interpreter, now
from tests.support.waiting import eventually


def test_a_stall_is_known_before_the_next_beat_and_counted_once() -> None:
    with Pulse() as pulse:
        began = now()
        hold_the_interpreter(0.2)
        ended = now()
        assert 0.15 < pulse.stood_s(began, ended) <= ended - began
        eventually(lambda: pulse.seen[-1][1] < now() - 0.001, message="the pulse beats again")
        assert 0.15 < pulse.stood_s(began, ended) <= ended - began


def test_only_what_lies_between_two_times_counts() -> None:
    before = now()
    with Pulse() as pulse:
        hold_the_interpreter(0.2)
        middle = now()
        hold_the_interpreter(0.1)
        assert pulse.stood_s(until=before) == 0.0
        assert 0.05 < pulse.stood_s(since=middle) <= now() - middle
        assert pulse.stood_s() > 0.25
        assert pulse.stood_s(since=now() + 1.0) == 0.0
