"""Servers that a keeper asks after a death: none waits for another one, and none is waited for for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from functools import partial

import pytest

from tests.keeper.test_program import LONG_S, at_once
from tests.support.waiting import eventually
from wheel_lock.keeper import burial
from wheel_lock.keeper.burial import Graves, Store
from wheel_lock.keeper.crew import MOST_AT_ONE_PLACE, MOST_THREADS, Crew, Work
from wheel_lock.keeper.entries import Entry
from wheel_lock.keeper.server import REFUSED, Server

HOUR_MS = 3_600_000
ENTRIES: list[Entry] = [(1, HOUR_MS, b"%d" % number) for number in range(6)]
SHIFTED = ENTRIES[1:] + ENTRIES[:1]
"""Of these each node is asked first for what is another one's."""


class Node(Server):
    """A node of a cluster: entry 0 is at node 0, entry 1 at node 1 and so on.

    Attributes:
        answers: Whether it does; what it is asked is executed in any case.
        refuses: Whether it executes nothing, and does not say where anything is.
    """

    place: Hashable = None

    def __init__(self, number: int, nodes: int) -> None:
        self.names = [f"h:{number}"]
        self._number, self._nodes = number, nodes
        self.answers = True
        self.refuses = False
        self.blocks: threading.Event | None = None
        self.released: list[Entry] = []
        self.calls: list[list[Entry]] = []
        self.closed = False

    def release(self, entries: list[Entry], *, asking: bool = False) -> dict[Entry, str]:
        self.calls.append(entries)
        if self.blocks is not None:
            self.blocks.wait()
        if self.refuses:
            return dict.fromkeys(entries, REFUSED)
        homes = {entry: int(entry[2]) % self._nodes for entry in entries}
        self.released += [entry for entry, home in homes.items() if home == self._number]
        if not self.answers:
            return {}
        return {entry: "" if home == self._number else f"h:{home}" for entry, home in homes.items()}

    def close(self) -> None:
        self.closed = True


def cluster(nodes: int = 3) -> list[Node]:
    return [Node(number, nodes) for number in range(nodes)]


@pytest.mark.parametrize("crowded", [False, True], ids=["it blocks", "others wait for it"])
def test_a_node_that_is_waited_for_delays_no_other_one(crowded: bool) -> None:
    crew, nodes, left, blocks = Crew(), cluster(), list[int](), threading.Event()
    if crowded:
        nodes[0].place = "crowded"
        for _ in range(MOST_AT_ONE_PLACE):
            crew.do(blocks.wait, 0.0, "crowded")
    else:
        nodes[0].blocks = blocks
    Store(nodes, crew.do).release(SHIFTED, left.append)
    eventually(lambda: len(set(nodes[1].released)) == len(set(nodes[2].released)) == 2)
    assert left == nodes[0].released == []
    assert not (crowded and nodes[0].calls)
    blocks.set()
    eventually(lambda: left == [0])
    assert {len(set(node.released)) for node in nodes} == {2}


def test_servers_that_do_not_answer_do_not_keep_another_one_waiting_for_a_thread() -> None:
    graves, blocks = Graves(), threading.Event()
    silent, well = [Node(0, 1) for _ in range(3 * MOST_THREADS)], Node(0, 1)
    for node in silent:
        node.blocks, node.place = blocks, "silent"
    for node in (*silent, well):
        graves.bury(lambda: [(1, 0, b"0")], [node], 0.0)
    eventually(lambda: well.closed)
    assert not any(node.released for node in silent)
    blocks.set()
    eventually(lambda: all(node.closed for node in silent))
    eventually(lambda: (graves.crew._busy, graves.crew._crowd) == ({}, {}))  # its threads end what they do


