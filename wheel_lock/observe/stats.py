"""The counters of an engine, and the frozen snapshot of them that users get."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from wheel_lock.errors import LossReason

_GROWTH = 1.05
_BOUNDS = [1e-5 * _GROWTH**step for step in range(320)]  # 10 us to about 60 s, 5 % apart


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
    """Durations in buckets that grow by 5 %: any quantile is accurate to 5 %, and memory is constant.

    >>> lags = Histogram()
    >>> for value in (0.001, 0.002, 0.5): lags.add(value)
    >>> lags.most, 0.001 <= lags.quantile(0.3) <= 0.00105
    (0.5, True)
    """

    __slots__ = ("_counts", "most", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0
        self.most = 0.0

    def add(self, duration_s: float, times: int = 1) -> None:
        """Count ``times`` events of ``duration_s`` seconds. O(log n) in the number of buckets."""
        self._counts[bisect_left(_BOUNDS, duration_s)] += times
        self.total += times
        if duration_s > self.most:
            self.most = duration_s

    def quantile(self, share: float) -> float:
        """Return an upper bound, within 5 %, of the ``share`` quantile (0 to 1) in seconds; 0 if nothing was counted."""
        wanted = share * self.total
        seen = 0
        for bucket, times in enumerate(self._counts):
            seen += times
            if times and seen >= wanted:
                return min(_BOUNDS[bucket], self.most) if bucket < len(_BOUNDS) else self.most
        return 0.0


@dataclass(slots=True)
class Counters:
    """The counters of one engine. Written by the timer's thread only."""

    acquired: int = 0
    released: int = 0
    renewed: int = 0
    unknown: int = 0
    batches: int = 0
    connects: int = 0
    lost: Counter[LossReason] = field(default_factory=Counter)
    lag: Histogram = field(default_factory=Histogram)
    slack_min_s: float = math.inf

    def reset(self) -> None:
        """Set all counters to zero, in place."""
        empty = Counters()
        for name in self.__slots__:
            setattr(self, name, getattr(empty, name))


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
        renewal_slack_min_s: The least time left to a local deadline when a renewal was confirmed.
        watching: True if each server with held locks reports changes of their keys (``watch=True``).
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
        renewal_slack_min_s=counters.slack_min_s,
        watching=watching,
    )
