"""A quorum of masters of which some are dead, hung, or have forgotten everything."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from functools import partial

import pytest
import redis

from tests.quorum.masters import LONG_S, UNHURRIED_S, Masters, connect, held_by
from tests.support.backend import Losses, acquirable
from tests.support.logged import Log
from tests.support.redis_server import require_tracking
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockUnavailable, LossReason
from wheel_lock.quorum.node import History

pytestmark = pytest.mark.slow


def test_it_counts_again_after_the_longest_timeout(masters: Masters) -> None:
    with masters.connected(longest_timeout=2.0, node_timeout=UNHURRIED_S) as context:
        for server in masters.servers[:3]:
            server.restart()
        lost = [engine.router.renewer.node for engine in context._engine.engines[:3]]
        eventually(lambda: not any(node.connected for node in lost), LONG_S)
        began = time.monotonic()
        connect(context)
        lock = context.lock("order:42", timeout=2.0)
        with pytest.raises(LockUnavailable, match=r"Only 2 of 5 nodes have votes.* has restarted"):
            lock.acquire(blocking=False)
        eventually(lambda: masters.count("order:42") == 0)
        assert lock.acquire(blocking_timeout=LONG_S)
        assert time.monotonic() - began >= 1.9
        lock.release()


def test_a_forked_child_goes_by_its_own_clock() -> None:
    now = 1000.0
    history = History(lambda: now, True)
    history.seen("a", 7)
    history.after_fork_in_child()
    assert history.counts_from(30.0) < now  # it was trusted from the first
    history.seen("b", 0)
    now = 100.0  # in a time namespace of the child's
    history.after_fork_in_child()
    assert history.counts_from(30.0) == 130.0
    history.seen("b", 500)
    assert history.counts_from(30.0) == 130.0
    now = 5000.0
    history.after_fork_in_child()
    history.seen("b", 11)
    assert history.counts_from(30.0) == 5020.0


def test_the_end_of_the_interpreter_releases_it(masters: Masters) -> None:
    ports = [server.port for server in masters.servers]
    masters.servers[2].pause()
    program = textwrap.dedent(f"""
        import redis
        from wheel_lock import LockContext
        context = LockContext.quorum([redis.Redis(port=port) for port in {ports}], close_timeout=30.0)
        lock = context.lock("order:42", thread_local=False)
        assert lock.acquire()
    """)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert time.monotonic() - began < 15.0  # half of what it may take for one that does not answer
    masters.servers[2].resume()
    eventually(lambda: masters.count("order:42") == 0)


def test_a_password_that_one_master_does_not_take_costs_one_vote(masters: Masters) -> None:
    clients = [redis.Redis(port=server.port) for server in masters.servers]
    clients[0] = redis.Redis(port=masters.servers[0].port, password="wrong")
    with LockContext.quorum(clients) as context, context.lock("order:42", timeout=30.0) as lock:
        assert lock.is_held


def test_a_master_with_two_addresses_has_one_vote(masters: Masters, log: Log) -> None:
    one, other = masters.servers[:2]
    clients = [redis.Redis(host=host, port=one.port, db=db) for db, host in enumerate(("localhost", "127.0.0.1"))]
    with LockContext.quorum([*clients, other.client()], close_timeout=1.0) as context:
        lock = context.lock("order:42", timeout=2.0, renew_every=0.2)
        assert lock.acquire(blocking_timeout=LONG_S)
        eventually(lambda: log.said("are one master"))
        assert sum(vote.live is not None for vote in held_by(lock).votes) == 2
        other.pause()
        eventually(lambda: lock.lost is LossReason.NOT_CONFIRMED, timeout_s=LONG_S)
        again = partial(acquirable, context, timeout=2.0, blocking_timeout=0.2)
        assert not again()
        with pytest.raises(LockUnavailable, match=r"Only \d of 3 nodes answered"):
            context.lock("order:42", timeout=2.0).acquire(blocking=False)
        other.resume()
        eventually(again, timeout_s=LONG_S)


def test_every_master_of_a_quorum_is_watched(masters: Masters) -> None:
    require_tracking()
    with masters.connected(watch=True) as context:
        losses = Losses()
        lock = context.lock("order:42", timeout=600.0, on_lost=losses)
        assert lock.acquire()
        eventually(lambda: all(stats.renewed for stats in context.node_stats().values()), LONG_S)
        assert context.stats().watching
        masters.delete("order:42")
        eventually(lambda: sum(stats.lost for stats in context.node_stats().values()) == 3, LONG_S)
        eventually(losses.delivered, LONG_S)
