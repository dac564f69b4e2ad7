"""Metrics for Prometheus: a collector for ``prometheus_client``. Needs the extra ``prometheus``.

>>> from prometheus_client import REGISTRY
>>> from wheel_lock.observe.prometheus import Collector
>>> REGISTRY.register(Collector())  # once per process: it collects all contexts
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wheel_lock.errors import missing_extra, text_of
from wheel_lock.observe.contexts import CONTEXTS, Reading
from wheel_lock.observe.metrics import LOCK_HELD, LOCK_REMAINING, METRICS, Kind, Metric
from wheel_lock.observe.stats import Histogram
from wheel_lock.options import count

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector as _Collector
except ModuleNotFoundError as _error:
    raise missing_extra(__name__, "prometheus", _error) from _error

__all__ = ["Collector"]

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: Mapping[Kind, type[_Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
MOST_NAMES = 1000


class Collector(_Collector):
    """Collects the metrics of all contexts of this process, at the moment of a scrape. Nothing is sent to a server.

    The label ``context`` of each sample is the label of the context (``LockContext(..., label="billing")``; without one the
    address of its server); the figures of contexts with one label are added up. Names of locks are not labels, unless
    ``max_names`` asks for it.

    Args:
        max_names: The number of locks, in each context, for which ``wheel_lock_lock_held_seconds`` and
            ``wheel_lock_lock_remaining_seconds`` are exported with the lock's name as the label ``lock``: those that have
            been held for the longest time. 0 to 1,000; each scrape then takes time that grows with the number of locks.

    Raises:
        ValueError: ``max_names`` is out of range.
    """

    def __init__(self, *, max_names: int = 0) -> None:
        self._max_names = count("max_names", max_names, least=0, most=MOST_NAMES)

    def collect(self) -> Iterable[_Family]:
        """Return all metrics with their values. From any thread."""
        readings = CONTEXTS.readings()
        for metric in METRICS:
            yield _family(metric, readings)
        if self._max_names:
            yield from self._by_name()

    def describe(self) -> Iterable[_Family]:
        """Return all metrics without values, so that a second collector in one registry is refused."""
        metrics = (*METRICS, LOCK_HELD, LOCK_REMAINING) if self._max_names else METRICS
        return [_family(metric) for metric in metrics]

    def _by_name(self) -> Iterable[_Family]:
        held, remaining = _family(LOCK_HELD), _family(LOCK_REMAINING)
        assert isinstance(held, GaugeMetricFamily)
        assert isinstance(remaining, GaugeMetricFamily)
        seen: set[tuple[str, str]] = set()
        for engine in CONTEXTS:
            for lock in engine.held_locks(self._max_names):
                labels = (engine.label, text_of(lock.name))
                if labels not in seen:  # two readers of one lock, or contexts of two databases
                    seen.add(labels)
                    held.add_metric(labels, lock.age_s)
                    remaining.add_metric(labels, lock.remaining_s)
        return held, remaining


def _family(metric: Metric, readings: Sequence[Reading] = ()) -> _Family:
    """Return ``metric`` with the values of ``readings``."""
    family = _FAMILIES[metric.kind](metric.prometheus_name, metric.meaning, labels=("context", *metric.labels))
    for labels, value in metric.values(readings):
        if isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Histogram)
            seen = [*value.cumulative(metric.bounds), value.total]
            family.add_metric(labels, list(zip((*map(str, metric.bounds), "+Inf"), seen, strict=True)), value.sum_s)
        else:
            assert not isinstance(value, Histogram)
            family.add_metric(labels, value)
    return family
