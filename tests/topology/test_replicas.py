"""min_replicas: a grant counts when so many replicas have it, and is taken back otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis

from tests.support.backend import acquirable
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable, NotReplicated

pytestmark = pytest.mark.slow

LONG_S = 4.0
"""What a replica may take to confirm a grant where a test is about something else."""


class Pair(NamedTuple):
    master: RedisServer
    replica: RedisServer


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        RedisServer("repl-diskless-sync-delay 0") as master,
        RedisServer(f"replicaof 127.0.0.1 {master.port}") as replica,
    ):
        eventually(lambda: replica.admin.info("replication")["master_link_status"] == "up", 20.0)
        with master.client(single_connection_client=True) as client:
            eventually(lambda: acknowledged(client), 20.0)
        yield Pair(master, replica)


def acknowledged(client: redis.Redis) -> bool:
    """Whether the replica has what is written now: for the first time that may take it a while."""
    client.delete("nothing")
    client.set("something", "")
    client.delete("something")
    return bool(client.wait(1, 200) == 1)


def test_a_grant_that_a_replica_has_counts(pair: Pair) -> None:
    with (
        LockContext(pair.master.client(), min_replicas=1, replica_timeout=LONG_S) as context,
        context.lock("order:42", timeout=10.0, renew_every=0.2) as lock,
    ):
        assert pair.replica.client().get("order:42") == lock.token
        eventually(lambda: lock.renewals > 2)
        with context.reentrant_lock("r"), context.rw_lock("t").write(), context.fair_lock("f"):
            assert pair.replica.client().dbsize() == 4
        with context.multi_lock(["x", "y"]) as together:
            assert together.is_held


def test_a_grant_that_no_replica_has_is_taken_back(pair: Pair) -> None:
    with LockContext(pair.master.client(), min_replicas=1, replica_timeout=0.2) as context:
        eventually(lambda: acquirable(context))
        pair.replica.pause()
        for acquire in (
            context.lock("a", timeout=60.0).acquire,
            context.reentrant_lock("b", timeout=60.0).acquire,
            lambda: context.acquire_many(["c", "d"], timeout=60.0),
            context.multi_lock(["e", "f"], timeout=60.0).acquire,
        ):
            with pytest.raises(NotReplicated, match=r"Only 0 replicas .* of 1"):
                acquire()
        with pytest.raises(LockUnavailable) as raised:  # which is what it is
            context.lock("a").acquire()
        assert raised.value.lock_name == "a"
        assert context.stats().held == 0
        eventually(lambda: pair.master.client().keys("[a-f]") == [])
        pair.replica.resume()
        eventually(lambda: acquirable(context))


@pytest.mark.parametrize("replicas", [-1, 1.5, True, "1"])
def test_bad_numbers_are_refused(replicas: object) -> None:
    with pytest.raises(ValueError, match="min_replicas"):
        LockContext(redis.Redis(), min_replicas=replicas)  # type: ignore[arg-type]
