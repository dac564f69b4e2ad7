"""Faults 9 and 10: a process forks. The child starts with nothing; the parent notices nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.faults.holders import Holder, Peer
from tests.faults.sent_commands import commands
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NAME = "order:42"
# Where it is known how many connections there are, leases last 10 s: a silence of less than a sixth of that, while the
# network stands still, is no reason to make another.
WAYS = ["fork", "thread", "multiprocessing"]


@pytest.fixture
def network(fresh_redis: RedisServer) -> Iterator[TcpProxy]:
    """In front of a server whose only clients with a name are those of the test."""
    with TcpProxy(fresh_redis.port) as proxy:
        yield proxy


def connections(server: RedisServer) -> list[str]:
    return [other["id"] for other in server.client().client_list() if other["name"] == "holder"]


def goes_on(peer: Peer, name: str) -> None:
    """Wait until a lease has been renewed thrice more."""
    renewals = peer.ask("look", name=name).result["renewals"]
    eventually(lambda: peer.ask("look", name=name).result["renewals"] >= renewals + 3)
    assert peer.ask("look", name=name).result["held"]


@pytest.mark.parametrize("how", WAYS)
def test_fault_09_a_forked_child_holds_nothing_and_its_parent_is_unaffected(
    fresh_redis: RedisServer, network: TcpProxy, how: str
) -> None:
    """9. os.fork while locks are held: the child holds nothing, uses no parent socket or token, does not deadlock; the
    parent is unaffected."""
    client = fresh_redis.client()
    with Holder(network.url, forks=1) as parent:
        token = parent.acquire(NAME, timeout=10.0, renew_every=0.1, fencing=True).result["token"]
        assert parent.ask("acquire_many", prefix="many:", count=20, timeout=10.0, renew_every=0.1).result == 20
        before = connections(fresh_redis)
        forked_at = time.monotonic()
        child = parent.fork(how)

        look = child.ask("look", name=NAME)
        assert not look.result["held"]
        assert look.result["lost"] == "FORKED"
        assert look.result["remaining"] == 0.0
        assert child.ask("held").result == []
        stats = child.ask("stats").result
        assert (stats["held"], stats["listed"], stats["connects"], stats["thread"]) == (0, 0, 0, False)
        for verb in ("release", "extend"):
            # A thread of the child that stands for another than the owner is told that the lock is not its own.
            assert child.ask(verb, name=NAME).error == ("LockNotHeld" if how == "thread" else "LockLost")
        assert connections(fresh_redis) == before  # none of that was worth a connection

        # The context is as good as new: a connection and a thread of the child's own.
        own = child.acquire("child", timeout=10.0, renew_every=0.1)
        assert len(connections(fresh_redis)) == 2
        assert set(before) <= set(connections(fresh_redis))
        goes_on(child, "child")
        assert client.get("child") == own.result["token"].encode()
        childs_connections = {command.connection for command in commands(network, mentioning=own.result["token"])}
        about_parent = commands(network, since=forked_at, mentioning=token)
        assert childs_connections.isdisjoint({command.connection for command in about_parent})

        # What the child cannot get it does not get.
        contended = child.ask("acquire", name=NAME, blocking=False)
        assert not contended.error
        assert not contended.result["granted"]

        assert child.ask("release", name="child").error == ""
        assert parent.reap(child) == 0
        goes_on(parent, NAME)
        assert len(parent.ask("held").result) == 21
        assert parent.ask("stats").result["connects"] == 1
        eventually(lambda: connections(fresh_redis) == before, message="the child's connection has gone, and no other")
        assert client.get(NAME) == token.encode()
        assert (parent.told, child.told) == ([], [])
        assert parent.ask("release", name=NAME).error == ""
        assert client.get(NAME) is None


@pytest.mark.parametrize("tidy", [True, False], ids=["interpreter ends", "os._exit"])
def test_fault_09_a_child_that_holds_locks_takes_only_its_own_with_it(redis_server: RedisServer, tidy: bool) -> None:
    """9. Child exit does not disturb the parent, whether the child's interpreter finalises everything or nothing."""
    client = redis_server.client()
    with Holder(redis_server.url, forks=1) as parent:
        parent.acquire(NAME, timeout=10.0, renew_every=0.1)
        child = parent.fork(tidy=tidy)
        child.acquire("child", timeout=0.5)
        assert parent.reap(child) == 0
        if tidy:
            assert client.get("child") is None  # released at exit
        else:
            eventually(lambda: client.get("child") is None)
        goes_on(parent, NAME)
        assert parent.ask("stats").result["connects"] == 1
        assert parent.told == []


def test_fault_10_a_context_made_before_the_fork_serves_every_worker(fresh_redis: RedisServer) -> None:
    """10. Context created before fork (gunicorn preload, Celery prefork), used after: renewed in the child."""
    client = fresh_redis.client()
    terms = {"timeout": 2.0, "renew_every": 0.2}
    with Holder(fresh_redis.url, forks=3) as master:
        master.ask("prepare", name="prepared", **terms)
        workers = [master.fork(how) for how in WAYS]
        assert connections(fresh_redis) == []
        tokens = {}
        for number, worker in enumerate(workers):
            tokens[f"worker:{number}"] = worker.acquire(f"worker:{number}", **terms).result["token"]
        tokens["prepared"] = workers[0].acquire("prepared").result["token"]
        tokens["master"] = master.acquire("master", **terms).result["token"]
        assert len(connections(fresh_redis)) == 4
        until = time.monotonic() + 2.2
        eventually(lambda: time.monotonic() > until)
        for number, worker in enumerate(workers):
            look = worker.ask("look", name=f"worker:{number}").result
            assert look["held"]
            assert look["renewals"] >= 3
            assert worker.ask("stats").result["connects"] == 1
        assert {name: client.get(name) for name in tokens} == {name: tok.encode() for name, tok in tokens.items()}
        for number, worker in enumerate(workers):
            assert worker.ask("release", name=f"worker:{number}").error == ""
        assert workers[0].ask("release", name="prepared").error == ""
        assert [master.reap(worker) for worker in workers] == [0, 0, 0]
        assert master.ask("look", name="master").result["held"]
