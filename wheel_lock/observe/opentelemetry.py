"""Metrics and spans for OpenTelemetry. Needs the extra ``opentelemetry``; the SDK is the application's choice.

>>> from wheel_lock.observe.opentelemetry import instrument
>>> instrument()  # once per process: metrics of all contexts, on the global meter provider
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

from wheel_lock.errors import missing_extra, text_of
from wheel_lock.exclusion import exclusively
from wheel_lock.observe.contexts import CONTEXTS
from wheel_lock.observe.metrics import METRICS, Metric
from wheel_lock.observe.stats import Histogram

try:
    from opentelemetry import metrics as api
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
except ModuleNotFoundError as _error:
    raise missing_extra(__name__, "opentelemetry", _error) from _error

logger: logging.Logger = logging.getLogger("wheel_lock")

__all__ = ["MOST_RECORDED", "instrument", "trace"]

MOST_RECORDED = 10_000
"""The most values of one histogram and context that are recorded at one collection."""

_Attributes = dict[str, str | int]


def instrument(meter: Meter | None = None) -> None:
    """Make the instruments for all contexts of this process. They are read when the application's readers collect.

    Counters and gauges are observed. Histograms of renewals and the like are kept in the context, in buckets; at each
    collection what was counted since the last one is recorded, each value as the middle of its bucket. If that is more
    than 10,000 values of one histogram and context, a part of them is recorded, in the same proportions.

    Args:
        meter: The meter; by default that of the global meter provider with the name ``wheel_lock``. One call for each
            meter is enough; a second one counts everything twice.

    Raises:
        TypeError: ``meter`` is not a meter.
    """
    if meter is None:
        meter = api.get_meter("wheel_lock")
    elif not isinstance(meter, Meter):
        raise TypeError(f"meter must be an opentelemetry.metrics.Meter, not {type(meter).__name__}")
    histograms = _Histograms(meter)
    callbacks = [histograms.record]  # the first one of a collection: histograms are collected behind all callbacks
    for metric in (metric for metric in METRICS if metric.kind != "histogram"):
        callbacks.append(partial(_observe, metric))
        if metric.kind == "counter":
            make: Callable[..., object] = meter.create_observable_counter
        elif metric.unit == "s" or metric.name.endswith("most"):
            make = meter.create_observable_gauge
        else:
            make = meter.create_observable_up_down_counter
        make(metric.otel_name, callbacks, unit=metric.unit, description=metric.meaning)
        callbacks = []


def trace(context: Any, tracer: Tracer) -> None:
    """Make spans ``wheel_lock.acquire`` and ``wheel_lock.release`` for the lock objects that ``context`` makes from now on.

    The spans of a lock that is acquired in a task have the task's current span as their parent, those of threads that of
    the thread. An exception is recorded, and makes the status an error. Names of locks are attributes. Other contexts, and
    lock objects that exist already, cost nothing more. Calls in bulk have no spans.

    Args:
        context: A context, or its ``asyncio``.
        tracer: The tracer, for example ``opentelemetry.trace.get_tracer("billing")``.

    Raises:
        TypeError: One of the two is something else.
    """
    engine = getattr(context, "_engine", None)
    if engine is None or not hasattr(engine, "spans"):
        raise TypeError(f"context must be a LockContext, a QuorumContext or its asyncio, not {type(context).__name__}")
    if not isinstance(tracer, Tracer):
        raise TypeError(f"tracer must be an opentelemetry.trace.Tracer, not {type(tracer).__name__}")
    nodes = engine.node_health()
    server = _server(nodes[0].node) if len(nodes) == 1 else {}
    engine.spans = Spans(tracer, {"db.system.name": "redis", "wheel_lock.context": engine.label, **server})


@contextmanager
def _harmless(step: str) -> Iterator[None]:
    """Log a failure of a tracer."""
    try:
        yield
    except Exception:
        logger.exception("a span of a lock could not be %s", step)


class Spans:
    """Makes the spans of one context. A failure of the tracer is logged, and costs the span only."""

    def __init__(self, tracer: Tracer, attributes: Mapping[str, str | int]) -> None:
        self._tracer = tracer
        self._attributes = attributes

    def start(self, operation: str, names: Sequence[str | bytes], kind: str) -> Span | None:
        """Start the span of ``operation`` on the locks ``names``, of the lock type ``kind``; return None if that fails."""
        shown = [text_of(name) for name in names]
        attributes: dict[str, Any] = {
            **self._attributes,
            "wheel_lock.lock.name": shown[0] if len(shown) == 1 else shown,
            "wheel_lock.lock.type": kind,
        }
        with _harmless("started"):
            return self._tracer.start_span(f"wheel_lock.{operation}", kind=SpanKind.CLIENT, attributes=attributes)
        return None

    def end(self, span: Span | None, acquired: bool | None = None, error: BaseException | None = None) -> None:
        """End a span; of an acquire it notes whether the lock was granted, and stayed so.

        With the ``error`` that its operation has raised, unless it has ended.
        """
        if span is None or (error is not None and self.has_ended(span)):
            return
        with _harmless("ended"):
            if acquired is not None:
                span.set_attribute("wheel_lock.acquired", acquired)
            if error is not None:
                span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
                span.record_exception(error)
                span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()

    def has_ended(self, span: Span | None) -> bool:
        """Return whether a span has ended, or is none that anyone records."""
        try:
            return span is not None and not span.is_recording()
        except Exception:
            return False


def _server(address: str) -> _Attributes:
    """Return the address of a node by the conventional names."""
    host, colon, port = address.rpartition(":")
    return (
        {"server.address": host, "server.port": int(port)} if colon and port.isdigit() else {"server.address": address}
    )


def _attributes(metric: Metric, labels: tuple[str, ...]) -> _Attributes:
    attributes: _Attributes = {"db.system.name": "redis"}
    for name, value in zip(("context", *metric.labels), labels, strict=True):
        if name == "node":
            attributes.update(_server(value))
        else:
            attributes["wheel_lock.context" if name == "context" else f"wheel_lock.loss.{name}"] = value
    return attributes


def _observe(metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
    for labels, value in metric.values(CONTEXTS.readings()):
        assert not isinstance(value, Histogram)
        yield Observation(value, _attributes(metric, labels))


class _Histograms:
    """The histograms of one meter, and what has been recorded of them. Safe in any thread."""

    def __init__(self, meter: Meter) -> None:
        self._recorded: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        self._instruments = []
        for metric in METRICS:
            if metric.kind == "histogram":
                options: dict[str, Any] = {"unit": metric.unit, "description": metric.meaning}
                try:
                    made = meter.create_histogram(
                        metric.otel_name, explicit_bucket_boundaries_advisory=list(metric.bounds), **options
                    )
                except TypeError:  # an older API
                    made = meter.create_histogram(metric.otel_name, **options)
                self._instruments.append((metric, made))

    def record(self, options: CallbackOptions) -> Iterable[Observation]:
        """Record what has been counted since the last call; a callback that observes nothing itself."""
        exclusively(CONTEXTS.lock, self._record)  # two readers may collect at the same time
        return ()

    def _record(self) -> None:
        recorded, readings = {}, CONTEXTS.readings()
        for metric, instrument in self._instruments:
            for labels, value in metric.values(readings):
                assert isinstance(value, Histogram)
                key = (metric.name, labels)
                before = self._recorded.get(key) or [0] * len(value.counts)
                recorded[key] = value.counts
                new = [max(now - then, 0) for now, then in zip(value.counts, before, strict=True)]
                attributes = _attributes(metric, labels)
                for middle, times in zip(_middles(value), thinned(new, MOST_RECORDED), strict=True):
                    for _ in range(times):
                        instrument.record(middle, attributes)
        self._recorded = recorded


def _middles(histogram: Histogram) -> list[float]:
    """Return the value for which each bucket stands."""
    bounds = histogram.bounds
    return [
        bounds[0] / 2,
        *((low * high) ** 0.5 for low, high in pairwise(bounds)),
        max(bounds[-1] * 1.1, histogram.most),
    ]


def thinned(counts: list[int], most: int) -> list[int]:
    """Return ``counts`` with a sum of about ``most`` if theirs is larger, in the same proportions; none becomes zero.

    >>> thinned([10, 0, 20_000], 200)
    [1, 0, 200]
    """
    total = sum(counts)
    return counts if total <= most else [-(-times * most // total) for times in counts]
