"""Refusals, errors, replies that are late, lost or no replies, and connections that end: the engine goes on from there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from tests.direct.opened import on_path, opened, path_of
from tests.support.backend import LONG_S, Backend, Losses, token_of
from tests.support.counting import ServerCounts
from tests.support.fake_server import FakeServer, bulk
from tests.support.proxy import TcpProxy
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockTimeout, LossReason, WheelLockError
from wheel_lock.engine.interfaces import NO_DIRECT_LOCKS
from wheel_lock.testing import settle

pytestmark = pytest.mark.usefixtures("unwatched")
NAME = "order:42"


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the type and the text of its error."""
    try:
        return call()
    except WheelLockError as error:
        return type(error), str(error), getattr(error, "code", None)


def address(context: LockContext) -> str:
    """Return the address of the path's connection, as the server has it."""
    connection = path_of(context).connection
    assert connection is not None
    host, port = connection._sock.getsockname()
    return f"{host}:{port}"


# Refusals


@pytest.mark.parametrize("wait", [{"blocking": False}, {"blocking_timeout": 0.3}], ids=str)
def test_a_refusal_comes_as_on_the_ordinary_way(context: LockContext, real: Backend, wait: dict[str, Any]) -> None:
    real.view.set(NAME, "another's", px=60_000)
    direct = path_of(context)
    uses = direct.uses
    with ServerCounts(real.port) as counts:
        lock = context.lock(NAME, **wait)
        assert not lock.acquire()
        counts.look()
    assert direct.uses == uses + 1
    assert counts.commands["set"] == 1 or "blocking" not in wait  # a waiter's script tries with SET, too
    assert (lock.is_held, lock.lost, lock.token) == (False, None, None)
    assert not direct.claim
    settle(context.timer)
    assert context._engine.leases.acquiring == 0
    assert real.view.get(NAME) == b"another's"
    # The queue that a waiter has joined is kept for a moment, and nothing new uses the path meanwhile.
    eventually(lambda: not len(context._engine.wait_queues), LONG_S)
    with context.lock("free"):
        assert direct.uses == uses + 2


@pytest.mark.parametrize("blocking", [False, True])
def test_a_key_that_is_no_lock(context: LockContext, real: Backend, blocking: bool) -> None:
    real.view.rpush(NAME, "data")
    plain = real.context(timer=context.timer)
    plain._engine.direct = NO_DIRECT_LOCKS
    uses = path_of(context).uses

    def attempt(on: LockContext) -> object:
        return outcome(lambda: on.lock(NAME, blocking=blocking, blocking_timeout=5.0 if blocking else None).acquire())

    assert attempt(context) == attempt(plain)
    assert path_of(context).uses == uses + 1
    assert real.view.type(NAME) == b"list"


# Locks that are lost


@pytest.mark.parametrize("killed", [False, True], ids=["connected", "disconnected"])
@pytest.mark.parametrize("how", [LossReason.KEY_GONE, LossReason.TAKEN])
def test_a_lock_that_is_lost_on_the_path(context: LockContext, real: Backend, how: LossReason, killed: bool) -> None:
    losses = Losses()
    lock = context.lock(NAME, timeout=30.0, on_lost=losses)
    lock.acquire()
    assert on_path(lock)
    if how is LossReason.TAKEN:
        real.view.set(NAME, "another's")
    else:
        real.view.delete(NAME)
    if killed:
        real.view.client_kill(address(context))
    with pytest.raises(LockLost) as caught:
        lock.release()
    assert caught.value.reason is how
    assert (lock.lost, lock.is_held, lock.remaining()) == (how, False, 0.0)
    assert [event.reason for event in losses.delivered()] == [how]
    assert real.view.get(NAME) == (b"another's" if how is LossReason.TAKEN else None)
    assert context.stats().lost == 1
    with pytest.raises(LockLost):
        lock.release()
    assert len(losses.delivered()) == 1


# The connection


@pytest.mark.parametrize("phase", ["acquire", "release"])
@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_connection_that_breaks_in_a_request(real: Backend, proxy: TcpProxy, phase: str, direction: Any) -> None:
    context = real.context_through(proxy, timer=real.timer(), response_timeout=20.0)
    direct = opened(context)
    settle(context.timer)
    lock = context.lock(NAME)
    if phase == "release":
        lock.acquire()
        assert on_path(lock)
    proxy.cut_at_next_byte(direction)
    if phase == "acquire":
        assert lock.acquire()
        assert lock.is_held
        assert real.view.get(NAME) == token_of(lock)
    assert direct.uses > 0
    lock.release()
    assert not real.view.exists(NAME)
    assert (lock.lost, context.stats().held, context.stats().lost) == (None, 0, 0)
    opened(context)
    with context.lock(NAME) as lock:
        assert on_path(lock)


