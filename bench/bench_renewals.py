"""Renewing 10,000 held locks once: the engine against redis-py's pipeline, on a real server.

The engine runs on the calling thread here, by a clock that is moved by hand, so that a round is exactly one renewal of
every lock: wheel, batching, encoding, the server, reading the replies, re-arming.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
from pytest_benchmark.fixture import BenchmarkFixture

from tests.support.redis_server import RedisServer
from wheel_lock import HashedWheelTimer
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.lease import NO_OWNER, Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.options import ContextOptions, lock_options
from wheel_lock.protocol.resp import lease_args
from wheel_lock.testing import ManualClock

LOCKS = 10_000
TIMEOUT_S = 30.0

RENEW = """
if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end
return 0
"""


def _turn_until(timer: HashedWheelTimer, reached: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not reached():
        timer.turn()
        assert time.monotonic() < until, "the server does not answer"


def _per_renewal(benchmark: BenchmarkFixture) -> None:
    if benchmark.stats is not None:
        benchmark.extra_info["us_per_renewal"] = benchmark.stats.stats.median / LOCKS * 1e6


def test_wheel_lock(benchmark: BenchmarkFixture, server: RedisServer) -> None:
    clock = ManualClock()
    timer = HashedWheelTimer(clock=clock, threaded=False)
    engine = Engine(RedisPyConnector(server.client()), ContextOptions(), timer, launch=lambda attempt: attempt())
    options = lock_options(TIMEOUT_S)
    group = engine.router.renewer.group(EXCLUSIVE, options.timeout_s, options.timeout_ms, options.renew_every_s)
    leases = [Lease(f"lock:{n}", lease_args(b"lock:%d" % n, b"%022d" % n), group, NO_OWNER) for n in range(LOCKS)]
    acquired: Future[None] = Future(lambda: None)
    bulk = AcquireMany(engine.leases, options, acquired)
    timer.post(lambda: bulk.add(leases))
    timer.post(bulk.seal)
    _turn_until(timer, lambda: acquired.done)

    def renew_all() -> None:
        target = engine.counters.renewed + LOCKS
        clock.jump(TIMEOUT_S / 3)
        _turn_until(timer, lambda: engine.counters.renewed >= target)

    benchmark.pedantic(renew_all, rounds=20, warmup_rounds=3)
    assert engine.counters.lost.total() == 0
    _per_renewal(benchmark)
    closed: Future[None] = Future(lambda: None)
    timer.post(lambda: engine.close(1.0, closed))
    _turn_until(timer, lambda: closed.done)


def test_redis_py_pipeline(benchmark: BenchmarkFixture, server: RedisServer) -> None:
    client = server.client()
    tokens = {f"lock:{n}": f"{n:022d}" for n in range(LOCKS)}
    with client.pipeline(transaction=False) as pipeline:
        for name, token in tokens.items():
            pipeline.set(name, token, nx=True, px=30_000)
        pipeline.execute()
    sha = client.script_load(RENEW)
    items = list(tokens.items())

    def renew_all() -> None:
        for start in range(0, LOCKS, 500):
            with client.pipeline(transaction=False) as pipeline:
                for name, token in items[start : start + 500]:
                    pipeline.evalsha(sha, 1, name, token, 30_000)
                assert all(pipeline.execute())

    benchmark.pedantic(renew_all, rounds=8, warmup_rounds=1)
    _per_renewal(benchmark)


def test_redis_py_one_by_one(benchmark: BenchmarkFixture, server: RedisServer) -> None:
    """What a thread or a timer per lock sends: a round trip for each renewal, without even counting the threads."""
    client: redis.Redis = server.client()
    locks = [client.lock(f"lock:{n}", timeout=TIMEOUT_S) for n in range(LOCKS // 10)]
    for lock in locks:
        assert lock.acquire()

    def renew_all() -> None:
        for lock in locks:
            lock.reacquire()

    benchmark.pedantic(renew_all, rounds=5, warmup_rounds=1)
    if benchmark.stats is not None:
        benchmark.extra_info["us_per_renewal"] = benchmark.stats.stats.median / len(locks) * 1e6
