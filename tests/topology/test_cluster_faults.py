"""What goes wrong with several servers: a master dies or hangs, credentials cannot be had."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis.credentials import CredentialProvider

from tests.support.logged import Log
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import MASTERS, Nodes
from tests.topology.moving_slots import home, hung, is_renewed, names_at, names_in
from wheel_lock import LockContext, LossReason, LostEvent
from wheel_lock.engine.topology.cluster import ClusterRouter
from wheel_lock.net.cluster import ClusterConnector

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"


# -- a shard dies or hangs ---------------------------------------------------------------------------------------


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


# -- who is asked first ----------------------------------------------------------------------------------------------


def first_asked(nodes: Nodes, context: LockContext) -> int:
    """Which master a context turns to as long as it does not know the map of slots."""
    connector = context._engine.connector
    assert isinstance(connector, ClusterConnector)
    return next(n for n, server in enumerate(nodes.masters) if str(server.port) == connector.servers[0][1])


def test_a_seed_that_hangs_before_the_map_is_known_keeps_no_caller_from_the_others(nodes: Nodes) -> None:
    with LockContext(nodes.client(), connect_timeout=0.5) as context:
        number = first_asked(nodes, context)
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
