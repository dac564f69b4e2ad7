"""Fault 8: a series of failed renewals, then health."""

from __future__ import annotations

import time

import pytest

from tests.faults.scene import (
    LATE_S,
    Losses,
    Pulse,
    assert_is_kept,
    held,
    own_context,
)
from tests.faults.wire import commands, of_kind
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import (
    LossReason,
)

pytestmark = pytest.mark.slow

NAME = "order:42"


def test_fault_08_renewal_resumes_after_errors_of_the_server(fresh_redis: RedisServer) -> None:
    """8. N failed renewals, then health: renewal resumes. Here the server refuses every write for a while."""
    client = fresh_redis.client()
    losses = Losses()
    with own_context(fresh_redis) as context:
        locks = held(
            context.acquire_many([f"many:{number}" for number in range(10)], 4.0, renew_every=0.2, on_lost=losses)
        )
        client.config_set("min-replicas-to-write", 1)
        eventually(lambda: context.stats().unknown >= 3 * len(locks))
        assert all(lock.is_held for lock in locks)
        client.config_set("min-replicas-to-write", 0)
        renewals = {lock: lock.renewals for lock in locks}
        eventually(lambda: all(lock.renewals >= renewals[lock] + 3 for lock in locks))
        assert context.stats().overdue == 0
        assert not losses
        context.release_many(locks)
        assert client.keys() == []


def test_fault_08_renewal_resumes_after_the_network_was_away(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """8. The same where the connection is cut, again and again."""
    losses = Losses()
    with own_context(proxy.url) as context:
        locks = held(
            context.acquire_many([f"many:{number}" for number in range(10)], 4.0, renew_every=0.2, on_lost=losses)
        )
        proxy.refuse()
        proxy.cut()
        eventually(lambda: context.stats().overdue == len(locks))
        proxy.heal()
        for _ in range(3):
            time.sleep(0.1)
            proxy.cut()
        renewals = {lock: lock.renewals for lock in locks}
        eventually(lambda: all(lock.renewals >= renewals[lock] + 3 for lock in locks))
        assert context.stats().overdue == 0
        assert not losses
        context.release_many(locks)


def test_fault_08_a_lock_that_is_acquired_again_after_a_loss_is_renewed(
    redis_server: RedisServer, proxy: TcpProxy, pulse: Pulse
) -> None:
    """8. ... and a re-acquired lock of the same name is renewed, while nothing of the old lease touches it."""
    losses = Losses()
    with own_context(proxy.url) as context:
        lock = context.lock(NAME, timeout=1.5, renew_every=0.2, on_lost=losses)
        lock.acquire()
        old = lock.token
        assert old is not None
        proxy.refuse()
        proxy.cut()
        eventually(lambda: losses)
        assert lock.lost is LossReason.NOT_CONFIRMED
        [event] = losses.events
        assert event.at <= event.deadline + LATE_S + pulse.stood_s(event.deadline, event.at)
        proxy.heal()
        healed_at = time.monotonic()
        assert lock.acquire(blocking_timeout=5.0)
        assert lock.lost is None
        assert lock.token != old
        assert_is_kept(lock, redis_server, timeout_s=1.5)
        assert not of_kind("renew", commands(proxy, since=healed_at, mentioning=old))
        assert len(losses) == 1
