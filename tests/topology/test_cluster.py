"""A context whose client is a RedisCluster: one channel for each master, and leases that follow their slots."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
import valkey
import valkey.asyncio
from redis.credentials import CredentialProvider

from tests.support.backend import of
from tests.support.background import Background
from tests.support.lock_types import KINDS, make
from tests.support.logged import Log
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer, hung, require_redis_7, require_tracking
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import CLIENTS, LONG_S, MASTERS, Nodes
from tests.topology.moving_slots import home, is_renewed, listeners, names_at, names_in, patient
from wheel_lock import LockContext, LockNotAcquired, LockTimeout, LockUnavailable, LossReason, LostEvent
from wheel_lock.engine.topology.cluster import ClusterRouter
from wheel_lock.locks import operations
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.protocol.keys import hash_slot

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"


def test_a_lock_lives_where_its_slot_is_however_the_client_is_configured(nodes: Nodes) -> None:
    client = nodes.client()
    for number, settings in enumerate(CLIENTS * 4):
        name = f"order:{number}"
        with LockContext(nodes.client(**settings)) as context, context.lock(name) as lock:
            assert client.get(name) == lock.token
            assert (lock.locked(), lock.owned(), lock.extend(10.0)) == (True, True, True)
            assert not context.lock(name).acquire(blocking=False)
        assert not client.exists(name)


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
    silent = f"127.0.0.1:{nodes.masters[0].port}: "
    with hung(nodes.masters[0]):
        looks = [Background(partial(look, context, f"look:{number}")) for number in range(20)]
        eventually(lambda: any(reason.startswith(silent) for reason in context.health().reasons))
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


def test_a_master_that_hangs_delays_no_adoption_from_another(nodes: Nodes, context: LockContext) -> None:
    patient(nodes)
    with LockContext(nodes.client(), response_timeout=LONG_S) as adopter:
        adopter.release_many(adopter.acquire_many([f"known:{number}" for number in range(50)]).values())
        locks = context.acquire_many([f"bulk:{number}" for number in range(1300)], timeout=2 * LONG_S)
        texts = context.export_many(locks.values())
        others = sum(server.client().dbsize() for server in nodes.masters[1:])
        with hung(nodes.masters[0]):
            call = Background(lambda: adopter.adopt_many(texts.values()))
            eventually(lambda: adopter.stats().held == others, LONG_S)
        assert all(call.result().values())


# What goes wrong with several servers: a master dies or hangs, credentials cannot be had


def test_a_shard_that_dies_takes_its_own_locks_only_and_the_log_says_which(
    nodes: Nodes, context: LockContext, log: Log
) -> None:
    losses: list[LostEvent] = []
    names = [f"order:{n}" for n in range(300)]
    locks = context.acquire_many(names, timeout=2.5, renew_every=0.4, on_lost=losses.append)
    theirs = {name for name in locks if home(str(name)) == 2}
    away = nodes.masters[2]
    away.kill()
    eventually(lambda: len(losses) == len(theirs))
    (warning,) = log.said("unreachable")
    assert f":{away.port} has been unreachable" in warning
    assert f"{len(theirs)} locks are held there" in warning
    is_renewed(*[lock for name, lock in locks.items() if lock is not None and name not in theirs])
    assert {event.name for event in losses} == theirs
    assert {event.reason for event in losses} == {LossReason.NOT_CONFIRMED}
    assert all(lock is not None and lock.is_held == (name not in theirs) for name, lock in locks.items())
    with context.lock(names_at(0, 1, "new")[0]) as lock:
        assert lock.is_held


def test_a_seed_that_hangs_before_the_map_is_known_keeps_no_caller_from_the_others(nodes: Nodes) -> None:
    with LockContext(nodes.client(), connect_timeout=0.5) as context:
        connector = context._engine.connector
        assert isinstance(connector, ClusterConnector)
        _, port = connector.servers[0]  # which is asked first
        number = [str(server.port) for server in nodes.masters].index(port)
        with hung(nodes.masters[number]):
            began = time.monotonic()
            with context.lock(names_at((number + 1) % MASTERS, 1)[0]) as lock:
                assert lock.is_held
            assert time.monotonic() - began < 4.0


@pytest.mark.parametrize("failure", [RuntimeError("the vault does not answer"), asyncio.CancelledError()], ids=repr)
def test_credentials_that_cannot_be_had_for_a_moment_are_asked_for_again(nodes: Nodes, failure: BaseException) -> None:
    class Provider(CredentialProvider):
        away = False
        refused = 0

        def get_credentials(self) -> tuple[str, str]:
            if self.away:
                self.refused += 1
                raise failure
            return "app", "secret"

    for server in nodes.masters:
        server.client().execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    provider, losses, slot = Provider(), list[LostEvent](), 400
    try:
        with LockContext(nodes.client(credential_provider=provider)) as context:
            lock = context.lock(names_in(slot, 1)[0], timeout=30.0, renew_every=0.4, on_lost=losses.append)
            assert lock.acquire()
            cluster = context._engine.router
            assert isinstance(cluster, ClusterRouter)
            eventually(lambda: cluster.known and not cluster._asking)
            provider.away = True
            nodes.move(slot, *nodes.masters[:2])
            # Its next renewal finds it gone to a node that cannot be connected to.
            eventually(lambda: context.stats().overdue and provider.refused > 3)
            provider.away = False
            is_renewed(lock)
            assert losses == []
            eventually(lambda: not cluster._asking)
            nodes.move(slot, *nodes.masters[1::-1])
    finally:
        for server in nodes.masters:
            server.client().acl_deluser("app")


OWNER = "billing@host-7"


@pytest.mark.parametrize("kind", KINDS)
def test_locks_of_each_kind_are_found_and_released_on_their_nodes(
    nodes: Nodes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_LOOK_S", LONG_S)
    with LockContext(nodes.client(), owner=OWNER, readable_owner=True) as context, LockContext(nodes.client()) as other:
        for number in range(1 if kind == "multi" else 3):
            name = f"{{owners}}:{kind}:{number}" if kind == "multi" else f"owners:{kind}:{number}"
            lock = make(context, kind, name, timeout=600.0)
            assert lock.acquire()
            rival = make(other, "write" if kind == "read" else kind, name, blocking=False)
            with pytest.raises(LockNotAcquired, match=OWNER):
                rival.__enter__()
            [holder] = other.force_release(name)
            assert holder.owner == OWNER
            assert not nodes.client().exists(name)
            assert len(context.force_release(name)) == 0


def _names(entries: list[dict[str, str]]) -> set[str]:
    return {entry["name"] for entry in entries}


def test_connections_to_all_nodes_have_the_owner_in_their_names(nodes: Nodes) -> None:
    with LockContext(nodes.client(), owner=OWNER) as context:
        locks = context.acquire_many([f"owners:{number}" for number in range(100)])
        assert all(locks.values())
        for server in nodes.masters:
            assert f"wheel_lock:{OWNER}" in _names(server.client().client_list())


def test_each_node_of_a_cluster_reports_its_own(nodes: Nodes) -> None:
    require_tracking()
    losses: list[LostEvent] = []
    names = [f"order:{number}" for number in range(90)]
    with LockContext(nodes.client(), watch=True) as context:
        locks = of(context.acquire_many(names, timeout=600.0, on_lost=losses.append))
        eventually(lambda: all(lock.renewals for lock in locks), LONG_S)
        assert context.stats().watching
        client = nodes.client()
        for name in names[:30]:
            client.delete(name)
        eventually(lambda: len(losses) == 30, LONG_S)
        assert {event.name for event in losses} == set(names[:30])
        assert {event.reason for event in losses} == {LossReason.KEY_GONE}
        assert {home(str(event.name)) for event in losses} == {0, 1, 2}
        assert context.stats().held == 60