def test_an_acquire_on_a_connection_that_has_ended_is_the_engines_first_try(
    context: LockContext, real: Backend
) -> None:
    connection: Any = path_of(context).connection
    real.view.client_kill(address(context))
    eventually(lambda: connection._poll(0), LONG_S)
    before = real.view.info("commandstats")["cmdstat_set"]["calls"]
    with context.lock(NAME) as lock:
        assert real.view.exists(NAME)
        assert not on_path(lock)
    assert real.view.info("commandstats")["cmdstat_set"]["calls"] == before + 1


def test_a_reply_to_a_release_that_does_not_come(real: Backend, proxy: TcpProxy) -> None:
    context = real.context_through(proxy, timer=real.timer(), response_timeout=3.0)
    direct = opened(context)
    lock = context.lock(NAME, timeout=60.0)
    lock.acquire()
    acquired = context.stats().acquired
    proxy.to_client.delay_s = float("inf")
    with pytest.raises(LockTimeout):
        lock.release()
    assert not lock.is_held
    assert direct.connection is None
    proxy.heal()
    eventually(lambda: not real.view.exists(NAME), LONG_S)
    assert (context.stats().held, context.stats().acquired) == (0, acquired)
    assert direct.counted(context._engine.counters).acquire.total == acquired


# Replies that are none


class Server(FakeServer):
    """A fake server that has an identity, and answers acquires and releases on request."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.to_set: Iterator[bytes | None] = itertools.repeat(None)
        self.to_release: Iterator[bytes | None] = itertools.repeat(None)

    def _reply(self, words: list[bytes]) -> bytes | None:
        if words[0] == b"INFO":
            return bulk(b"# Server\r\nrun_id:0123456789abcdef0123456789abcdef01234567\r\n")
        if words[0] == b"SET":
            return next(self.to_set, None)
        if words[0] == b"EVALSHA" and NAME.encode() in words and words[2] == b"1" and len(words) == 6:
            return next(self.to_release, None)
        return None


@contextmanager
def lied_to() -> Iterator[tuple[Server, LockContext]]:
    with Server() as server, LockContext(redis.Redis(port=server.port), response_timeout=60.0) as context:
        opened(context)
        settle(context.timer)
        yield server, context


GARBAGE = {
    "another status": b"+FINE\r\n",
    "an integer": b":5\r\n",
    "an array": b"*0\r\n",
    "a string": b"$3\r\nabc\r\n",
    "no type": b"OK\r\n",
    "nothing but an end": b"\r\n",
    "an oversized error": b"-ERR " + b"x" * 5000 + b"\r\n",
    "without an end": b"x" * 2000,
    "two at once": b"+OK\r\n+OK\r\n",
    "a refusal and a grant": b"$-1\r\n+OK\r\n",
    "a grant and a refusal": b"+OK\r\n$-1\r\n",
    "two errors": b"-ERR one\r\n-ERR two\r\n",
}


@pytest.mark.parametrize("reply", GARBAGE.values(), ids=GARBAGE)
def test_a_reply_to_an_acquire_that_cannot_be_read(reply: bytes) -> None:
    with lied_to() as (server, context):
        server.to_set = iter([reply])
        uses = path_of(context).uses
        lock = context.lock(NAME)
        assert lock.acquire()  # by a second try, which recognises what the first may have done
        assert path_of(context).uses == uses + 1
        assert path_of(context).connection is None
        lock.release()
        assert server.asked[-1][0] == b"EVALSHA"


@pytest.mark.parametrize("what", ["another status", "two at once", "two errors"])
def test_a_reply_to_a_release_that_cannot_be_read(what: str) -> None:
    with lied_to() as (server, context):
        lock = context.lock(NAME)
        lock.acquire()
        assert on_path(lock)
        before = len(server.asked)
        server.to_release = iter([GARBAGE[what]])
        lock.release()
        assert len(server.asked) == before + 2
        assert (lock.lost, context.stats().held) == (None, 0)


def test_replies_in_pieces() -> None:
    with lied_to() as (server, context):
        server.piece, server.pause_s = 1, 0.002
        for _ in range(3):
            with context.lock(NAME) as lock:
                assert on_path(lock)


@pytest.mark.parametrize(
    "code", ["LOADING", "BUSY", "MISCONF", "NOAUTH", "TRYAGAIN", "ERR", "CLUSTERDOWN", "MASTERDOWN"]
)
def test_an_error_comes_as_on_the_ordinary_way(code: str) -> None:
    error = f"-{code} so it is\r\n".encode()
    with lied_to() as (server, context), LockContext(redis.Redis(port=server.port)) as plain:
        plain._engine.direct = NO_DIRECT_LOCKS
        results = []
        for on in (context, plain):
            server.to_set = iter([error] * 3)
            lock = on.lock(NAME, blocking_timeout=20.0)
            results.append(outcome(lock.acquire))
            if results[-1] is True:
                server.to_release = iter([error] * 3)
                results.append(outcome(lock.release))
            server.to_set, server.to_release = iter(()), iter(())
        half = len(results) // 2
        assert results[:half] == results[half:]
