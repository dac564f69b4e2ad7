"""What can be seen: quantiles that are right to 5 %, and snapshots that stay as they were taken."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wheel_lock.errors import LossReason
from wheel_lock.observe import ContextStats, HeldLock, LostEvent
from wheel_lock.observe.stats import EXPORTED, EXPORTED_LONG, Counters, Histogram, snapshot

durations = st.floats(1e-5, 57.0)
shares = st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0])


def histogram(values: list[float]) -> Histogram:
    found = Histogram()
    for value in values:
        found.add(value)
    return found


def exact_quantile(values: list[float], share: float) -> float:
    """The smallest value that `share` of the values did not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


@given(values=st.lists(durations, min_size=1, max_size=200), share=shares)
def test_a_quantile_is_at_most_5_percent_too_high_and_never_too_low(values: list[float], share: float) -> None:
    exact = exact_quantile(values, share)
    assert exact <= histogram(values).quantile(share) <= exact * 1.05 * (1 + 1e-9)


@given(values=st.lists(st.floats(0.0, 1e6), min_size=1))
def test_quantiles_of_anything_grow_up_to_the_longest(values: list[float]) -> None:
    found = histogram(values)
    quantiles = [found.quantile(share) for share in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] == found.most == max(values)
    assert found.total == len(values)
    for share, quantile in zip((0.0, 0.1, 0.5, 0.9, 0.99, 1.0), quantiles, strict=True):
        assert quantile >= exact_quantile(values, share)


def test_what_no_bucket_holds_is_neither_overrated_nor_underrated() -> None:
    for value in (0.0, 1e-9, -1e-9):
        assert histogram([value, 1.0]).quantile(0.5) <= 1e-5
    assert histogram([100.0, 200.0]).quantile(0.5) >= 100.0
    assert histogram([100.0, 200.0]).quantile(1.0) == 200.0


@given(values=st.lists(st.one_of(durations, st.sampled_from(EXPORTED)), max_size=100))
def test_exported_buckets_are_exact(values: list[float]) -> None:
    assert histogram(values).cumulative(EXPORTED) == [sum(value <= bound for value in values) for bound in EXPORTED]


@pytest.mark.parametrize("name", ["lag", "time_left", "acquire", "callback", "held"])
def test_each_histogram_has_the_bounds_that_are_exported(name: str) -> None:
    found: Histogram = getattr(Counters(), name)
    exported = EXPORTED_LONG if name == "held" else EXPORTED
    assert set(exported) <= set(found.bounds)
    assert found.bounds == sorted(found.bounds)
    assert len(found.counts) == len(found.bounds) + 1


def test_a_sum_of_histograms_stays_as_it_was() -> None:
    found = histogram([0.001, 0.1])
    both = found + histogram([7.0]) + histogram([6.0])
    found.add(5.0)
    assert (both.total, both.most) == (4, 7.0)
    assert both.sum_s == pytest.approx(13.101)
    assert both.cumulative([0.001, 0.1, 5.0]) == [1, 2, 2]


def test_counters_can_be_added() -> None:
    one, other = counted(), counted()
    other.time_left_min_s, other.overdue_most = 0.125, 7
    one.merge(other)
    assert (one.acquired, one.released, one.renewed, one.batches, one.connects) == (10, 4, 200, 8, 2)
    assert one.lost == {LossReason.TAKEN: 2, LossReason.KEY_GONE: 4}
    assert (one.time_left_min_s, one.overdue_most, one.lag.total) == (0.125, 7, 200)
    assert other.acquired == 5


def counted() -> Counters:
    counters = Counters()
    counters.acquired, counters.released, counters.renewed, counters.unknown = 5, 2, 100, 3
    counters.batches, counters.connects, counters.time_left_min_s = 4, 1, 0.25
    counters.lost[LossReason.TAKEN] += 1
    counters.lost[LossReason.KEY_GONE] += 2
    counters.lag.add(0.001, 100)
    return counters


def test_a_snapshot_shows_what_was_counted_and_stays_as_it_was_taken() -> None:
    counters = counted()
    stats = snapshot(counters, held=7, overdue=1)
    assert (stats.held, stats.overdue) == (7, 1)
    assert (stats.acquired, stats.released, stats.renewed, stats.unknown) == (5, 2, 100, 3)
    assert (stats.batches, stats.connects) == (4, 1)
    assert stats.renewal_time_left_min_s == stats.renewal_slack_min_s == 0.25
    assert stats.lost == 3
    assert stats.lost_by_reason == {LossReason.TAKEN: 1, LossReason.KEY_GONE: 2}
    assert stats.renewal_lag_p50_s == stats.renewal_lag_p99_s == stats.renewal_lag_max_s == 0.001
    with pytest.raises(TypeError):
        stats.lost_by_reason[LossReason.TAKEN] = 0  # type: ignore[index]
    before = dataclasses.asdict(stats)
    counters.acquired += 1
    counters.lost[LossReason.ABANDONED] += 1
    counters.lag.add(60.0)
    counters.reset()
    assert dataclasses.asdict(stats) == before


@pytest.mark.parametrize(
    "value",
    [
        snapshot(Counters(), held=0, overdue=0),
        LostEvent("order:42", LossReason.TAKEN, 1.0, 2.0, 3, None),
        HeldLock("order:42", 30.0, 1.0, 2.0, 3, False),
    ],
    ids=type,
)
def test_what_users_see_is_frozen(value: ContextStats | LostEvent | HeldLock) -> None:
    for field in dataclasses.fields(value):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        value.another = 1  # type: ignore[union-attr]


def test_a_snapshot_can_be_copied_pickled_and_compared() -> None:
    stats = snapshot(counted(), held=7, overdue=1)
    assert copy.copy(stats) == copy.deepcopy(stats) == pickle.loads(pickle.dumps(stats)) == stats
    assert stats != snapshot(counted(), held=8, overdue=1)
