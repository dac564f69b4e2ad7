"""The network fails: nothing arrives, something arrives late or twice, connections break, replies are lies."""

from __future__ import annotations

import gc
import itertools
import logging
import random
import time
from collections.abc import Iterator

import pytest
import redis

from tests.faults.meddling_proxy import MeddlingProxy
from tests.faults.sent_commands import commands, of_kind
from tests.faults.shared_wheel import (
    LONG_S,
    Onlooker,
    SharedWheel,
)
from tests.faults.support import LATE_S, FencedRegister, now
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LossReason

pytestmark = pytest.mark.slow

_random = random.Random()


@pytest.fixture
def wheel(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[SharedWheel]:
    gc.collect()  # locks that earlier tests of this process have dropped are reported before the test, not during it
    with SharedWheel(redis_server) as wheel:
        yield wheel
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == []


@pytest.fixture
def network(wheel: SharedWheel, redis_server: RedisServer) -> MeddlingProxy:
    return wheel.proxy(redis_server)


@pytest.fixture
def view(redis_server: RedisServer) -> redis.Redis:
    """A way to the server on which nothing fails."""
    return redis_server.client()


def await_reconnected(context: LockContext, before: int) -> None:
    eventually(lambda: context.stats().connects > before, LONG_S, "there is another connection")


# -- 21. Black hole: lost by V. ----------------------------------------------------------------------------------------


def test_a_black_hole_ends_a_lease_by_its_deadline(
    wheel: SharedWheel, network: MeddlingProxy, redis_server: RedisServer, view: redis.Redis
) -> None:
    """21. Black hole: lost by V."""
    context = wheel.context(network)
    held = wheel.hold(context, ["job"], timeout=1.0, fencing=True)
    register = FencedRegister()
    assert register.write(held.lock.fence)

    with Onlooker(held, view):
        network.blackhole()
        other = wheel.context(redis_server).lock("job", timeout=5.0, fencing=True, retry_every=0.01)
        assert other.acquire(blocking_timeout=LONG_S)
        assert not held.lock.is_held
        assert register.write(other.fence)
        network.heal()
        wheel.assert_alive(context)
        with pytest.raises(LockLost):
            held.lock.release()

    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert not register.write(held.lock.fence)
    assert other.is_held
    assert other.owned()
    other.release()


# -- 25. RST at byte k of a pipeline, CLIENT KILL: each entry unknown, no reply goes to the wrong command. -------------


def test_resets_at_random_bytes_of_a_large_pipeline_lose_nothing(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """25. RST at byte k of a pipeline: each entry unknown."""
    names = [f"job {number}" for number in range(2000)]
    context = wheel.context(network)
    wheel.assert_alive(context)
    network.cut_after_bytes(_random.randrange(100_000), "to_server")
    held = wheel.hold(context, names, timeout=4.0, renew_every=0.6)
    for direction in ("to_server", "to_client", "to_server", "to_client", "to_server"):
        before = context.stats().connects
        size = 100_000 if direction == "to_server" else 20  # a reply to many renewals that all went well is short
        network.cut_after_bytes(_random.randrange(size), direction)
        await_reconnected(context, before)
    network.heal()
    held.await_renewal()
    held.assert_all_held()
    assert context.stats().unknown > 0
    assert view.mget(names) == list(held.tokens.values())


def test_killed_connections_lose_nothing_and_confuse_nobody(wheel: SharedWheel, fresh_redis: RedisServer) -> None:
    """25. CLIENT KILL: each entry unknown, no reply goes to the wrong command."""
    view = fresh_redis.client()
    context = wheel.context(fresh_redis)
    held = wheel.hold(context, [f"job {number}" for number in range(500)], timeout=4.0, renew_every=0.6)
    inside = itertools.count()
    owners: list[int] = []
    over = False

    def work() -> int:
        rounds = 0
        lock = context.lock("mutex", timeout=5.0, retry_every=0.005, thread_local=False)
        while not over:
            with lock:
                assert owners == []
                owners.append(next(inside))
                assert context.lock("never").locked() is False
                owners.pop()
            rounds += 1
        return rounds

    workers = [Background(work) for _ in range(4)]
    for _ in range(12):
        before = context.stats().connects
        view.client_kill_filter(_type="normal", skipme=True)
        await_reconnected(context, before)
    over = True
    assert sum(worker.result() for worker in workers) > 0
    held.await_renewal()
    held.assert_all_held()
    assert not view.exists("mutex")


# -- 26. Half-open idle connection: noticed within L/6. ----------------------------------------------------------------


def test_a_half_open_connection_is_noticed_by_a_renewal_within_a_sixth_of_the_timeout(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """26. Half-open idle connection: noticed within L/6."""
    L = 3.0
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=L, renew_every=0.3)
    with Onlooker(held, view):
        held.await_renewal()
        connects, last = context.stats().connects, network.accepted
        network.strand()
        stranded_at, since = time.monotonic(), now()
        await_reconnected(context, connects)
        held.await_renewal()
        held.assert_all_held()
    renewal = of_kind("renew", commands(network, since=stranded_at))[0]
    noticed_at = next(entry.time for entry in network.log if entry.connection > last)
    assert noticed_at - renewal.time - wheel.pulse.stood_s(since) <= L / 6 + LATE_S


# -- 27. maxclients reached or the user's pool exhausted: the renewal connection is its own and goes on. ---------------


def test_a_connection_lost_while_the_server_is_full_is_replaced_when_it_is_not(
    wheel: SharedWheel, fresh_redis: RedisServer
) -> None:
    """27. maxclients reached: unknown while there is no way in, and no reason to knock in a tight loop."""
    view = fresh_redis.client()
    network = wheel.proxy(fresh_redis)
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=5.0, renew_every=0.5)
    held.await_renewal()
    view.config_set("maxclients", 1)
    network.cut()
    time.sleep(1.0)
    held.assert_all_held()
    assert 1 <= view.info("stats")["rejected_connections"] <= 20
    view.config_set("maxclients", 1000)
    held.await_renewal()
    held.assert_all_held()


# -- 44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives. -----------
