"""The registry of contexts: weak, cheap, one reading for each label."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Self

from tests.support.background import in_a_fork
from wheel_lock.errors import LossReason
from wheel_lock.observe import HeldLock
from wheel_lock.observe.contexts import CONTEXTS, ContextRegistry, Reading
from wheel_lock.observe.health import NodeHealth
from wheel_lock.observe.stats import Counters


class Engine:
    """What exporters see of an engine."""

    node_counters: Sequence[tuple[str, Counters]] = ()

    def __init__(self, label: str, acquired: int) -> None:
        self.counters = Counters(acquired=acquired)
        self.label = label

    def read_into(self, reading: Reading) -> None:
        reading.contexts += 1
        reading.count(self.counters, self.node_counters)

    def held_locks(self, most: int | None = None) -> list[HeldLock]:
        return []


def registry_of(*engines: Engine) -> ContextRegistry:
    registry = ContextRegistry()
    for engine in engines:
        registry.add(engine)
    return registry


def acquired(registry: ContextRegistry) -> dict[str, int]:
    return {reading.label: reading.counters.acquired for reading in registry.readings()}


def test_figures_of_one_label_are_added_up() -> None:
    engines = [Engine("a", 1), Engine("b", 10), Engine("a", 100)]
    registry = registry_of(*engines)
    assert acquired(registry) == {"a": 101, "b": 10}
    assert list(registry) == engines
    engines[0].counters.lost[LossReason.TAKEN] += 1
    assert [reading.counters.lost.total() for reading in registry.readings()] == [1, 0]


def test_an_engine_is_not_kept_and_the_sums_of_its_label_do_not_decrease() -> None:
    stays, ends = Engine("a", 1), Engine("a", 100)
    registry = registry_of(stays, ends)
    assert acquired(registry) == {"a": 101}
    ends.counters.acquired += 5
    del ends
    gc.collect()
    assert list(registry) == [stays]
    assert acquired(registry) == acquired(registry) == {"a": 106}


def test_renewals_that_nodes_of_a_quorum_have_counted_do_not_decrease_with_its_end() -> None:
    stays, ends = Engine("a", 0), Engine("a", 0)
    stays.node_counters, ends.node_counters = [("h:1", Counters(renewed=1))], [("h:1", Counters(renewed=10))]
    registry = registry_of(stays, ends)
    registry.readings()
    del ends
    gc.collect()
    for _ in range(2):
        (reading,) = registry.readings()
        assert reading.counters.renewed == reading.node_counters["h:1"].renewed == 11


def test_a_label_ends_with_its_last_engine() -> None:
    registry = registry_of(Engine("a", 1))
    gc.collect()
    assert acquired(registry) == {}
    engine = Engine("a", 2)
    registry.add(engine)
    assert acquired(registry) == {"a": 2}


def test_engines_that_nothing_reads_leave_nothing_behind() -> None:
    stays = Engine("a", 1)
    registry = registry_of(stays)
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


def test_an_engine_that_ends_while_it_is_read_counts_once() -> None:
    kept: list[Engine] = []

    class Ending(Engine):
        def read_into(self, reading: Reading) -> None:
            super().read_into(reading)
            kept.clear()

    kept.append(Ending("a", 100))
    stays = Engine("a", 1)
    registry = registry_of(kept[0], stays)
    assert acquired(registry) == {"a": 101}
    gc.collect()
    assert acquired(registry) == acquired(registry) == {"a": 101}


def test_two_scrapes_at_once_lose_no_count() -> None:
    stays, ends = Engine("a", 1), Engine("a", 100)
    merging, scraped = threading.Event(), threading.Event()

    class Slow(Counter[LossReason]):
        def copy(self) -> Self:
            merging.set()
            scraped.wait(0.2)  # times out if the other scrape waits for this one
            return self

    registry = registry_of(stays, ends)
    assert acquired(registry) == {"a": 101}
    ends.counters.lost = Slow()
    del ends
    gc.collect()
    first = threading.Thread(target=registry.readings)
    first.start()
    assert merging.wait(30.0)
    assert acquired(registry) == {"a": 101}
    scraped.set()
    first.join()
    assert acquired(registry) == {"a": 101}


def test_a_fork_in_the_middle_of_a_scrape_does_not_block_the_child() -> None:
    begun, forked = threading.Event(), threading.Event()

    class Slow(Engine):
        def read_into(self, reading: Reading) -> None:
            super().read_into(reading)
            if threading.current_thread() is slow:
                begun.set()
                forked.wait(30.0)

    def check() -> None:
        assert "slow" in acquired(CONTEXTS)

    stays = Slow("slow", 1)
    CONTEXTS.add(stays)
    slow = threading.Thread(target=CONTEXTS.readings)
    slow.start()
    assert begun.wait(30.0)
    try:
        in_a_fork(check)
    finally:
        forked.set()
        slow.join()
