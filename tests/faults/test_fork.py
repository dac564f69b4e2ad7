"""A process forks. The child starts with nothing; the parent notices nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.faults.holder import CLIENT, Holder
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


def connections(server: RedisServer) -> set[str]:
    return {other["id"] for other in server.client().client_list() if other["name"] == CLIENT}


@pytest.mark.parametrize("how", WAYS)
def test_a_forked_child_holds_nothing_and_its_parent_is_unaffected(
    fresh_redis: RedisServer, network: TcpProxy, how: str
) -> None:
    """The child uses no socket and no token of the parent's, and does not deadlock."""
    client = fresh_redis.client()
    with Holder(network.url, forks=1) as parent:
        token = parent.acquire(NAME, timeout=10.0, renew_every=0.1, fencing=True)["token"]
        assert parent.ask("acquire_many", prefix="many:", count=20, timeout=10.0, renew_every=0.1).result == 20
        before = connections(fresh_redis)
        forked_at = time.monotonic()
        child = parent.fork(how)
        look = child.look(NAME)
        assert (look["held"], look["lost"]) == (False, "FORKED")
        assert child.ask("held").result == []
        assert child.ask("stats").result == {"held": 0, "listed": 0, "connects": 0, "thread": False}
        for verb in ("release", "extend"):
            # A thread of the child that stands for another than the owner is told that the lock is not its own.
            assert child.ask(verb, name=NAME).error == ("LockNotHeld" if how == "thread" else "LockLost")
        assert connections(fresh_redis) == before  # none of that was worth a connection

        # The context is as good as new: a connection and a thread of the child's own.
        own = child.acquire("child", timeout=10.0, renew_every=0.1)["token"]
        assert len(connections(fresh_redis)) == 2
        assert before < connections(fresh_redis)
        child.goes_on("child")
        assert client.get("child") == own.encode()
        theirs = {command.connection for command in commands(network, mentioning=own)}
        about_parent = commands(network, since=forked_at, mentioning=token)
        assert theirs.isdisjoint({command.connection for command in about_parent})
        assert not child.ask("acquire", name=NAME, blocking=False).result["granted"]

        assert child.ask("release", name="child").error == ""
        assert parent.reap(child) == 0
        parent.goes_on(NAME)
        assert len(parent.ask("held").result) == 21
        assert parent.ask("stats").result["connects"] == 1
        assert client.get(NAME) == token.encode()
        assert parent.told == child.told == []


@pytest.mark.parametrize("tidy", [True, False], ids=["interpreter ends", "os._exit"])
def test_a_child_that_holds_locks_takes_only_its_own_with_it(redis_server: RedisServer, tidy: bool) -> None:
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
        parent.goes_on(NAME)
        assert parent.ask("stats").result["connects"] == 1
        assert parent.told == []
