"""A real server restarts, refuses, runs out of memory, or is full. (What becomes of leases is in tests/simulation.)"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from tests.support.backend import LONG_S, Backend, Losses, of
from tests.support.background import Background
from tests.support.redis_server import RedisServer, redis_server_version, require_redis_7
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockServerError, LossReason
from wheel_lock.protocol import scripts

pytestmark = [pytest.mark.slow, pytest.mark.servers("fresh")]


def await_renewals(locks: Sequence[Lock]) -> None:
    """Return when each has been renewed once more."""
    before = [lock.renewals for lock in locks]
    eventually(lambda: all(lock.renewals > count for lock, count in zip(locks, before, strict=True)), LONG_S)
    assert all(lock.is_held for lock in locks)


def test_a_restart_without_persistence_is_noticed_at_the_next_renewal(
    context: LockContext, fresh_redis: RedisServer
) -> None:
    """The next fence is a greater one."""
    losses = Losses()
    fenced = context.lock("fenced", 5.0, fencing=True, on_lost=losses)
    assert fenced.acquire()
    before = fenced.fence
    locks = of(context.acquire_many([f"job {number}" for number in range(50)], 5.0, on_lost=losses))
    fresh_redis.restart()
    eventually(lambda: len(losses.delivered()) == len(locks) + 1, LONG_S)
    assert {event.reason for event in losses.events} == {LossReason.KEY_GONE}
    assert all(event.at < event.deadline for event in losses.events)
    assert fenced.acquire()
    assert before is not None
    assert fenced.fence is not None
    assert fenced.fence > before


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


@pytest.mark.parametrize("refusing", [busy, loading, misconf, noreplicas])
def test_a_server_that_refuses_for_a_while_costs_nothing(
    backend: Backend, fresh_redis: RedisServer, refusing: Callable[[RedisServer], AbstractContextManager[None]]
) -> None:
    """BUSY, LOADING, MISCONF, NOREPLICAS: renewals are unknown and retried until the deadline, an acquire raises that.

    A connection that is made meanwhile does not unlearn what the server's scripts can do: the form without flags would take
    a demoted master's missing key for a lost lock, and fail across slots.
    """
    network = backend.proxy()
    context = backend.context_through(network)
    locks = of(context.acquire_many([f"job {number}" for number in range(1000)], 4.0, renew_every=0.3))
    await_renewals(locks)
    code = refusing.__name__.upper()
    with refusing(fresh_redis):
        before = context.stats()
        eventually(lambda: context.stats().unknown > before.unknown, LONG_S, "a renewal is refused")
        with pytest.raises(LockServerError, match=code):
            context.lock("new", timeout=60.0, fencing=True).acquire()
        with pytest.raises(LockServerError, match=code):
            context.acquire_many(["new"], timeout=60.0)
        assert context.stats().batches - before.batches < 30
        network.cut()
        time.sleep(0.3)
    await_renewals(locks)
    assert not backend.view.exists("new")
    later = b"".join(piece.data for piece in network.log if piece.connection > 1 and piece.direction == "to_server")
    for form in (scripts.RENEW.plain, scripts.RENEW.flagged):
        known = form is scripts.RENEW.form(redis_server_version() >= (7,))
        assert (form.sha1.encode() in later or form.source in later) is known
