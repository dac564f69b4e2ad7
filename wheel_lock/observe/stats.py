"""The counters of an engine, and the frozen snapshot of them that users get."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from wheel_lock.errors import LossReason

_GROWTH = 1.05


def _series(steps: tuple[float, ...], first_decade: int, decades: int) -> list[float]:
    """Return ``steps`` in each of ``decades`` powers of ten, as the nearest floats to their decimal texts."""
    return [float(f"{step}e{decade}") for decade in range(first_decade, first_decade + decades) for step in steps]


_ROUND = (1, 2.5, 5)
_PREFERRED = (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)  # Renard's R10 series: steps of 26 %

EXPORTED = _series(_ROUND, -4, 6)  # 0.1 ms to 50 s
"""The bounds, in seconds, that exporters show of lags, times left, and the times of acquires and callbacks."""
EXPORTED_LONG = _series(_ROUND, -3, 8)  # 1 ms to 14 h
"""The bounds, in seconds, that exporters show of the times for which locks were held."""

# Bounds that exporters show are among those that are counted by, so their counts are exact.
_FINE = sorted({1e-5 * _GROWTH**step for step in range(320)} | set(EXPORTED))  # 10 us to about 60 s, 5 % apart
_COARSE = _series(_PREFERRED, -5, 7)  # 10 us to 80 s
_COARSE_LONG = _series(_PREFERRED, -3, 8)  # 1 ms to 22 h


class LossCounts(Mapping[LossReason, int]):
    """The number of lost leases by reason: a read-only mapping that can be copied and pickled."""

    def __init__(self, counts: Mapping[LossReason, int]) -> None:
        self._counts = dict(counts)

    def __getitem__(self, reason: LossReason) -> int:
        return self._counts[reason]

    def __iter__(self) -> Iterator[LossReason]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return repr({str(reason): times for reason, times in self._counts.items()})


class Histogram:
    """Durations in buckets of fixed bounds: memory is constant. By default any quantile is accurate to 5 %.

    One thread writes; others may read.

    Args:
        bounds: The upper bounds of the buckets, in seconds, ascending. The last bucket, above them, has none.

    Attributes:
        bounds: The argument.
        most: The longest duration, in seconds.
        sum_s: The sum of all durations, in seconds.

    >>> lags = Histogram()
    >>> for value in (0.001, 0.002, 0.5): lags.add(value)
    >>> lags.most, 0.001 <= lags.quantile(0.3) <= 0.00105
    (0.5, True)
    """

    __slots__ = ("_counts", "bounds", "most", "sum_s")

    def __init__(self, bounds: Sequence[float] = _FINE) -> None:
        self.bounds: Sequence[float] = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum_s: float = 0.0
        self.most: float = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count ``times`` events of ``duration_s`` seconds. O(log n) in the number of buckets."""
        self._counts[bisect_left(self.bounds, duration_s)] += times
        self.sum_s += duration_s * times
        if duration_s > self.most:
            self.most = duration_s

    @property
    def total(self) -> int:
        """The number of events. O(n) in the number of buckets."""
        return sum(self._counts)

    @property
    def counts(self) -> list[int]:
        """The number of events in each bucket, as a copy; one more than there are bounds."""
        return self._counts.copy()

    def __add__(self, other: Histogram) -> Histogram:
        """Return a histogram of the events of both, which have the same bounds."""
        both = Histogram(self.bounds)
        both._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        both.sum_s = self.sum_s + other.sum_s
        both.most = max(self.most, other.most)
        return both

    def quantile(self, share: float) -> float:
        """Return an upper bound of the ``share`` quantile (0 to 1) in seconds; 0 if nothing was counted."""
        wanted = share * self.total
        seen = 0
        for bucket, times in enumerate(self._counts):
            seen += times
            if times and seen >= wanted:
                return min(self.bounds[bucket], self.most) if bucket < len(self.bounds) else self.most
        return 0.0

    def cumulative(self, bounds: Sequence[float]) -> list[int]:
        """Return for each of ``bounds``, which are among this histogram's own, how many events do not exceed it."""
        counts, found, seen, start = self.counts, [], 0, 0
        for bound in bounds:
            end = bisect_left(self.bounds, bound) + 1
            seen += sum(counts[start:end])
            start = end
            found.append(seen)
        return found


_EXTREMES: Mapping[str, Callable[..., object]] = {"time_left_min_s": min, "overdue_most": max}
_RENEWALS = ("renewed", "unknown", "batches", "connects", "lag", "time_left", *_EXTREMES)  # counted at each node


