"""The contexts of the process, for exporters: a weak registry, and one reading for each label."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from wheel_lock.exclusion import Lock, exclusively
from wheel_lock.observe.events import HeldLock
from wheel_lock.observe.health import NodeHealth
from wheel_lock.observe.stats import Counters

_MOST_ENDED = 1000


class Reading:
    """The figures of one label at one moment: of one context, or of several that share the label.

    Attributes:
        contexts: The number of open contexts.
        held, waiting, overdue: As in :class:`~wheel_lock.ContextStats`.
        longest_wait_s: Seconds for which the longest of the waiting callers has been waiting; 0 without any.
        nodes: The nodes of open contexts, by address.
        node_counters: The counters of each node of a quorum, by address.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.contexts = 0
        self.counters: Counters = Counters()
        self.held = self.waiting = self.overdue = 0
        self.longest_wait_s: float = 0.0
        self.nodes: dict[str, NodeHealth] = {}
        self.node_counters: dict[str, Counters] = {}

    def count(self, counters: Counters, nodes: Sequence[tuple[str, Counters]]) -> None:
        """Add the counters of an engine, and of each node of a quorum by its address: the renewals are counted there."""
        self.counters.merge(counters)
        for node, counted in nodes:
            self.counters.merge_renewals(counted)
            self._count_node(node, counted)

    def add_counts(self, other: Reading) -> None:
        """Add the counters of another reading."""
        self.counters.merge(other.counters)
        for node, counted in other.node_counters.items():
            self._count_node(node, counted)

    def _count_node(self, node: str, counted: Counters) -> None:
        self.node_counters.setdefault(node, Counters()).merge_renewals(counted)

    def add_node(self, node: NodeHealth) -> None:
        """Add a node; one that two contexts use counts as connected if both are connected to it."""
        known = self.nodes.get(node.node)
        if known is not None:
            ages = [age for age in (known.last_confirmation_age_s, node.last_confirmation_age_s) if age is not None]
            node = NodeHealth(
                node.node,
                known.connected and node.connected,
                known.overdue + node.overdue,
                min(ages, default=None),
                known.trouble or node.trouble,
            )
        self.nodes[node.node] = node


class Observed(Protocol):
    """An engine as exporters see it, from any thread."""

    counters: Counters

    @property
    def label(self) -> str: ...
    @property
    def node_counters(self) -> Sequence[tuple[str, Counters]]: ...  # by address; empty unless it is a quorum
    def read_into(self, reading: Reading) -> None: ...  # adds the figures of this moment
    def held_locks(
        self, most: int | None = None
    ) -> list[HeldLock]: ...  # those that have been held for the longest time


class _Entry(NamedTuple):
    engine: weakref.ref[Observed]
    label: str
    counters: Counters
    node_counters: Sequence[tuple[str, Counters]]


class ContextRegistry:
    """The engines of the contexts of this process. Safe in any thread and in finalisers.

    Attributes:
        lock: Held during each scrape: two may come at once. A forked child has a new one.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        # Counters of engines that have been collected: without them the sums of a label would decrease.
        self._ended: deque[_Entry] = deque(maxlen=_MOST_ENDED)
        self._sums: dict[str, Reading] = {}
        self._read = False
        self.lock: Lock = threading.RLock()

    def add(self, engine: Observed) -> None:
        """Add an engine, which is removed when it is collected. O(1)."""
        key = id(engine)
        reference = weakref.ref(engine, partial(self._gone, key))
        self._entries[key] = _Entry(reference, engine.label, engine.counters, engine.node_counters)

    def _gone(self, key: int, reference: object) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None and self._read:  # nothing has been exported before, so nothing can decrease
            self._ended.append(entry)

    def __iter__(self) -> Iterator[Observed]:
        for entry in list(self._entries.values()):  # atomic, unlike copy()
            engine = entry.engine()
            if engine is not None:
                yield engine

    def readings(self) -> list[Reading]:
        """Return one reading for each label that an uncollected context has, in the order of labels."""
        return exclusively(self.lock, self._readings)

    def _readings(self) -> list[Reading]:
        self._read = True
        found: dict[str, Reading] = {}
        # None of them is collected until the counters of those that have ended have been read, so none counts twice.
        engines = list(self)
        for engine in engines:
            reading = found.get(engine.label)
            if reading is None:
                reading = found[engine.label] = Reading(engine.label)
            engine.read_into(reading)
        sums = {label: counted for label, counted in self._sums.items() if label in found}
        while self._ended:
            ended = self._ended.popleft()
            if ended.label in found:
                sums.setdefault(ended.label, Reading(ended.label)).count(ended.counters, ended.node_counters)
        self._sums = sums
        for label, counted in sums.items():
            found[label].add_counts(counted)
        return [found[label] for label in sorted(found)]

    def after_fork_in_child(self) -> None:
        """In a forked child: replace the lock, which another thread of the parent may have held."""
        self.lock = threading.RLock()


CONTEXTS = ContextRegistry()
"""The contexts of this process."""
