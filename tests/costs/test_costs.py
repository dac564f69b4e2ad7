"""What renewals, acquires and releases cost, in counts that are the same on every machine. See limits.py."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.costs import limits, measure
from tests.support.counting import Counting, Counts, ServerCounts
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

_ROUNDING = 0.03  # on a busy machine a waiting caller checks once a second whether the timer's thread is alive
TRIES = 3  # attempts to count objects: remains of earlier tests in this process may end meanwhile
OF_RENEWALS = {"evalsha", "eval", "get", "mget", "pexpire"}


def check(figures: dict[str, float], most: limits.Figures, units: int, **counts: Counts) -> None:
    """Compare figures with their limits. What is counted by function is printed, and shown if that fails."""
    for whose, calls in counts.items():
        print(whose, calls.table(units), sep="\n")
    print(*measure.rows("measured", figures), sep="\n")
    grown = {what: (figures[what], limit) for what, limit in most.items() if figures[what] > limit + _ROUNDING * limit}
    assert grown == {}, "what it costs, and what it may"


@pytest.mark.parametrize("held", limits.RENEWALS)
def test_renewals(fresh_redis: RedisServer, held: int) -> None:
    costs = measure.renewals(fresh_redis.port, held)
    assert costs.renewals >= held
    assert costs.script_calls == costs.batches
    check(costs.per_renewal(), limits.RENEWALS[held], costs.renewals, engine=costs.counts)


@pytest.mark.parametrize("caller", limits.PAIRS)
def test_pairs(fresh_redis: RedisServer, caller: str) -> None:
    for _ in range(TRIES):
        pairs = measure.pairs_of(caller, fresh_redis.port)
        if not pairs.in_cycles:
            break
    for costs, most in zip((pairs.acquires, pairs.releases), limits.PAIRS[caller], strict=True):
        check(costs.each(), most, costs.count, caller=costs.caller, engine=costs.engine)
    # What an earlier test has left may end meanwhile, once; what a pair leaves is there as often as there are pairs.
    left = {kind: number for kind, number in pairs.in_cycles.items() if number >= pairs.acquires.count}
    assert left == {}, "objects that only the collector finds: each is scanned several times until then"
    assert pairs.left < pairs.acquires.count, "something of each pair stays"


def test_idle_with_locks_held_there_are_renewals_and_nothing_else(fresh_redis: RedisServer) -> None:
    costs = measure.renewals(fresh_redis.port, 100)
    assert costs.renewals >= 100
    assert set(costs.commands) <= OF_RENEWALS
    assert costs.turns <= 2 * costs.script_calls, "the thread wakes for what is due and for replies"


def test_with_nothing_held_nothing_happens(fresh_redis: RedisServer) -> None:
    with Counting() as counting, closing(measure.Driver(fresh_redis.port, counting)) as driver:
        locks = measure.hold(driver, 10)
        driver.call(lambda: driver.context.release_many(locks))
        driver.go_to(driver.clock.now() + 60.0)  # what looks after requests, and empty queues, ends soon
        with ServerCounts(fresh_redis.port) as server:
            turns = driver.timer.turns
            driver.go_to(driver.clock.now() + 3600.0)
            server.look()
        assert driver.timer.turns == turns
        assert driver.timer.next_due_at() is None
        assert not server.commands
