"""Metrics for OpenTelemetry, read by the SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.backend import Backend
from wheel_lock import LockContext
from wheel_lock.observe import opentelemetry
from wheel_lock.observe.metrics import METRICS
from wheel_lock.observe.opentelemetry import instrument, thinned


class Reader:
    """What one reader collects of one label."""

    def __init__(self, reader: InMemoryMetricReader, label: str) -> None:
        self._reader = reader
        self._label = label

    def collect(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}

    def points(self, name: str) -> list[Any]:
        return points(self.collect(), name, self._label)


def points(metrics: dict[str, Any], name: str, label: str) -> list[Any]:
    return [point for point in metrics[name].data.data_points if point.attributes["wheel_lock.context"] == label]


@pytest.fixture
def reader(label: str) -> Iterator[Reader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instrument(provider.get_meter("tests"))
    yield Reader(reader, label)
    provider.shutdown()


def renewed(context: LockContext, clock: Any, locks: int) -> None:
    """Acquire locks and have each renewed once."""
    held = context.acquire_many([f"renewed:{number}" for number in range(locks)], timeout=30.0)
    clock.advance(12.0)
    assert context.stats().renewed >= locks
    context.release_many(held.values())


def test_each_metric_has_its_name_kind_unit_and_meaning(reader: Reader, real: Backend, label: str) -> None:
    context, clock = real.stepped_context(label=label)
    renewed(context, clock, 10)
    found = reader.collect()
    kinds = {"counter": "Sum", "gauge": "Gauge", "histogram": "Histogram"}
    for metric in METRICS:
        if metric.name.startswith("node.re") or metric.name == "node.connections" or metric.name == "callback.duration":
            continue  # of quorums, and of callbacks, of which there are none
        shown = found[metric.otel_name]
        assert (shown.unit, shown.description) == (metric.unit, metric.meaning)
        kind = type(shown.data).__name__
        if kind == "Sum":
            assert shown.data.is_monotonic == (metric.kind == "counter")
        else:
            assert kind == kinds[metric.kind]


def test_values_are_those_of_the_context(reader: Reader, real: Backend, label: str) -> None:
    context, clock = real.stepped_context(label=label)
    renewed(context, clock, 20)
    with context.lock("held"):
        found = reader.collect()
    stats = context.stats()
    assert [point.value for point in points(found, "wheel_lock.locks.held", label)] == [1]
    assert [point.value for point in points(found, "wheel_lock.locks.acquired", label)] == [21]
    assert [point.value for point in points(found, "wheel_lock.renewals", label)] == [stats.renewed]
    attributes = points(found, "wheel_lock.node.connected", label)[0].attributes
    assert attributes == {
        "db.system.name": "redis",
        "wheel_lock.context": label,
        "server.address": "127.0.0.1",
        "server.port": real.port,
    }
    lost = points(found, "wheel_lock.locks.lost", label)
    assert {point.attributes["wheel_lock.loss.reason"] for point in lost} >= {"key_gone", "taken"}


def test_histograms_have_every_value_once(reader: Reader, real: Backend, label: str) -> None:
    context, clock = real.stepped_context(label=label)
    renewed(context, clock, 20)
    (first,) = reader.points("wheel_lock.renewal.time_left")
    assert first.count == sum(first.bucket_counts) == context.stats().renewed
    # A timeout of 30 s, renewed after 10: between 10 and 25 s are left.
    counted = dict(zip(first.explicit_bounds, first.bucket_counts, strict=False))
    assert counted[25.0] == first.count
    assert 10 <= first.sum / first.count <= 25
    renewed(context, clock, 5)
    (second,) = reader.points("wheel_lock.renewal.time_left")
    (third,) = reader.points("wheel_lock.renewal.time_left")
    assert second.count == third.count == context.stats().renewed


def test_a_flood_of_values_is_recorded_in_part(
    reader: Reader, real: Backend, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opentelemetry, "MOST_RECORDED", 50)
    context, clock = real.stepped_context(label=label)
    renewed(context, clock, 400)
    (point,) = reader.points("wheel_lock.renewal.time_left")
    assert 50 <= point.count <= 60


@pytest.mark.parametrize("counts", [[0, 0], [1, 2, 3], [100, 0, 900, 1]])
def test_thinning_keeps_proportions_and_loses_no_bucket(counts: list[int]) -> None:
    found = thinned(counts, 100)
    assert [count > 0 for count in found] == [count > 0 for count in counts]
    assert sum(found) <= 100 + len(counts)
    assert sum(counts) > 100 or found == counts


def test_the_global_provider_is_the_default_and_other_things_are_refused() -> None:
    instrument()  # without an SDK: nothing happens
    with pytest.raises(TypeError, match="meter"):
        instrument("meter")  # type: ignore[arg-type]
