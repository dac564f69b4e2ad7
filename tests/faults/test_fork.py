"""A process forks. The child starts with nothing; the parent notices nothing."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from tests.redis.test_exit import BEGINNING, run
from tests.support.backend import Backend, of, token_of
from tests.support.background import EVENTUALLY_S, in_a_fork, in_thread
from tests.support.draws import some_of
from tests.support.interruptions import MOST_PLACES, Interruption
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockLost, LockNotHeld, LossReason, LostEvent

pytestmark = pytest.mark.slow

NAME = "order:42"
CLIENT = "holder"


def connections(server: Backend) -> set[str]:
    return {other["id"] for other in server.client().client_list() if other["name"] == CLIENT}


def connections_with(network: TcpProxy, token: bytes, since: float = 0.0) -> set[int]:
    """The connections on which a token was sent at a time of CLOCK_MONOTONIC or later."""
    sent = [piece for piece in network.log if piece.direction == "to_server" and piece.time >= since]
    return {piece.connection for piece in sent if token in piece.data}


def goes_on(lock: Lock) -> None:
    """Wait until it has been renewed thrice more."""
    renewals = lock.renewals
    eventually(lambda: lock.renewals >= renewals + 3)
    assert lock.is_held


def by_multiprocessing(check: Callable[[], object]) -> None:
    process = multiprocessing.get_context("fork").Process(target=check)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
        process.start()
    process.join(EVENTUALLY_S)
    assert process.exitcode == 0


WAYS: dict[str, Callable[[Callable[[], object]], object]] = {
    "fork": in_a_fork,
    "thread": lambda check: in_thread(lambda: in_a_fork(check)),
    "multiprocessing": by_multiprocessing,
}


@pytest.mark.parametrize("how", WAYS)
def test_a_forked_child_holds_nothing_and_its_parent_is_unaffected(fresh: Backend, how: str) -> None:
    """The child uses no socket and no token of the parent's, and does not deadlock.

    Leases last 10 s: a silence of less than a sixth of that, while the machine is busy, does not cause a new connection.
    """
    view, losses = fresh.view, list[LostEvent]()
    network = fresh.proxy()
    context = fresh.context_of(fresh.client(port=network.port, client_name=CLIENT), timer=fresh.timer())
    lock = context.lock(NAME, timeout=10.0, renew_every=0.1, fencing=True, on_lost=losses.append)
    assert lock.acquire()
    many = of(context.acquire_many([f"many:{n}" for n in range(20)], 10.0, renew_every=0.1, on_lost=losses.append))
    before, forked_at = connections(fresh), time.monotonic()

    def check() -> None:
        assert (lock.is_held, lock.lost) == (False, LossReason.FORKED)
        assert not any(each.is_held for each in many)
        assert (context.stats().held, context.held(), context.stats().connects) == (0, [], 0)
        assert not context.timer.running
        for call in (lock.release, lambda: lock.extend(1.0)):
            with pytest.raises((LockLost, LockNotHeld)) as caught:
                call()
            # A thread of the child that stands for another than the owner gets an error: the lock is not its own.
            assert caught.type is (LockNotHeld if how == "thread" else LockLost)
        assert connections(fresh) == before  # none of that was worth a connection

        # The context is as good as new: a connection and a thread of the child's own.
        own = context.lock("child", timeout=10.0, renew_every=0.1, on_lost=losses.append)
        assert own.acquire()
        assert own.token is not None
        assert len(connections(fresh)) == 2
        assert before < connections(fresh)
        goes_on(own)
        assert fresh.client().get("child") == own.token
        fresh.client().set("token", own.token)
        assert not context.lock(NAME).acquire(blocking=False)
        own.release()
        assert losses == []

    WAYS[how](check)
    theirs: Any = view.get("token")
    ours = token_of(lock)
    assert connections_with(network, theirs)
    assert connections_with(network, theirs).isdisjoint(connections_with(network, ours, forked_at))
    goes_on(lock)
    assert context.stats().held == 21
    assert context.stats().connects == 1
    assert view.get(NAME) == lock.token
    assert losses == []


@pytest.mark.servers("real")
def test_a_signal_that_a_child_gets_before_its_first_action_leaves_the_lock_with_the_parent(fresh: Backend) -> None:
    context = fresh.context_of(fresh.client(), timer=fresh.timer())
    with context.lock(NAME, timeout=60.0) as lock:
        for place in some_of(300, MOST_PLACES):
            interruption = Interruption(place)

            def check(interruption: Interruption = interruption) -> None:
                interruption.end()
                assert (lock.is_held, context.timer.running) == (False, False), interruption.where
                with context.lock("child", timeout=60.0):
                    pass

            interruption.begin()
            in_a_fork(check)
            interruption.end()
            assert lock.is_held


@pytest.mark.parametrize("end", ["sys.exit()", "os._exit(0)"])
def test_a_child_that_holds_locks_takes_only_its_own_with_it(redis_server: RedisServer, end: str) -> None:
    program = f"""
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
lock = context.lock("{NAME}", timeout=10.0, renew_every=0.1, on_lost=print)
lock.acquire()
child = os.fork()
if child == 0:
    own = context.lock("child", timeout=0.5)
    own.acquire()
    {end}
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
client = redis.Redis(port=port)
while "{end}" == "os._exit(0)" and client.exists("child"):
    time.sleep(0.01)
assert not client.exists("child")  # released at exit, or expired
renewals = lock.renewals
while lock.renewals < renewals + 3:
    time.sleep(0.01)
assert lock.is_held
assert context.stats().connects == 1
lock.release()
"""
    assert run(BEGINNING + program, redis_server.port) == ""


def test_a_child_that_closes_all_descriptors_as_daemons_do_uses_none_of_them(redis_server: RedisServer) -> None:
    program = f"""
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # about a fork with threads
with context.lock("{NAME}"):
    pass
child = os.fork()
if child == 0:
    try:
        os.closerange(3, 256)
        with context.lock("{NAME}"):
            os._exit(0)
    finally:
        os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    assert run(BEGINNING + program, redis_server.port) == ""
