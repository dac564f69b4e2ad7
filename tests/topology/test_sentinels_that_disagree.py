"""Sentinels that do not say the same: one leads a failover that lasts, hangs, was away, watches another master."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio.sentinel
import redis.sentinel

from tests.support.backend import Clock
from tests.support.redis_server import RedisServer, hung
from tests.support.timers import ask
from tests.support.waiting import eventually
from tests.topology.watched_master import FAILOVER_S, SERVICE, Watched, begin_failover
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.engine.topology import sentinel as failover
from wheel_lock.engine.topology.sentinel import SentinelRouter
from wheel_lock.net import pubsub

pytestmark = pytest.mark.slow

LONG_S = 20.0
NEVER_S = 3600.0
UNHURRIED_S = 300.0
"""A lock of that is not renewed within any bound here, so a renewal is the check of a new master's keys."""


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched(down_after_ms=60_000) as watched:  # they fail over on command, and not because one is stopped
        yield watched


def client_of(watched: Watched, first: int = 0, **settings: Any) -> redis.Redis:
    """A client that has the Sentinels in another order, and no time limits of its own."""
    ports = [sentinel.port for sentinel in watched.sentinels]
    addresses = [("127.0.0.1", port) for port in (*ports[first:], *ports[:first])]
    client: redis.Redis = redis.sentinel.Sentinel(addresses, **settings).master_for(SERVICE)
    return client


def fail_over(leader: RedisServer, new: RedisServer) -> None:
    """Have one Sentinel make another server the master; return when that one says so."""
    begin_failover(leader)
    client: Any = leader.admin
    eventually(lambda: client.sentinel_get_master_addr_by_name(SERVICE)[1] == new.port, FAILOVER_S)


@pytest.fixture
def lasting() -> Iterator[Watched]:
    """A failover that goes on after the new master is one, because the other replica is synchronised for a long time."""
    with Watched(replicas=2, down_after_ms=60_000, failover_timeout_ms=60_000, one_choice=True) as watched:
        new = watched.servers[1].client()
        new.config_set("repl-diskless-sync-delay", 600)
        new.execute_command("DEBUG", "CHANGE-REPL-ID")
        yield watched


def test_each_sentinel_is_listened_to(lasting: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    *others, leader = lasting.sentinels  # in the order in which the client was given them
    monkeypatch.setattr(failover, "_LOOK_EVERY_S", NEVER_S)
    monkeypatch.setattr(pubsub, "_PING_EVERY_S", NEVER_S)
    with LockContext(lasting.client()) as context, context.lock("order:42", timeout=UNHURRIED_S) as lock:
        eventually(lasting.replicated)
        failovers = context._engine.router
        assert isinstance(failovers, SentinelRouter)
        eventually(lambda: all(not listening.busy for listening in failovers.listeners))
        with hung(*others):
            fail_over(leader, lasting.servers[1])
            eventually(lambda: lock.renewals, LONG_S)
            assert lasting.servers[1].client().get("order:42") == lock.token
        with LockContext(client_of(lasting, 1)) as other:  # which asks first one that has not heard of it
            assert not other.lock("order:42", timeout=30.0).acquire(blocking=False)
        masters: Any = leader.client().sentinel_masters()
        # The failover has not ended: the leader lists the old master, which goes on answering as one.
        assert int(masters[SERVICE]["port"]) == lasting.servers[0].port
        assert lock.is_held


class Mapping(redis.sentinel.Sentinel):
    """A Sentinel object of a user who reaches the servers by other addresses."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        _, port = super().discover_master(service_name)  # type: ignore[no-untyped-call]
        return "localhost", port


class MappingInTasks(redis.asyncio.sentinel.Sentinel):
    async def discover_master(self, service_name: str) -> tuple[str, int]:
        _, port = await super().discover_master(service_name)
        return "localhost", port


@pytest.mark.parametrize("kind", [Mapping, MappingInTasks])
def test_addresses_are_as_the_users_own_sentinel_object_maps_them(watched: Watched, kind: type[Any]) -> None:
    addresses = [("127.0.0.1", sentinel.port) for sentinel in watched.sentinels]
    with LockContext(kind(addresses).master_for(SERVICE)) as context, context.lock("order:42") as lock:
        assert watched.master.client().get("order:42") == lock.token
        assert f"localhost:{watched.master.port}" in repr(context)


def test_a_user_of_the_sentinels_needs_no_more_rights_than_redis_py_wants(watched: Watched) -> None:
    for sentinel in watched.sentinels:
        sentinel.client().acl_setuser(
            "app",
            enabled=True,
            passwords=["+secret"],
            categories=["-@all"],
            commands=["+sentinel|masters", "+subscribe", "+ping"],
            channels=["*"],
        )
    asking = {"username": "app", "password": "secret"}
    client = client_of(watched, sentinel_kwargs=asking)
    with LockContext(client) as context, context.lock("order:42", timeout=UNHURRIED_S) as lock:
        eventually(watched.replicated)
        fail_over(watched.sentinels[0], watched.replica)
        eventually(lambda: lock.renewals, LONG_S)


# Failovers that a Sentinel makes up: the others are asked, but not without end

FORGED = 200
AT_ONCE = 8


def test_failovers_that_are_made_up_are_asked_about_now_and_then(redis_server: RedisServer) -> None:
    with RedisServer(f"sentinel monitor {SERVICE} 127.0.0.1 {redis_server.port} 1", sentinel=True) as sentinel:
        asking = redis.sentinel.Sentinel([("127.0.0.1", sentinel.port)])
        eventually(lambda: asking.discover_master(SERVICE)[1] == redis_server.port)
        client: redis.Redis = asking.master_for(SERVICE)
        clock = Clock()
        timer = HashedWheelTimer(clock=clock)
        context = LockContext(client, timer=timer)
        failovers = context._engine.router
        assert isinstance(failovers, SentinelRouter)
        asked = 0
        look = context._engine.launch

        def counted(attempt: object) -> None:
            nonlocal asked
            asked += 1
            look(attempt)  # type: ignore[arg-type]

        with context.lock("order:42", timeout=60.0):
            eventually(lambda: not failovers._looking)
            context._engine.launch = counted
            for _ in range(FORGED):
                timer.post(partial(failovers.on_message, f"{SERVICE} 127.0.0.1 1 127.0.0.1 2".encode()))
                ask(timer)
                eventually(lambda: not failovers._looking)
            assert 1 <= asked <= 2 * AT_ONCE
            asked = 0
            clock.advance(0.3)
            eventually(lambda: asked == 1)
        context.close()
        timer.stop()
        client.close()