@dataclass(slots=True)
class Counters:
    """The counters of one engine. Written by the timer's thread only, but for ``callback``.

    Attributes:
        lag: From a renewal being due to its confirmation.
        time_left: The time left to the local deadline at a confirmation: of each renewal of a call, the least of the call.
        acquire: From the begin of an acquire, or of its call in bulk, to the grant.
        held: From the acquire's being sent to the release or the loss.
        callback: The run times of ``on_lost`` callbacks of threads. Written by the context's notifier thread.
        overdue_most: The most leases of one node that were overdue at once.
    """

    acquired: int = 0
    released: int = 0
    renewed: int = 0
    unknown: int = 0
    batches: int = 0
    connects: int = 0
    lost: Counter[LossReason] = field(default_factory=Counter)
    lag: Histogram = field(default_factory=Histogram)
    time_left: Histogram = field(default_factory=partial(Histogram, _COARSE))
    acquire: Histogram = field(default_factory=partial(Histogram, _COARSE))
    held: Histogram = field(default_factory=partial(Histogram, _COARSE_LONG))
    callback: Histogram = field(default_factory=partial(Histogram, _COARSE))
    time_left_min_s: float = math.inf
    overdue_most: int = 0

    def reset(self) -> None:
        """Set all counters to zero, in place."""
        empty = Counters()
        for name in self.__slots__:
            setattr(self, name, getattr(empty, name))

    def merge(self, other: Counters, names: Iterable[str] = ()) -> None:
        """Add the counts of ``other``, or those of ``names``; of extremes the more extreme one stays."""
        for name in names or self.__slots__:
            theirs = getattr(other, name)
            if name == "lost":
                theirs = theirs.copy()  # the timer's thread may add a reason meanwhile
            join: Callable[..., object] = _EXTREMES.get(name, operator.add)
            setattr(self, name, join(getattr(self, name), theirs))

    def merge_renewals(self, other: Counters) -> None:
        """Add the counts of ``other`` that concern renewals and connections, which the nodes of a quorum count."""
        self.merge(other, _RENEWALS)


@dataclass(frozen=True, slots=True)
class ContextStats:
    """A snapshot of one context. Counters start when the context is made.

    Attributes:
        held: Locks held now.
        waiting: Callers waiting for a lock now.
        acquired: Locks granted.
        released: Locks released by their holders.
        renewed: Renewals that the server confirmed.
        lost: Leases that ended without a release.
        lost_by_reason: The same, by :class:`LossReason`.
        unknown: Renewals without a known outcome (no reply, or an error that proves nothing); they are retried.
        overdue: Leases with a renewal that is due and not confirmed now.
        batches: Renewal script calls sent.
        connects: Connections made.
        renewal_lag_p50_s: Median time from due to confirmed.
        renewal_lag_p99_s: The 99th percentile of that time.
        renewal_lag_max_s: The longest such time.
        renewal_slack_min_s: The former name of ``renewal_time_left_min_s``.
        watching: True if each server with held locks reports changes of their keys (``watch=True``).
        renewal_time_left_min_s: The least time left to a local deadline when a renewal was confirmed.
    """

    held: int
    waiting: int
    acquired: int
    released: int
    renewed: int
    lost: int
    lost_by_reason: LossCounts
    unknown: int
    overdue: int
    batches: int
    connects: int
    renewal_lag_p50_s: float
    renewal_lag_p99_s: float
    renewal_lag_max_s: float
    renewal_slack_min_s: float
    watching: bool = False
    renewal_time_left_min_s: float = math.inf


def snapshot(counters: Counters, *, held: int, overdue: int, waiting: int = 0, watching: bool = False) -> ContextStats:
    """Return a frozen copy of ``counters``, with what is held, overdue, waiting and watched at this moment."""
    lost = LossCounts(counters.lost)
    return ContextStats(
        held=held,
        waiting=waiting,
        acquired=counters.acquired,
        released=counters.released,
        renewed=counters.renewed,
        lost=sum(lost.values()),
        lost_by_reason=lost,
        unknown=counters.unknown,
        overdue=overdue,
        batches=counters.batches,
        connects=counters.connects,
        renewal_lag_p50_s=counters.lag.quantile(0.5),
        renewal_lag_p99_s=counters.lag.quantile(0.99),
        renewal_lag_max_s=counters.lag.most,
        renewal_slack_min_s=counters.time_left_min_s,
        watching=watching,
        renewal_time_left_min_s=counters.time_left_min_s,
    )
