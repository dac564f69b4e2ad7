"""Rounding: down for renewals, up for users' timers, and float error is not time."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_lock.wheel import TickScale

FLOAT_ERROR_TICKS = 1e-5  # an instant within this distance of a tick counts as on it

scales = st.builds(TickScale, st.integers(1, 1000), st.floats(0, 1e6))
instants = st.floats(-1e6, 1e6)
ticks = st.integers(-(10**8), 10**8)


def test_a_tick_outside_1_to_1000_ms_is_refused_by_name() -> None:
    bad: list[Any] = [0, -1, 1001, 0.5, 10.0, True, "10", math.nan]
    for tick_ms in bad:
        with pytest.raises(ValueError, match=f"tick_ms.*{tick_ms!r}"):
            TickScale(tick_ms, 0.0)
    assert [TickScale(tick_ms, 0.0).tick_s for tick_ms in (1, 10, 1000)] == [0.001, 0.01, 1.0]


def test_an_instant_within_float_error_of_a_tick_is_that_tick() -> None:
    scale = TickScale(10, 0.0)
    for seconds, tick in [(0.1 + 0.2, 30), (0.57, 57), (sum([0.01] * 1000), 1000), (1.1 + 2.2, 330), (-0.07, -7)]:
        assert (scale.floor(seconds), scale.ceil(seconds)) == (tick, tick)


def test_a_span_is_the_whole_ticks_in_a_duration_and_at_least_one() -> None:
    for seconds, span in [(0.1 + 0.2, 30), (0.309, 30), (30.0 / 3, 1000), (0.01, 1), (0.009, 1), (0.0, 1)]:
        assert TickScale(10, 55.5).span(seconds) == span


@given(scales, ticks)
def test_the_instant_of_a_tick_rounds_to_that_tick_either_way(scale: TickScale, tick: int) -> None:
    seconds = scale.seconds(tick)
    assert (scale.floor(seconds), scale.ceil(seconds)) == (tick, tick)


@given(scales, instants)
def test_floor_is_never_late_and_less_than_a_tick_early(scale: TickScale, seconds: float) -> None:
    early = seconds - scale.seconds(scale.floor(seconds))
    assert -FLOAT_ERROR_TICKS * scale.tick_s <= early < (1 + FLOAT_ERROR_TICKS) * scale.tick_s


@given(scales, instants)
def test_ceil_is_never_early_and_less_than_a_tick_late(scale: TickScale, seconds: float) -> None:
    late = scale.seconds(scale.ceil(seconds)) - seconds
    assert -FLOAT_ERROR_TICKS * scale.tick_s <= late < (1 + FLOAT_ERROR_TICKS) * scale.tick_s


@given(scales, instants, instants)
def test_time_order_is_tick_order(scale: TickScale, one: float, other: float) -> None:
    earlier, later = sorted([one, other])
    assert scale.floor(earlier) <= scale.floor(later)
    assert scale.ceil(earlier) <= scale.ceil(later)
    assert scale.floor(earlier) <= scale.ceil(earlier) <= scale.floor(earlier) + 1


@given(st.integers(1, 1000), st.floats(0, 1e6))
def test_a_span_fits_into_its_duration_and_one_more_tick_does_not(tick_ms: int, seconds: float) -> None:
    span = TickScale(tick_ms, 0.0).span(seconds)
    exact = Fraction(seconds) * 1000 / tick_ms
    assert span == 1 or span <= exact + Fraction(FLOAT_ERROR_TICKS)
    assert span + 1 > exact
