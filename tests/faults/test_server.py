"""The server fails: it stands still, restarts, forgets, refuses, runs full, or lets others meddle with what is ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from tests.faults.sent_commands import commands, of_kind
from tests.faults.shared_wheel import (
    LONG_S,
    SharedWheel,
)
from tests.support.background import Background
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer, redis_server_version, require_redis_7
from tests.support.waiting import eventually
from wheel_lock import LockServerError, LossReason
from wheel_lock.protocol import scripts

pytestmark = pytest.mark.slow


@pytest.fixture
def wheel(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[SharedWheel]:
    with SharedWheel(redis_server) as wheel:
        yield wheel
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == []


@pytest.fixture
def server(fresh_redis: RedisServer) -> RedisServer:
    """The one that fails; the wheel's bystander is on another."""
    return fresh_redis


@pytest.fixture
def view(server: RedisServer) -> redis.Redis:
    return server.client()


def form_of_last_renewal(network: TcpProxy) -> scripts.ScriptForm:
    words = of_kind("renew", commands(network))[-1].words
    forms = (scripts.RENEW.plain, scripts.RENEW.flagged)
    return next(form for form in forms if words[1] in (form.sha1.encode(), form.source))


def test_a_restart_without_persistence_is_noticed_at_the_next_renewal(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """Restart without persistence: lost at the next renewal, reason key gone. The next fence is a greater one."""
    context = wheel.context(server)
    helds = [
        wheel.hold(context, [f"job {number}" for number in range(50)], timeout=5.0),
        wheel.hold(context, ["fenced"], timeout=5.0, fencing=True),
    ]
    server.kill()
    server.start()
    for held in helds:
        held.await_loss()
        held.assert_lost(LossReason.KEY_GONE)
        assert all(event.at < event.deadline for event in held.reported())
    wheel.assert_alive(context)
    before, after = (each.lock.fence for each in (helds[1], wheel.hold(context, ["fenced"], timeout=5.0, fencing=True)))
    assert before is not None
    assert after is not None
    assert after > before


@contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """A script that does not end until it is killed."""
    view = server.client()
    view.config_set("lua-time-limit", 5)
    with server.client(socket_timeout=None) as culprit:
        script = Background(lambda: culprit.eval("while true do end", 0))
        eventually(lambda: _refusal(view) == "BUSY", LONG_S, "the server is busy")
        yield
        view.script_kill()
        with pytest.raises(redis.ResponseError):
            script.result()


@contextmanager
def misconf(server: RedisServer) -> Iterator[None]:
    """A dump that cannot be written, because a directory is in its place."""
    view = server.client()
    (server.directory / "dump.rdb").mkdir(exist_ok=True)
    view.config_set("save", "3600 1")
    view.bgsave()
    eventually(lambda: _refusal(view) == "MISCONF", LONG_S, "the dump has failed")
    yield
    view.config_set("stop-writes-on-bgsave-error", "no")


@contextmanager
def noreplicas(server: RedisServer) -> Iterator[None]:
    """Too few replicas."""
    view = server.client()
    view.config_set("min-replicas-to-write", 1)
    assert _refusal(view) == "NOREPLICAS"
    yield
    view.config_set("min-replicas-to-write", 0)


@contextmanager
def loading(server: RedisServer) -> Iterator[None]:
    """A server that reads its own dump, slowly."""
    require_redis_7()  # to have it take its time
    view = server.client()
    view.execute_command("DEBUG", "POPULATE", 10_000)
    view.config_set("loading-process-events-interval-bytes", 1024)
    view.config_set("key-load-delay", 1000)  # microseconds: it would take ten seconds
    reloader = server.client(socket_timeout=None)
    reloading = Background(lambda: reloader.execute_command("DEBUG", "RELOAD"))
    eventually(lambda: _refusal(view) == "LOADING", LONG_S, "the server loads")
    yield
    view.config_set("key-load-delay", 0)
    reloading.result()


def _refusal(view: redis.Redis) -> str:
    """The code of the error with which the server answers a write."""
    try:
        view.delete("nothing")
    except redis.BusyLoadingError:
        return "LOADING"
    except redis.ResponseError as error:
        return str(error).split(" ", 1)[0]
    return ""


Refusing = Callable[[RedisServer], AbstractContextManager[None]]
REFUSALS = pytest.mark.parametrize("refusing", [busy, loading, misconf, noreplicas])


@REFUSALS
def test_a_server_that_refuses_for_a_while_costs_nothing(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis, refusing: Refusing
) -> None:
    """BUSY, LOADING, MISCONF, NOREPLICAS: renewals are unknown and retried until V, an acquire raises that.

    A connection that is made meanwhile does not unlearn what the server's scripts can do: the form without flags would take
    a demoted master's missing key for a lost lock, and fail across slots.
    """
    network = wheel.proxy(server)
    context = wheel.context(network)
    held = wheel.hold(context, [f"job {number}" for number in range(1000)], timeout=4.0, renew_every=0.3)
    held.await_renewal()
    code = refusing.__name__.upper()
    with refusing(server):
        before = context.stats()
        eventually(lambda: context.stats().unknown > before.unknown, LONG_S, "a renewal is refused")
        lock = context.lock("new", timeout=60.0, fencing=True)
        with pytest.raises(LockServerError, match=code):
            lock.acquire()
        assert not lock.is_held
        with pytest.raises(LockServerError, match=code):
            context.acquire_many(["new"], timeout=60.0)
        held.assert_all_held()
        assert context.stats().batches - before.batches < 30
        network.cut()
        time.sleep(0.3)
    held.await_renewal()
    held.assert_all_held()
    assert not view.exists("new")
    assert of_kind("renew", commands(network))[-1].connection > 1
    assert form_of_last_renewal(network) is scripts.RENEW.form(redis_server_version() >= (7,))


def test_a_server_out_of_memory_keeps_what_is_held_and_refuses_what_is_new(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """Out of memory (noeviction): held locks stay renewed, a new acquire raises the server's error."""
    network = wheel.proxy(server)
    context = wheel.context(network)
    held = wheel.hold(context, [f"job {number}" for number in range(200)], timeout=4.0, renew_every=0.3)
    fenced = wheel.hold(context, ["fenced"], timeout=4.0, renew_every=0.3, fencing=True)
    view.config_set("maxmemory", 1)
    for fencing in (False, True):
        with pytest.raises(LockServerError, match="OOM"):
            context.lock("new", timeout=60.0, fencing=fencing).acquire()
    with pytest.raises(LockServerError, match="OOM"):
        context.acquire_many(["new", "newer"], timeout=60.0)
    assert not view.exists("new", "newer")
    held.await_renewal()
    view.script_flush("SYNC")
    network.cut()  # neither a new connection nor a script that is sent again may need memory
    held.await_renewal()
    fenced.await_renewal()
    assert fenced.lock.extend(1.0)
    fenced.lock.release()
    assert fenced.reported() == []
    held.assert_all_held()
    view.config_set("maxmemory", 0)
    wheel.assert_alive(context)
