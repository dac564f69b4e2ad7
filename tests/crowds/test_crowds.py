"""Everybody at once, in every kind of lock at the same time: threads and tasks of several processes, disturbed all along.

They run once, for a quarter of a minute; each test looks at what came of one kind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crowds.checker import check, starved
from tests.crowds.crowd import PROCESSES, WORKERS, Crowd, run_crowd
from tests.crowds.workers import KINDS, TIMEOUT_S
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

LATE_S = 0.5  # the machine is as busy as it can be


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    with RedisServer() as server:
        yield run_crowd(server, tmp_path_factory.mktemp("crowd"))


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_believes_what_is_not_so(crowd: Crowd, kind: str) -> None:
    assert check(crowd.histories[kind], late_s=LATE_S) == []


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_gets_something(crowd: Crowd, kind: str) -> None:
    history, workers = crowd.histories[kind], crowd.workers[kind]
    assert len(workers) == PROCESSES * WORKERS
    assert starved(history.claims, workers, crowd.begin, crowd.until) == []


@pytest.mark.parametrize("kind", KINDS)
def test_when_the_disturbances_stop_everybody_gets_something_again(crowd: Crowd, kind: str) -> None:
    history, workers = crowd.histories[kind], crowd.workers[kind]
    assert starved(history.claims, workers, crowd.quiet + 2 * TIMEOUT_S, crowd.until) == []


@pytest.mark.parametrize("kind", KINDS)
def test_it_was_no_idle_afternoon(crowd: Crowd, kind: str) -> None:
    history = crowd.histories[kind]
    modes = {"semaphore": {"shared"}, "read-write": {"alone", "shared"}}
    assert len(history.claims) > 100
    assert {claim.mode for claim in history.claims} == modes.get(kind, {"alone"})
    assert {claim.belief.ending for claim in history.claims} <= {"released", "lost"}, "nothing stayed unknown"


def test_the_stops_cost_some_their_locks(crowd: Crowd) -> None:
    assert {stop.process for stop in crowd.stops} == set(range(PROCESSES))
    assert sum(len(history.losses) for history in crowd.histories.values()) > 2


def test_no_call_failed_but_for_losses(crowd: Crowd) -> None:
    assert crowd.troubles == []
    # 48 workers of each process are as many as the machine can bear; now and then an answer takes longer than they wait.
    assert len(crowd.unanswered) <= sum(len(history.claims) for history in crowd.histories.values()) // 100
    assert crowd.said == []


def test_nothing_is_left_behind(crowd: Crowd) -> None:
    assert crowd.left == []
