"""A context whose client comes from Sentinel.master_for: it follows the master wherever that goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import valkey
import valkey.asyncio
from redis.sentinel import Sentinel

from tests.support.redis_server import require_tracking
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import CLIENTS, LONG_S
from tests.topology.watched_master import FAILOVER_S, SERVICE, Watched
from wheel_lock import LockContext, LossReason, LostEvent

pytestmark = pytest.mark.slow

UNHURRIED_S = 300.0
"""A lock of that is not due within any bound here, so a renewal is the check of a new master's keys."""


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


def test_locks_live_at_the_master_that_the_sentinels_name_however_the_client_is_configured(watched: Watched) -> None:
    addresses = [("127.0.0.1", sentinel.port) for sentinel in watched.sentinels]
    for settings in CLIENTS:
        client = Sentinel(addresses, sentinel_kwargs=settings).master_for(SERVICE, **settings)
        with LockContext(client) as context, context.lock("order:42") as lock:
            assert watched.master.client().get("order:42") == lock.token
            assert lock.owned()
            assert str(watched.master.port) in repr(context)
            assert SERVICE in repr(context)
            (node,) = context.health().nodes
            assert node.connected
            assert str(watched.master.port) in node.node


def test_clients_of_valkey_py_will_do_and_those_of_replicas_will_not(watched: Watched) -> None:
    addresses = [("127.0.0.1", sentinel.port) for sentinel in watched.sentinels]
    one, two = valkey.Sentinel(addresses), valkey.asyncio.Sentinel(addresses)
    for client in (one.master_for(SERVICE), two.master_for(SERVICE)):
        with LockContext(client) as context, context.lock("order:42") as lock:
            assert watched.master.client().get("order:42") == lock.token
    for refused in (one.slave_for(SERVICE), two.slave_for(SERVICE), watched.sentinel().slave_for(SERVICE)):
        with pytest.raises(TypeError, match="master_for"):
            LockContext(refused)
    with LockContext(one.master_for(SERVICE)) as context, context.lock("order:42", timeout=UNHURRIED_S) as lock:
        eventually(watched.replicated)
        watched.fail_over()
        eventually(lambda: lock.renewals >= 1, FAILOVER_S)
        assert lock.is_held


def test_what_the_new_master_has_stays_held_and_what_it_has_not_is_reported_lost() -> None:
    losses: list[LostEvent] = []
    with Watched() as watched, LockContext(watched.client()) as context:
        kept = context.acquire_many([f"kept:{n}" for n in range(1000)], timeout=60.0, on_lost=losses.append)
        missing = context.acquire_many([f"missing:{n}" for n in range(10)], timeout=60.0, on_lost=losses.append)
        # Those that are not renewed are verified, too.
        kept |= context.acquire_many(["limited:kept"], timeout=60.0, renew=False, on_lost=losses.append)
        missing |= context.acquire_many(["limited:missing"], timeout=60.0, renew=False, on_lost=losses.append)
        eventually(watched.replicated)
        watched.replica.client().replicaof("NO", "ONE")  # it forgets what has not come to it
        watched.replica.client().delete(*missing)
        old = watched.master
        old.kill()
        watched.wait_for_another(old)
        eventually(lambda: len(losses) == 11, FAILOVER_S)
        assert {event.name for event in losses} == set(missing)
        assert {event.reason for event in losses} == {LossReason.KEY_GONE}
        assert all(lock is not None and lock.is_held for lock in kept.values())
        assert context.stats().held == 1001
        context.release_many(kept.values())


def test_the_next_master_that_sentinels_name_is_asked_to_report() -> None:
    require_tracking()
    losses: list[LostEvent] = []
    with Watched() as watched, LockContext(watched.client(), watch=True) as context:
        lock = context.lock("order:42", timeout=UNHURRIED_S, on_lost=losses.append)
        assert lock.acquire()
        eventually(lambda: lock.renewals >= 1, LONG_S)
        replica = watched.replica.client()
        eventually(lambda: replica.exists("order:42"), LONG_S)
        before = lock.renewals
        watched.fail_over()
        eventually(lambda: lock.renewals > before and context.stats().watching, FAILOVER_S)
        assert losses == []
        watched.master.client().delete("order:42")
        eventually(lambda: losses, LONG_S)
        assert losses[0].reason is LossReason.KEY_GONE
