from __future__ import annotations

import time

import pytest

from tests.support.waiting import eventually


def test_it_returns_the_first_true_value() -> None:
    values = iter([0, None, "", 7, 8])
    assert eventually(lambda: next(values)) == 7


def test_it_asks_at_least_once() -> None:
    assert eventually(lambda: True, 0.0)


def test_it_asks_once_more_when_its_time_is_up() -> None:
    # As when the process stands still between the question and the look at the clock.
    asked: list[float] = []

    def stands_still_at_first() -> bool:
        asked.append(0.0 if asked else 0.02)
        time.sleep(asked[-1])
        return len(asked) == 2

    assert eventually(stands_still_at_first, 0.01)


def test_it_says_what_did_not_happen() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the tide turns \(last seen: 0\)"):
        eventually(lambda: 0, 0.01, "the tide turns")
