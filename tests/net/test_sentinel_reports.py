"""Which reports of the Sentinels count."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import pytest
import redis
from redis.sentinel import Sentinel

from wheel_lock.net import sentinel
from wheel_lock.net.clients import connector_for
from wheel_lock.net.connector import NothingListens, Server
from wheel_lock.net.sentinel_reports import Belief, Opinion, Opinions

A: Server = ("10.0.0.1", "6379")
A_BY_NAME: Server = ("redis-a", "6379")
B: Server = ("10.0.0.2", "6379")


class Asked:
    """Opinions, a clock that a test moves, and servers that say whether they are masters."""

    def __init__(self, sentinels: int = 3) -> None:
        self.now = 1000.0
        self.opinions = Opinions(sentinels, lambda: self.now)
        self.masters = {A, A_BY_NAME, B}
        self.asked: list[Server] = []
        self.changes: list[tuple[Server, ...]] = []
        self.opinions.on_change = self.changes.append
        self.meanwhile: Callable[[], object] = lambda: None

    def _is_master(self, server: Server) -> bool:
        self.asked.append(server)
        self.meanwhile()
        return server in self.masters

    def say(self, *opinions: tuple[int, Server | None] | None) -> None:
        """Have the first Sentinel say the first of these, and so on; None for one that says nothing."""
        for number, opinion in enumerate(opinions):
            if opinion is not None:
                self.opinions.give(number, Opinion(*opinion))

    def after(self, *opinions: tuple[int, Server | None] | None) -> tuple[Server, ...]:
        """Have them say that; return which master counts then."""
        self.say(*opinions)
        return self.counted

    @property
    def counted(self) -> tuple[Server, ...]:
        belief = self.opinions.conclude(self._is_master)
        return () if belief is None else belief.servers


@pytest.fixture
def asked() -> Asked:
    return Asked()


Said = tuple[tuple[int, Server | None] | None, ...]
WELL = {A, A_BY_NAME, B}
THREE_SAY_A: Said = ((7, A), (7, A), (7, A))
TWO_SAY_B: Said = (None, (2, B), (2, B))
CASES: dict[str, list[tuple[float, set[Server], Said, set[Server]]]] = {
    "nothing has been said": [(0.0, WELL, (), set())],
    "the newest epoch, said first": [(0.0, WELL, ((2, B), (1, A), (1, A)), {B})],
    "the newest epoch, said last": [(0.0, WELL, ((1, A), (1, A), (2, B)), {B})],
    "an old epoch": [(0.0, WELL, TWO_SAY_B, {B}), (0.0, WELL, ((1, A),), {B})],
    "an old epoch, and nothing else for a minute": [
        (0.0, WELL, TWO_SAY_B, {B}),
        (50.0, {A}, ((1, A),), {B}),
        (11.0, {A}, (), {A}),
    ],
    "epochs begin anew, and the old master is gone": [(0.0, WELL, THREE_SAY_A, {A}), (0.0, {B}, ((1, B), (1, B)), {B})],
    "epochs begin anew, and the old master answers": [
        (0.0, WELL, THREE_SAY_A, {A}),
        (0.0, WELL, ((1, B), (1, B), (1, B)), {A}),
        (16.0, WELL, ((1, B), (1, B)), {B}),
    ],
    "the newest epoch names no master, and a majority does": [(0.0, {A}, ((9, B), (1, A), (1, A)), {A})],
    "the newest epoch names no master, and a minority does": [(0.0, {A}, ((9, B), (1, A)), {B})],
    "the master is down, and its predecessor is not named": [
        (0.0, WELL, ((2, None), (1, A)), set()),
        (0.0, WELL, (None, (2, B)), {B}),
    ],
    "the master has two names, and then one": [
        (0.0, WELL, ((1, A), (1, A_BY_NAME)), {A, A_BY_NAME}),
        (0.0, WELL, (None, None, (1, A_BY_NAME)), {A_BY_NAME}),
    ],
    "all are silent": [(0.0, WELL, THREE_SAY_A, {A}), (16.0, WELL, (), set()), (0.0, WELL, ((7, A),), {A})],
}
"""How much later, who is a master then, what the Sentinels say, and what counts."""


@pytest.mark.parametrize("case", CASES)
def test_which_report_counts(asked: Asked, case: str) -> None:
    for later_s, masters, opinions, counted in CASES[case]:
        asked.now += later_s
        asked.masters = masters
        assert set(asked.after(*opinions)) == counted


def test_an_old_epoch_does_not_count_when_the_others_have_been_silent_for_long_and_the_master_is_well(
    asked: Asked,
) -> None:
    assert asked.after(None, (2, B), (2, B)) == (B,)
    for _ in range(100):
        asked.now += 5.0
        assert asked.after((1, A)) == (B,)
    assert A not in asked.asked


def test_epochs_that_begin_anew_with_the_same_master_change_nothing(asked: Asked) -> None:
    assert asked.after((7, A), (7, A), (7, A)) == (A,)
    for _ in range(5):
        asked.now += 5.0
        assert asked.after((0, A), (0, A), (0, A)) == (A,)
    assert asked.after((1, B)) == (B,)
    assert asked.changes == [(A,), (B,)]


def test_one_name_for_many_sentinels_does_not_go_back_and_forth() -> None:
    asked = Asked(sentinels=1)
    assert asked.after((1, A)) == (A,)
    for opinion in ((2, B), (1, A), (2, B), (1, A), (1, A), (2, B)):
        assert asked.after(opinion) == (B,)


def test_an_answer_that_comes_while_a_server_is_asked_counts(asked: Asked) -> None:
    asked.masters = {A}
    asked.say((2, B), (1, A), (1, A))

    def failed_over() -> None:
        asked.say(None, (3, A))
        asked.meanwhile = lambda: None

    asked.meanwhile = failed_over
    assert asked.counted == (A,)
    assert asked.opinions.belief == Belief(3, (A,))


def test_a_sentinel_that_forgets_the_service_has_no_opinion(asked: Asked) -> None:
    asked.say((5, B))
    asked.opinions.give(0, None)
    assert asked.counted == ()


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(asked: Asked) -> None:
    held = threading.Thread(target=asked.opinions._guard.acquire)
    held.start()
    held.join()
    asked.opinions.after_fork_in_child()
    assert asked.after((1, A)) == (A,)


class LateQueue:
    """A queue whose ``put`` takes effect at once, and returns half a second later: the thread that calls it is starved."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.get = self._queue.get

    def put(self, item: object) -> None:
        self._queue.put(item)
        time.sleep(0.5)


def test_a_sentinel_that_has_answered_is_asked_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "SimpleQueue", LateQueue)
    client: redis.Redis = Sentinel([("127.0.0.1", 1)]).master_for("locks")
    connector = connector_for(client)
    assert isinstance(connector, sentinel.SentinelConnector)
    for _ in range(2):
        with pytest.raises(NothingListens):
            connector.ask(5.0)
        time.sleep(0.3)  # longer than the others of a round have
