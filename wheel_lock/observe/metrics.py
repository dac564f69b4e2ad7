"""The metrics that all exporters have in common: names, kinds, units, meanings, and how each is read.

The name is that of OpenTelemetry without its ``wheel_lock.``; that of Prometheus follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from wheel_lock.errors import LossReason
from wheel_lock.observe.contexts import Reading
from wheel_lock.observe.health import NodeHealth
from wheel_lock.observe.stats import EXPORTED, EXPORTED_LONG, Counters, Histogram

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[str, ...]
Value = float | Histogram

MOST_NODES = 100  # limit per label: a cluster may have more, and the server names the addresses


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: The name, in parts that are separated by dots.
        unit: ``s``, or the thing that is counted in braces, as OpenTelemetry has it.
        meaning: One sentence.
        read: Returns the values of a reading, each with the values of its labels.
        labels: The names of the labels, beside that of the context.
        bounds: Of a histogram: the upper bounds of its buckets, in seconds.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    read: Callable[[Reading], Iterable[tuple[Labels, Value]]]
    labels: Labels = ()
    bounds: Sequence[float] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus, without ``_total``, ``_bucket`` and the like.

        >>> METRICS[0].prometheus_name
        'wheel_lock_locks_held'
        """
        return f"wheel_lock_{self.name.replace('.', '_')}{'_seconds' if self.unit == 's' else ''}"

    @property
    def otel_name(self) -> str:
        """The name in OpenTelemetry."""
        return f"wheel_lock.{self.name}"

    def values(self, readings: Iterable[Reading]) -> Iterable[tuple[Labels, Value]]:
        """Return the values of ``readings``, each behind the label of its context and the values of the other labels."""
        return [((reading.label, *labels), value) for reading in readings for labels, value in self.read(reading)]


def _one(read: Callable[[Reading], Value]) -> Callable[[Reading], list[tuple[Labels, Value]]]:
    return lambda reading: [((), read(reading))]


def _gauge(name: str, unit: str, meaning: str, read: Callable[[Reading], Value]) -> Metric:
    return Metric(name, "gauge", unit, meaning, _one(read))


def _counter(name: str, unit: str, meaning: str, read: Callable[[Counters], int]) -> Metric:
    return Metric(name, "counter", unit, meaning, _one(lambda reading: read(reading.counters)))


def _histogram(
    name: str, meaning: str, read: Callable[[Counters], Histogram], bounds: Sequence[float] = EXPORTED
) -> Metric:
    return Metric(name, "histogram", "s", meaning, _one(lambda reading: read(reading.counters)), bounds=bounds)


def _gauge_of_nodes(name: str, unit: str, meaning: str, read: Callable[[NodeHealth], float | None]) -> Metric:
    """Return a metric of the nodes of open contexts; None is no value."""

    def values(reading: Reading) -> list[tuple[Labels, Value]]:
        found: list[tuple[Labels, Value]] = []
        for node in reading.nodes.values():
            if (value := read(node)) is not None:
                found.append(((node.node,), value))
        return found[:MOST_NODES]

    return Metric(name, "gauge", unit, meaning, values, ("node",))


def _also_of_nodes(
    name: str, kind: Kind, unit: str, meaning: str, read: Callable[[Counters], Value], bounds: Sequence[float] = ()
) -> tuple[Metric, Metric]:
    """Return a metric, and the same of each node of a quorum."""

    def values(reading: Reading) -> list[tuple[Labels, Value]]:
        return [((node,), read(counters)) for node, counters in list(reading.node_counters.items())[:MOST_NODES]]

    return (
        Metric(name, kind, unit, f"{meaning}.", _one(lambda reading: read(reading.counters)), bounds=bounds),
        Metric(f"node.{name}", kind, unit, f"{meaning}, at a node of a quorum.", values, ("node",), bounds),
    )


def _lost(reading: Reading) -> list[tuple[Labels, Value]]:
    lost = reading.counters.lost
    return [((reason.name.lower(),), lost[reason]) for reason in LossReason]


_METRICS: tuple[Metric, ...] = (
    _gauge("locks.held", "{lock}", "Locks held now.", lambda of: of.held),
    _gauge(
        "locks.overdue", "{lock}", "Leases with a renewal that is due and not confirmed now.", lambda of: of.overdue
    ),
    _gauge(
        "locks.overdue.most",
        "{lock}",
        "The most leases of one node that were overdue at once.",
        lambda of: of.counters.overdue_most,
    ),
    _gauge("callers.waiting", "{caller}", "Callers waiting for a lock now.", lambda of: of.waiting),
    _gauge(
        "wait.longest",
        "s",
        "The time for which the longest of the waiting callers has been waiting.",
        lambda of: of.longest_wait_s,
    ),
    _gauge("contexts", "{context}", "Open contexts with this label.", lambda of: of.contexts),
    _counter("locks.acquired", "{lock}", "Locks granted.", lambda counters: counters.acquired),
    _counter("locks.released", "{lock}", "Locks released by their holders.", lambda counters: counters.released),
    Metric("locks.lost", "counter", "{lock}", "Leases that ended without a release.", _lost, ("reason",)),
    *_also_of_nodes("renewals", "counter", "{renewal}", "Renewals that a server confirmed", lambda of: of.renewed),
    *_also_of_nodes(
        "renewals.unknown",
        "counter",
        "{renewal}",
        "Renewals without a known outcome, which are tried again",
        lambda of: of.unknown,
    ),
    _counter("renewal.calls", "{call}", "Renewal script calls sent.", lambda counters: counters.batches),
    *_also_of_nodes("connections", "counter", "{connection}", "Connections made", lambda of: of.connects),
    *_also_of_nodes(
        "renewal.lag", "histogram", "s", "From a renewal being due to its confirmation", lambda of: of.lag, EXPORTED
    ),
    *_also_of_nodes(
        "renewal.time_left",
        "histogram",
        "s",
        "The time left to the local deadline when a renewal was confirmed",
        lambda of: of.time_left,
        EXPORTED,
    ),
    *_also_of_nodes(
        "renewal.slack", "histogram", "s", "The former name of renewal.time_left", lambda of: of.time_left, EXPORTED
    ),
    _histogram("acquire.duration", "From the begin of an acquire to the grant.", lambda counters: counters.acquire),
    _histogram(
        "hold.duration", "From the acquire to the release or the loss.", lambda counters: counters.held, EXPORTED_LONG
    ),
    _histogram(
        "callback.duration", "The run times of on_lost callbacks of threads.", lambda counters: counters.callback
    ),
    _gauge_of_nodes(
        "node.connected",
        "{connection}",
        "1 if there is a connection to the node, and it answers; else 0.",
        lambda node: int(node.connected),
    ),
    _gauge_of_nodes(
        "node.overdue",
        "{lock}",
        "Leases of the node with a renewal that is due and not confirmed now.",
        lambda node: node.overdue,
    ),
    _gauge_of_nodes(
        "node.confirmation.age",
        "s",
        "The time since the node last confirmed a grant or a renewal.",
        lambda node: node.last_confirmation_age_s,
    ),
)

METRICS: tuple[Metric, ...] = (*sorted(_METRICS, key=lambda metric: "node" in metric.labels),)  # those of nodes last

# By lock name, only where the user asks for them.
LOCK_HELD = Metric("lock.held", "gauge", "s", "The time for which this lock has been held.", lambda of: (), ("lock",))
LOCK_REMAINING = Metric(
    "lock.remaining", "gauge", "s", "The time left until the local deadline of this lock.", lambda of: (), ("lock",)
)
