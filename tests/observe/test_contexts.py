"""The registry of contexts: weak, cheap, one reading for each label."""

from __future__ import annotations

import gc

from wheel_lock.errors import LossReason
from wheel_lock.observe.contexts import ContextRegistry, HeldName, Reading
from wheel_lock.observe.health import NodeHealth
from wheel_lock.observe.stats import Counters


class Engine:
    """What exporters see of an engine."""

    def __init__(self, label: str, acquired: int) -> None:
        self.counters = Counters(acquired=acquired)
        self.label = label

    def read_into(self, reading: Reading) -> None:
        reading.contexts += 1
        reading.counters.merge(self.counters)

    def held_names(self, most: int) -> list[HeldName]:
        return []


def acquired(registry: ContextRegistry) -> dict[str, int]:
    return {reading.label: reading.counters.acquired for reading in registry.readings()}


def test_figures_of_one_label_are_added_up() -> None:
    registry = ContextRegistry()
    engines = [Engine("a", 1), Engine("b", 10), Engine("a", 100)]
    for engine in engines:
        registry.add(engine)
    assert acquired(registry) == {"a": 101, "b": 10}
    assert list(registry) == engines
    engines[0].counters.lost[LossReason.TAKEN] += 1
    assert [reading.counters.lost.total() for reading in registry.readings()] == [1, 0]


def test_an_engine_is_not_kept_and_the_sums_of_its_label_do_not_decrease() -> None:
    registry = ContextRegistry()
    stays, ends = Engine("a", 1), Engine("a", 100)
    registry.add(stays)
    registry.add(ends)
    assert acquired(registry) == {"a": 101}
    ends.counters.acquired += 5
    del ends
    gc.collect()
    assert list(registry) == [stays]
    assert acquired(registry) == acquired(registry) == {"a": 106}


def test_a_label_ends_with_its_last_engine() -> None:
    registry = ContextRegistry()
    registry.add(Engine("a", 1))
    gc.collect()
    assert acquired(registry) == {}
    engine = Engine("a", 2)
    registry.add(engine)
    assert acquired(registry) == {"a": 2}


def test_engines_that_nothing_reads_leave_nothing_behind() -> None:
    registry = ContextRegistry()
    stays = Engine("a", 1)
    registry.add(stays)
    for _ in range(100):
        registry.add(Engine("a", 1))
    gc.collect()
    assert acquired(registry) == {"a": 1}


def test_a_node_of_two_contexts_is_connected_if_both_are_connected_to_it() -> None:
    reading = Reading("a")
    reading.add_node(NodeHealth("h:1", True, 2, 5.0, None))
    reading.add_node(NodeHealth("h:1", False, 1, None, "not connected"))
    reading.add_node(NodeHealth("h:2", True, 0, None, None))
    assert reading.nodes["h:1"] == NodeHealth("h:1", False, 3, 5.0, "not connected")
    assert set(reading.nodes) == {"h:1", "h:2"}
