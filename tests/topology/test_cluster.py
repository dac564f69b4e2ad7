"""A context whose client is a RedisCluster: one channel for each master, and leases that follow their slots."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import valkey
import valkey.asyncio

from tests.support.background import Background
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer, require_redis_7
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import CLIENTS, LONG_S, Nodes
from tests.topology.moving_slots import home, listeners
from wheel_lock import LockContext, LockTimeout, LockUnavailable
from wheel_lock.protocol.keys import hash_slot

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"


def test_a_lock_lives_where_its_slot_is(nodes: Nodes, context: LockContext) -> None:
    client = nodes.client()
    for number in range(20):
        with context.lock(f"order:{number}") as lock:
            assert client.get(f"order:{number}") == lock.token
            assert lock.locked()
            assert lock.owned()
            assert lock.extend(10.0)
        assert not client.exists(f"order:{number}")


def test_a_client_may_be_configured_as_it_likes(nodes: Nodes) -> None:
    for settings in CLIENTS:
        with LockContext(nodes.client(**settings)) as context, context.lock("order:42") as lock:
            assert lock.owned()
            assert not context.lock("order:42").acquire(blocking=False)


def look(context: LockContext, name: str) -> None:
    with suppress(LockTimeout, LockUnavailable):
        context.lock(name).locked()


def test_the_health_of_each_master_is_seen(nodes: Nodes, context: LockContext) -> None:
    locks = context.acquire_many([f"seen:{number}" for number in range(50)])
    addresses = {f"127.0.0.1:{master.port}" for master in nodes.masters}
    health = context.health()
    assert health.ok, health.reasons
    assert {node.node for node in health.nodes} == addresses
    assert all(node.connected and node.last_confirmation_age_s is not None for node in health.nodes)
    nodes.masters[0].pause()
    silent = f"127.0.0.1:{nodes.masters[0].port}: "
    try:
        looks = [Background(partial(look, context, f"look:{number}")) for number in range(20)]
        eventually(lambda: any(reason.startswith(silent) for reason in context.health().reasons))
    finally:
        nodes.masters[0].resume()
    for call in looks:
        call.result()
    eventually(lambda: context.health().ok)
    context.release_many(locks.values())


def test_wake_ups_go_to_the_shard_alone_and_move_with_the_slot(nodes: Nodes) -> None:
    require_redis_7()
    name = "shard:1"
    slot, source, target = hash_slot(name.encode()), nodes.masters[home(name)], nodes.masters[home(name) - 1]
    channel = f"wheel_lock:wake:{{{name}}}"
    with (
        LockContext(nodes.client(), fallback_interval=60.0) as holding,
        LockContext(nodes.client(), fallback_interval=60.0) as other,
    ):
        lock = holding.lock(name, timeout=60.0, thread_local=False)
        assert lock.acquire()
        waiter = other.lock(name, timeout=60.0, thread_local=False)
        waiting = Background(waiter.acquire)
        eventually(lambda: listeners(source, channel) == 1)
        assert source.client().pubsub_numsub(channel)[0][1] == 0
        nodes.move(slot, source, target)
        eventually(lambda: listeners(target, channel) == 1, LONG_S)
        lock.release()
        assert waiting.result()
        waiter.release()
        nodes.move(slot, target, source)


def test_clients_of_valkey_py_will_do(nodes: Nodes) -> None:
    address: Any = {"host": "127.0.0.1", "port": nodes.servers[0].port}
    greeted: list[Any] = []
    clients: list[Any] = [valkey.ValkeyCluster(**address, valkey_connect_func=greeted.append)]
    clients += [
        valkey.asyncio.ValkeyCluster(**address),
        valkey.asyncio.ValkeyCluster(**address, read_from_replicas=True),
    ]
    names = [f"order:{number}" for number in range(100)]
    with clients[0]:
        for client in clients:
            greeted.clear()
            with LockContext(client) as context:
                locks = context.acquire_many(names)
                assert all(locks.values())
                assert nodes.client().get("order:42") == locks["order:42"].token  # type: ignore[union-attr]
                context.release_many(locks.values())
            assert bool(greeted) is (client is clients[0])
        assert LockContext.shared(clients[0]) is LockContext.shared(clients[0])
        LockContext.shared(clients[0]).close()


def test_nodes_are_reached_where_the_client_says_they_are(nodes: Nodes) -> None:
    name = "order:42"
    slot, source, target = hash_slot(name.encode()), nodes.masters[home(name)], nodes.masters[home(name) - 1]
    with ExitStack() as stack:
        tunnels = {server.port: stack.enter_context(TcpProxy(server.port)) for server in nodes.masters}
        client = nodes.client(address_remap=lambda place: ("127.0.0.1", tunnels[place[1]].port))
        context = stack.enter_context(LockContext(client))

        def asked(server: RedisServer) -> int:
            return tunnels[server.port].seen("to_server").count(name.encode())

        with context.lock(name) as lock:
            assert asked(source)
            before = asked(target)  # which was perhaps asked first, while nothing was known
            nodes.move(slot, source, target)
            stack.callback(nodes.move, slot, target, source)
            assert lock.locked()
            assert asked(target) > before
        assert nodes.client().exists(name) == 0


def test_locks_on_all_nodes_change_hands(nodes: Nodes, context: LockContext) -> None:
    names = [f"bulk:{number}" for number in range(300)]
    with LockContext(nodes.client()) as adopter:  # which has no map of the slots yet
        texts = context.export_many(context.acquire_many(names).values())
        locks = adopter.adopt_many(texts.values())
        assert list(locks) == names
        assert all(lock is not None and lock.is_held for lock in locks.values())
        assert not any(context.adopt_many(texts.values()).values())
        adopter.release_many(locks.values())
    assert sum(server.client().dbsize() for server in nodes.masters) == 0
