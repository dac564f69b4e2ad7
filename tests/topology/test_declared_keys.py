"""Services that route by declared keys: each call of a script is about one lease, and says which keys it touches."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import hiredis
import pytest
import redis

from tests.support.backend import of
from tests.support.background import Background
from tests.support.fake_server import FakeServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LostEvent
from wheel_lock.protocol.resp import command
from wheel_lock.testing import ManualClock

pytestmark = pytest.mark.slow

REFUSALS = [
    b"ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS array",
    b"ERR wrong number of arguments for 'evalsha' command",
    b"invalid request",
    b"CROSSSLOT Keys in request don't hash to the same slot",
]


PROBE = b"wheel_lock:probe"
SCRIPT_CALLS = (b"EVAL", b"EVALSHA")


class KeyedProxy(FakeServer):
    """Stands before one server. Use it in a ``with``. (It does not support subscriptions.)

    Args:
        port: The server's.
        refusal: What is said to a call without keys.

    Attributes:
        refused: How many calls were refused.
        refused_trials: How many of these only tried what the service takes, as each connection does when it is made.
        passed: How many script calls were passed on.
        needs_keys: Whether it refuses anything.
        strict: Whether it refuses also what a connection begins with: scripts that touch no key, or one that is not there.
        down: How the names begin that live on a shard which is down; None where all are well.
    """

    def __init__(self, port: int, refusal: bytes) -> None:
        super().__init__(self._answer)
        self._behind_port = port
        self._behind = threading.local()  # each connection is served by a thread
        self._refusal = refusal
        self.refused = 0
        self.passed = 0
        self.refused_trials = 0
        self.strict = True
        self.needs_keys = True
        self.down: bytes | None = None

    def _serve(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._behind_port)) as self._behind.server:
            super()._serve(client)

    def _answer(self, words: list[bytes]) -> bytes:
        verb = words[0].upper()
        if verb in SCRIPT_CALLS and words[2] == b"0" and self.needs_keys:
            trial = b"return 1" in words[1] or any(word.startswith(PROBE) for word in words[3:])
            if trial and not self.strict:
                return self._pass_on(words)
            self.refused += 1
            self.refused_trials += trial
            return b"-%b\r\n" % self._refusal
        if self.down is not None and any(word.startswith(self.down) for word in words):
            return b"-ERR no upstream host\r\n"
        self.passed += verb in SCRIPT_CALLS
        return self._pass_on(words)

    def _pass_on(self, words: list[bytes]) -> bytes:
        server: socket.socket = self._behind.server
        server.sendall(command(*words))
        answered, received = hiredis.Reader(), b""
        while data := server.recv(1 << 16):
            received += data
            answered.feed(data)
            if answered.gets() is not False:
                return received
        raise ConnectionResetError


@pytest.fixture
def proxy(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[KeyedProxy]:
    with KeyedProxy(redis_server.port, getattr(request, "param", REFUSALS[0])) as proxy:
        yield proxy


def client_of(proxy: KeyedProxy) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=proxy.port)


@pytest.mark.parametrize("proxy", REFUSALS, ids=["keys array", "arguments", "invalid", "slots"], indirect=True)
def test_the_refusal_itself_switches_to_one_lease_a_call(proxy: KeyedProxy) -> None:
    losses: list[LostEvent] = []
    with LockContext(client_of(proxy)) as context:
        names = [f"order:{n}" for n in range(200)]
        locks = context.acquire_many(names, timeout=10.0, renew_every=0.3, on_lost=losses.append)
        assert all(locks.values())
        eventually(lambda: all(lock is not None and lock.renewals > 2 for lock in locks.values()))
        refused = proxy.refused
        assert not any(context.acquire_many(locks).values())
        context.release_many(locks.values())
        assert losses == []
        assert proxy.refused == refused  # it is not asked in that way again
        assert all(context.acquire_many(locks).values())


def test_renewals_that_are_refused_together_do_not_hold_each_other_up(proxy: KeyedProxy) -> None:
    proxy.strict = False
    clock = ManualClock()
    timer = HashedWheelTimer(clock=clock)
    with LockContext(client_of(proxy), timer=timer) as context:
        ill = [context.lock(f"ill:{n}", timeout=20.0, renew_every=1.0) for n in range(3)]
        well = [context.lock(f"well:{n}", timeout=20.5, renew_every=1.0) for n in range(3)]  # other terms, another call
        assert all(lock.acquire() for lock in [*ill, *well])
        refused, proxy.down = proxy.refused, b"ill"
        clock.jump(2.0)
        eventually(lambda: all(lock.renewals for lock in well))
        assert proxy.refused == refused + 2
        proxy.down = None
        context.release_many([*ill, *well])
    timer.stop()


def test_a_connection_finds_out_by_itself_so_that_no_call_is_refused(proxy: KeyedProxy) -> None:
    with LockContext(client_of(proxy)) as context:
        with context.lock("first"):
            pass  # what is asked for before anything is known of the service is asked in bulk
        for connects in range(1, 4):
            locks = of(context.acquire_many([f"order:{n}" for n in range(50)], timeout=10.0))
            context.release_many(locks)
            assert context.stats().connects >= connects
            assert proxy.refused == proxy.refused_trials
            context.timer.post(partial(context._engine.router.renewer.node.drop, ConnectionAbortedError("for a test")))
            eventually(lambda: not context._engine.router.renewer.node.connected)


def test_a_service_that_has_learnt_to_do_without_is_asked_in_bulk_again(proxy: KeyedProxy) -> None:
    with LockContext(client_of(proxy)) as context:
        locks = of(context.acquire_many([f"order:{n}" for n in range(50)], timeout=60.0))
        node, passed = context._engine.router.renewer.node, proxy.passed
        assert passed > 50
        proxy.needs_keys = False
        context.timer.post(partial(node.drop, ConnectionAbortedError("for a test")))
        eventually(lambda: node.connected and not node.single_key_mode)
        passed = proxy.passed
        context.release_many(locks)
        assert proxy.passed < passed + 50


def test_every_kind_of_lock_works(proxy: KeyedProxy) -> None:
    terms: dict[str, Any] = {"timeout": 10.0, "renew_every": 0.2}
    with LockContext(client_of(proxy), fallback_interval=0.3) as context:
        with context.lock("a", **terms, fencing=True) as lock:
            eventually(lambda: lock.renewals)
        with context.reentrant_lock("b", **terms) as reentrant:
            eventually(lambda: reentrant.renewals)
        with context.rw_lock("c", **terms).write() as writer:
            eventually(lambda: writer.renewals)
            writer.downgrade().release()
        with context.fair_lock("d", **terms) as fair:
            waiting = Background(context.fair_lock("d", **terms, thread_local=False).acquire)
            eventually(lambda: fair.renewals)
        assert waiting.result()
        with context.semaphore("e", 2, **terms) as permit:
            eventually(lambda: permit.renewals)
        with context.multi_lock(["f", "g", "h"], **terms) as together:
            assert together.is_held
            assert not context.multi_lock(["x", "h"]).acquire(blocking=False)
            assert context.lock("x").acquire(blocking=False)