def test_as_many_silent_servers_as_need_all_threads_do_not_keep_another_one_waiting_for_good() -> None:
    crew, turns = Crew(), [threading.Semaphore(0) for _ in range(MOST_THREADS // MOST_AT_ONE_PLACE + 1)]
    begun, well = list[int](), threading.Event()

    def ask(number: int) -> None:
        begun.append(number)
        turns[number].acquire()

    for number in range(len(turns)):
        for _ in range(MOST_THREADS):
            crew.do(partial(ask, number), 0.0, number)
    eventually(lambda: set(begun) == set(range(len(turns))))
    crew.do(well.set, 0.0, "well")
    turns[0].release()  # one of them is not waited for any more
    assert well.wait(LONG_S)
    for turn in turns:
        turn.release(MOST_THREADS)
    eventually(lambda: (len(begun), crew._busy, crew._crowd) == (len(turns) * MOST_THREADS, {}, {}))


def test_what_a_silent_node_was_asked_for_is_asked_of_others_and_it_is_asked_again() -> None:
    nodes, left = cluster(), list[int]()
    nodes[0].answers = False
    store = Store(nodes, at_once)
    store.release(SHIFTED, left.append)
    assert left == [2]
    assert {len(set(node.released)) for node in nodes[1:]} == {2}
    assert store.silent == {nodes[0]}
    nodes[0].calls.clear()
    store.release(SHIFTED, left.append)
    assert {entry for call in nodes[0].calls for entry in call} == {
        ENTRIES[0],
        ENTRIES[3],
    }  # as others say
    nodes[0].answers = True
    store.release(SHIFTED, left.append)
    assert left == [2, 2, 0]
    assert store.silent == set()


def test_what_a_node_refuses_is_asked_of_others() -> None:
    nodes, left = cluster(), list[int]()
    nodes[0].refuses = True
    store = Store(nodes, at_once)
    store.release(SHIFTED, left.append)
    assert left == [2]
    assert store.refused
    assert {len(set(node.released)) for node in nodes[1:]} == {2}


def test_no_server_that_has_answered_is_taken_for_one_that_does_not() -> None:
    nodes, left, doubts = cluster(), list[int](), list[Work]()

    def do(work: Work, pause_s: float, place: Hashable) -> None:
        if pause_s:
            doubts.append(work)
            return
        for doubt in doubts:  # when an answer begins what is asked of another server
            doubt()
        doubts.clear()
        work()

    store = Store(nodes[1:], do)
    store.release(ENTRIES[2:3], left.append)  # it is at the other one
    assert left == [0]
    assert store.silent == set()


def test_a_mistake_about_one_server_costs_that_server_only() -> None:
    nodes, left = cluster(), list[int]()
    nodes[0].release = refuses  # type: ignore[method-assign]
    Store(nodes, at_once).release(ENTRIES, left.append)
    assert left == [2]
    assert [len(node.released) for node in nodes] == [0, 2, 2]


def refuses(entries: list[Entry], *, asking: bool = False) -> dict[Entry, str]:
    raise RecursionError("too deep")


def test_a_thousand_deaths_cost_few_threads_and_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burial, "_PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr(burial, "_LONGER", 1e6)
    graves, most = Graves(), 0
    nodes = [Node(0, 1) for _ in range(1000)]
    for node in nodes:
        graves.bury(lambda: ENTRIES[:1], [node], 0.0)
        most = max(most, graves.crew._threads)
    eventually(lambda: sum(not node.closed for node in nodes) == burial.MOST_PATIENT == len(graves))
    eventually(lambda: len(graves.crew._works) == burial.MOST_PATIENT)  # the others leave nothing behind
    assert 0 < most <= MOST_THREADS
    assert all(len(node.released) >= 3 for node in nodes)  # the repetitions with the short pauses
    for each in list(graves._burials):
        graves.end(each)
    with graves.crew._changed:
        graves.crew._works.clear()
        graves.crew._changed.notify()
    eventually(lambda: graves.crew._threads == 0)
    assert all(node.closed for node in nodes)


def test_a_burial_whose_record_cannot_be_read_ends() -> None:
    node, graves = Node(0, 1), Graves()

    def read() -> list[Entry]:
        raise OSError("no")

    graves.bury(read, [node], 0.0)
    eventually(lambda: node.closed and len(graves) == 0)


def test_the_crew_works_in_the_order_of_time_and_then_has_no_threads() -> None:
    crew, done = Crew(), list[int]()
    work: Callable[[int], Callable[[], object]] = lambda number: lambda: done.append(number)  # noqa: E731
    crew.do(work(3), 0.2)
    crew.do(work(2), 0.1)
    crew.do(lambda: time.sleep(0.3))  # which none of the others waits for
    crew.do(work(1))
    eventually(lambda: len(done) == 3)
    assert done == [1, 2, 3]
    eventually(lambda: crew._threads == 0)
