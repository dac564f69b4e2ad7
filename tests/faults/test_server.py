"""The server fails: it stands still, restarts, forgets, refuses, runs full, or lets others meddle with what is ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import redis

from tests.faults.meddling_proxy import MeddlingProxy
from tests.faults.sent_commands import commands, of_kind
from tests.faults.shared_wheel import (
    LONG_S,
    STRANGER,
    Onlooker,
    SharedWheel,
    assert_stranger_untouched,
    take_over,
)
from tests.faults.support import FencedRegister, Losses
from tests.support.background import Background
from tests.support.redis_server import RedisServer, redis_server_version, require_redis_7
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockServerError, LocksLost, LossReason, LostEvent
from wheel_lock.engine.renewal import retry
from wheel_lock.protocol import scripts
from wheel_lock.runtime.backoff import Backoff

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


def calls_of(view: redis.Redis, *commands: str) -> int:
    """How often the server was asked to do these, whether it did or refused."""
    stats = view.info("commandstats")
    return sum(
        stats[f"cmdstat_{command}"]["calls"] + stats[f"cmdstat_{command}"]["rejected_calls"]
        for command in commands
        if f"cmdstat_{command}" in stats
    )


def form_of_last_renewal(network: MeddlingProxy) -> scripts.ScriptForm:
    words = of_kind("renew", commands(network))[-1].words
    forms = (scripts.RENEW.plain, scripts.RENEW.flagged)
    return next(form for form in forms if words[1] in (form.sha1.encode(), form.source))


# -- 28. DEBUG SLEEP, SIGSTOP, CLIENT PAUSE for 0.5 L: nothing lost. For 1.5 L: as the server says. --------------------


def stop_process(server: RedisServer, duration_s: float) -> None:
    server.pause()
    time.sleep(duration_s)
    server.resume()


def debug_sleep(server: RedisServer, duration_s: float) -> None:
    server.client().execute_command("DEBUG", "SLEEP", duration_s)


def client_pause(server: RedisServer, duration_s: float) -> None:
    server.client().client_pause(round(duration_s * 1000), all=True)
    time.sleep(duration_s)


def client_pause_write(server: RedisServer, duration_s: float) -> None:
    server.client().client_pause(round(duration_s * 1000), all=False)
    time.sleep(duration_s)


@pytest.mark.parametrize("stand_still", [stop_process, debug_sleep, client_pause, client_pause_write])
def test_a_server_that_stands_still_for_half_a_timeout_costs_nothing(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis, stand_still: Callable[[RedisServer, float], None]
) -> None:
    """28. DEBUG SLEEP, SIGSTOP, CLIENT PAUSE for 0.5 L: nothing lost."""
    L = 2.0
    held = wheel.hold(wheel.context(server), [f"job {number}" for number in range(5)], timeout=L, renew_every=0.2)
    with Onlooker(held, view):
        held.await_renewal()
        stand_still(server, 0.5 * L)
        held.await_renewal()
        held.assert_all_held()


@pytest.mark.parametrize("stand_still", [stop_process, client_pause_write])
def test_a_server_that_stands_still_for_longer_than_a_timeout_ends_every_lease_by_its_deadline(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis, stand_still: Callable[[RedisServer, float], None]
) -> None:
    """28. DEBUG SLEEP, SIGSTOP, CLIENT PAUSE for 1.5 L: as the server says (TTL keeps running under CLIENT PAUSE)."""
    L = 1.0
    context = wheel.context(server)
    held = wheel.hold(context, ["job"], timeout=L, fencing=True)
    register = FencedRegister()
    assert register.write(held.lock.fence)
    with Onlooker(held, view):
        stand_still(server, 1.75 * L)
        held.await_loss()
        take_over(view, "job", held.lock)
        with pytest.raises(LockLost):
            held.lock.release()
        wheel.assert_alive(context)
    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert_stranger_untouched(view, "job")
    view.delete("job")
    assert register.write(wheel.hold(context, ["job"], timeout=L, fencing=True).lock.fence)
    assert not register.write(held.lock.fence)


# -- 29. Restart without persistence: lost at the next renewal, reason key gone. ---------------------------------------


def test_a_restart_without_persistence_is_noticed_at_the_next_renewal(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """29. Restart without persistence: lost at the next renewal, reason key gone. The next fence is a greater one."""
    context = wheel.context(server)
    helds = [
        wheel.hold(context, [f"job {number}" for number in range(50)], timeout=5.0),
        wheel.hold(context, ["fenced"], timeout=5.0, fencing=True),
    ]
    register = FencedRegister()
    assert register.write(helds[1].lock.fence)
    server.kill()
    server.start()
    for held in helds:
        held.await_loss()
        held.assert_lost(LossReason.KEY_GONE)
        assert all(event.at < event.deadline for event in held.told())
    wheel.assert_alive(context)
    assert register.write(wheel.hold(context, ["fenced"], timeout=5.0, fencing=True).lock.fence)
    assert not register.write(helds[1].lock.fence)


def test_a_server_that_comes_back_empty_is_found_out_long_before_renewals_are_due(fresh_redis: RedisServer) -> None:
    """29. Every lease is verified as soon as there is a connection again: 10 s before the first of these is due."""
    with LockContext(fresh_redis.client(), connect_timeout=1.0) as context:
        told: list[LostEvent] = []
        names = [f"order:{number}" for number in range(10_000)]
        locks = context.acquire_many(names, 60.0, on_lost=told.append)
        assert None not in locks.values()
        fresh_redis.kill()
        time.sleep(1.0)  # what the servers of users need to come back
        fresh_redis.start()
        eventually(lambda: len(told) == len(names), 10.0)
        assert {event.reason for event in told} == {LossReason.KEY_GONE}
        again = context.acquire_many(names, 60.0)
        assert None not in again.values()


def test_a_restart_without_persistence_spares_who_comes_next(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """29. Restart without persistence: no other owner's token is deleted or extended."""
    context = wheel.context(server)
    held = wheel.hold(context, ["job"], timeout=5.0)
    server.kill()
    server.start()
    assert view.set("job", STRANGER, nx=True)
    held.await_loss()
    [event] = held.told()
    assert event.reason in (LossReason.TAKEN, LossReason.KEY_GONE)  # the holder may have asked before the stranger came
    held.assert_lost(event.reason)
    with pytest.raises(LockLost):
        held.lock.release()
    wheel.assert_alive(context)
    assert_stranger_untouched(view, "job")


def test_a_server_that_dies_for_good_ends_ten_thousand_leases_by_their_deadlines(
    wheel: SharedWheel, server: RedisServer
) -> None:
    """29. No restart at all: every lock is lost no later than its local deadline, and each is told of exactly once."""
    context, clock = wheel.stepped_context(server)
    helds = []
    for timeout in (4.0, 6.0):
        helds.append(wheel.hold(context, [f"{timeout:g} s, {number}" for number in range(5000)], timeout=timeout))
        clock.advance(1.0)
    server.kill()
    first = min(lock.remaining() for held in helds for lock in held.locks.values())
    last = max(lock.remaining() for held in helds for lock in held.locks.values())
    clock.advance(first - 0.05)
    for held in helds:
        held.assert_all_held()
    clock.advance(last - first + 0.05)
    for held in helds:
        held.assert_lost(LossReason.NOT_CONFIRMED, late_s=0.0)
    assert context.stats().held == 0
    assert context.stats().overdue == 0


# -- 30. SCRIPT FLUSH in the middle of a pipeline: EVAL fallback, nothing lost. ----------------------------------------


def test_flushed_scripts_cost_nothing(wheel: SharedWheel, server: RedisServer, view: redis.Redis) -> None:
    """30. SCRIPT FLUSH in the middle of a pipeline: EVAL fallback, nothing lost."""
    context = wheel.context(server)
    held = wheel.hold(context, [f"job {number}" for number in range(2000)], timeout=4.0, renew_every=0.3)
    over = False

    def flush() -> int:
        flushes = 0
        while not over:
            view.script_flush("SYNC")
            flushes += 1
            time.sleep(0.001)
        return flushes

    flushing = Background(flush)
    for number in range(20):
        with context.lock(f"fenced {number}", timeout=5.0, fencing=True) as lock:
            assert lock.fence
            lock.extend(1.0)
        bulk = context.acquire_many([f"bulk {number} {index}" for index in range(20)], timeout=5.0)
        assert None not in bulk.values()
        context.release_many(bulk.values())
    held.await_renewal()
    held.await_renewal()
    over = True
    assert flushing.result() > 20
    held.assert_all_held()
    assert calls_of(view, "eval") > 0
    assert view.dbsize() == 2000 + 20  # and the fences


def test_a_clean_up_that_is_sent_again_does_not_release_the_next_grant(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """30. SCRIPT FLUSH: what is sent again comes later than it should, and must not touch a later lease."""
    network = wheel.proxy(server)
    context = wheel.context(network)
    wheel.assert_alive(context)
    view.script_flush("SYNC")
    network.to_client.delay_s = 1.6
    losses = Losses()
    lock = context.lock("job", timeout=1.5, renew_every=0.2, retry_every=0.01, thread_local=False, on_lost=losses)
    acquiring = Background(lambda: lock.acquire(blocking_timeout=LONG_S))
    eventually(lambda: view.exists("job"), LONG_S, "it is granted")
    eventually(lambda: not view.exists("job"), LONG_S, "the grant expires before it is known")
    eventually(lambda: view.exists("job"), LONG_S, "the next try is granted")
    network.to_client.delay_s = 0.0  # now both are answered: that there is no script to clean up with, and the grant
    assert acquiring.result()
    eventually(lambda: lock.renewals >= 2 or lock.lost, LONG_S, "it is renewed")
    assert losses.events == []
    assert lock.is_held
    assert view.get("job") == lock.token
    lock.release()


# -- 31. BUSY, LOADING, MISCONF, NOREPLICAS: unknown, retried until V. -------------------------------------------------


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
    """31. BUSY, LOADING, MISCONF, NOREPLICAS: unknown, retried until V."""
    context = wheel.context(server)
    held = wheel.hold(context, [f"job {number}" for number in range(1000)], timeout=4.0, renew_every=0.3)
    held.await_renewal()
    with refusing(server):
        before = context.stats()
        eventually(lambda: context.stats().unknown > before.unknown, LONG_S, "a renewal is refused")
        time.sleep(0.2)
        held.assert_all_held()
        assert context.stats().batches - before.batches < 30
    held.await_renewal()
    held.assert_all_held()


@REFUSALS
def test_a_server_that_refuses_for_too_long_ends_every_lease_by_its_deadline(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis, refusing: Refusing
) -> None:
    """31. BUSY, LOADING, MISCONF, NOREPLICAS: unknown, retried until V."""
    context = wheel.context(server)
    held = wheel.hold(context, [f"job {number}" for number in range(1000)], timeout=1.5)
    with refusing(server):
        before = context.stats().batches
        held.await_loss()
        held.assert_lost(LossReason.NOT_CONFIRMED)
        # Before Redis 7 it does not refuse a call, but every entry of it, and those are probed in smaller calls.
        assert context.stats().batches - before < (30 if redis_server_version() >= (7,) else 100)
    wheel.assert_alive(context)
    held.assert_lost(LossReason.NOT_CONFIRMED)


@REFUSALS
def test_an_acquire_that_the_server_refuses_raises_what_it_says_and_leaves_nothing_behind(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis, refusing: Refusing
) -> None:
    """31. BUSY, LOADING, MISCONF, NOREPLICAS, to an acquire."""
    context = wheel.context(server)
    wheel.assert_alive(context)
    with refusing(server):
        for fencing in (False, True):
            lock = context.lock("job", timeout=60.0, fencing=fencing)
            with pytest.raises(LockServerError, match=refusing.__name__.upper()):
                lock.acquire()
            assert not lock.is_held
        with pytest.raises(LockServerError, match=refusing.__name__.upper()):
            context.acquire_many(["job"], timeout=60.0)
    assert not view.exists("job")
    wheel.assert_alive(context)


@REFUSALS
def test_a_connection_that_is_made_while_the_server_refuses_is_as_good_as_any(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis, refusing: Refusing
) -> None:
    """31. BUSY, LOADING, MISCONF, NOREPLICAS while connecting: a server does not unlearn what its scripts can do.

    The form without flags would take a demoted master's missing key for a lost lock, and fail across slots.
    """
    network = wheel.proxy(server)
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=4.0, renew_every=0.2)
    held.await_renewal()
    with refusing(server):
        network.cut()
        time.sleep(0.3)
    held.await_renewal()
    held.assert_all_held()
    assert of_kind("renew", commands(network))[-1].connection > 1
    assert form_of_last_renewal(network) is scripts.RENEW.form(redis_server_version() >= (7,))


def test_a_lock_acquired_just_after_the_refusals_have_ended_is_renewed(
    wheel: SharedWheel, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """31. NOREPLICAS until V, then health: the pause after the last refusal is not at the expense of a new lease."""
    # Pauses that are longer than a lease whose key no stop of this process outlasts: it expires in real time.
    monkeypatch.setattr(retry, "Backoff", lambda first_s, most_s: Backoff(first_s, 20.0))
    context, clock = wheel.stepped_context(server)
    held = wheel.hold(context, [f"job {number}" for number in range(20)], timeout=120.0, renew_every=1.0)
    with noreplicas(server):
        clock.advance(40.0)  # by now the pauses between tries have become long
        before = context.stats().batches
        while context.stats().batches == before:
            clock.advance(0.1)
    short = wheel.hold(context, ["short"], timeout=6.0)
    clock.advance(5.8)
    assert short.lock.renewals > 0
    clock.advance(20.0)
    short.assert_all_held()
    held.assert_all_held()


def test_a_restart_with_persistence_costs_nothing(wheel: SharedWheel, redis_server: RedisServer) -> None:
    """31. LOADING, as it comes with a restart: the locks are still there when it is over."""
    with RedisServer("save 3600 1") as server:
        server.client().execute_command("DEBUG", "POPULATE", 20_000)
        context = wheel.context(server)
        held = wheel.hold(context, [f"job {number}" for number in range(500)], timeout=6.0, renew_every=0.3)
        held.await_renewal()
        server.restart()
        held.await_renewal()
        held.assert_all_held()


# -- 32. Out of memory (noeviction): held locks stay renewed, a new acquire raises the server's error. -----------------


def test_a_server_out_of_memory_keeps_what_is_held_and_refuses_what_is_new(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """32. Out of memory (noeviction): held locks stay renewed, a new acquire raises the server's error."""
    network = wheel.proxy(server)
    context = wheel.context(network)
    held = wheel.hold(context, [f"job {number}" for number in range(200)], timeout=4.0, renew_every=0.3)
    fenced = wheel.hold(context, ["fenced"], timeout=4.0, renew_every=0.3, fencing=True)
    view.config_set("maxmemory", 1)
    with Onlooker(fenced, view):
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
    assert fenced.told() == []
    held.assert_all_held()
    view.config_set("maxmemory", 0)
    wheel.assert_alive(context)


# -- 33. Eviction policy evicts a lock key: lost at the next renewal. --------------------------------------------------


def test_an_evicted_lock_is_lost_at_the_next_renewal(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """33. Eviction policy evicts a lock key: lost at the next renewal. The fence refuses who does not know yet."""
    context, clock = wheel.stepped_context(server)  # the next renewal comes when all is prepared
    held = wheel.hold(context, ["a", "b"], timeout=30.0, fencing=True)
    register = FencedRegister()
    assert register.write(held["a"].fence)
    view.config_set("maxmemory-policy", "volatile-ttl")
    view.config_set("maxmemory", 1)
    eventually(lambda: _refusal_of_set(view) and not view.exists("a", "b"), LONG_S, "the locks have been evicted")
    view.config_set("maxmemory", 0)
    other = wheel.hold(wheel.context(server), ["a"], timeout=3.0, fencing=True)
    assert register.write(other.lock.fence)
    assert not register.write(held["a"].fence)

    clock.advance(10.5)
    held.await_loss()
    reasons = {event.name: event.reason for event in held.told()}
    assert reasons == {"a": LossReason.TAKEN, "b": LossReason.KEY_GONE}
    assert len(held.told()) == 2
    assert held.believed() == []
    assert all(event.at < event.deadline for event in held.told())
    other.await_renewal()
    other.assert_all_held()


def _refusal_of_set(view: redis.Redis) -> bool:
    try:
        view.set("something", "else")
    except redis.ResponseError:
        return True
    return False


# -- 34. ACL rights revoked: suspect at once, lost by V, no hot retry loop. --------------------------------------------

USER = "app on >secret ~* &* +@all"
REVOCATIONS = {
    "every command": ["-@all"],
    "scripts": ["-evalsha", "-eval"],
    "what the script calls first": ["-get"],
    "what the script calls then": ["-pexpire"],
    "every key": ["resetkeys"],
}


@pytest.fixture
def guarded() -> Iterator[RedisServer]:
    """A server with a user whose rights can be taken away."""
    with RedisServer(users=[USER]) as server:
        yield server


def as_user(server: RedisServer) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=server.port, username="app", password="secret")


@pytest.mark.parametrize("rules", [["-@all"], ["-pexpire"]], ids=["of the whole call", "of each entry"])
def test_revoked_rights_make_leases_suspect_at_once_and_lost_by_their_deadline(
    wheel: SharedWheel, guarded: RedisServer, rules: list[str]
) -> None:
    """34. ACL rights revoked: suspect at once, lost by V, no hot retry loop."""
    view = guarded.client()
    context = wheel.context(as_user(guarded))
    held = wheel.hold(context, [f"job {number}" for number in range(1000)], timeout=2.0, renew_every=0.35)
    held.await_renewal()
    view.execute_command("ACL", "SETUSER", "app", *rules)
    before = calls_of(view, "eval", "evalsha")
    eventually(lambda: context.stats().overdue == 1000 or held.losses.events, LONG_S, "all are suspect")
    held.assert_all_held()
    held.await_loss()
    held.assert_lost(LossReason.NOT_CONFIRMED)
    # A call for each of some 35 ticks until all are suspect, then a probe of three calls after 20, 40, 80 ... 500 ms.
    assert calls_of(view, "eval", "evalsha") - before < 100

    view.execute_command("ACL", "SETUSER", "app", "+@all", "~*")
    wheel.assert_alive(context)
    held.assert_lost(LossReason.NOT_CONFIRMED)


@pytest.mark.parametrize("rules", REVOCATIONS.values(), ids=REVOCATIONS.keys())
def test_rights_that_are_given_back_in_time_cost_nothing(
    wheel: SharedWheel, guarded: RedisServer, rules: list[str]
) -> None:
    """34. ACL rights revoked, by mistake and for a moment: unknown, so nothing is lost."""
    view = guarded.client()
    context = wheel.context(as_user(guarded))
    held = wheel.hold(context, ["a", "b"], timeout=4.0, renew_every=0.2)
    held.await_renewal()
    view.execute_command("ACL", "SETUSER", "app", *rules)
    eventually(lambda: context.stats().overdue, LONG_S, "they are suspect")
    view.execute_command("ACL", "SETUSER", "app", "+@all", "~*")
    held.await_renewal()
    held.assert_all_held()


@pytest.mark.parametrize("rules", REVOCATIONS.values(), ids=REVOCATIONS.keys())
def test_a_refused_release_or_extend_is_no_proof_of_a_loss(
    wheel: SharedWheel, guarded: RedisServer, rules: list[str]
) -> None:
    """34. ACL rights revoked: unknown, never "taken by another", whatever it is that the server refuses."""
    view = guarded.client()
    context = wheel.context(as_user(guarded))
    held = wheel.hold(context, ["extended", "released", "also released"], timeout=5.0)
    view.execute_command("ACL", "SETUSER", "app", *rules)
    with pytest.raises(LockServerError):
        held["extended"].extend(1.0)
    with pytest.raises(LockServerError):
        held["extended"].reacquire()
    if "-pexpire" not in rules:  # which a release does not need
        with pytest.raises(LockServerError):
            held["released"].release()
        with pytest.raises(LockServerError):
            context.release_many([held["also released"]])
    assert held.told() == []
    assert held["extended"].is_held
    view.execute_command("ACL", "SETUSER", "app", "+@all", "~*")
    eventually(lambda: held["extended"].renewals, LONG_S, "it is renewed again")
    assert held.told() == []


def test_a_user_that_is_deleted_ends_its_leases_by_their_deadline(wheel: SharedWheel, guarded: RedisServer) -> None:
    """34. ACL rights revoked, and the connection closed: lost by V, and no hammering on the door."""
    view = guarded.client()
    context = wheel.context(as_user(guarded))
    held = wheel.hold(context, ["a", "b"], timeout=1.0)
    before = calls_of(view, "auth", "hello")
    view.acl_deluser("app")
    held.await_loss()
    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert calls_of(view, "auth", "hello") - before < 20
    name, *rules = USER.split()
    view.execute_command("ACL", "SETUSER", name, *rules)
    wheel.assert_alive(context)


@pytest.mark.parametrize("rules", [["-@all"], ["-eval"]], ids=["every command", "EVAL"])
def test_a_connection_that_is_made_while_rights_are_revoked_is_as_good_as_any(
    wheel: SharedWheel, guarded: RedisServer, rules: list[str]
) -> None:
    """34. ACL rights revoked while connecting: a server does not unlearn what its scripts can do. See 31."""
    view = guarded.client()
    network = wheel.proxy(guarded)
    context = wheel.context(redis.Redis(port=network.port, username="app", password="secret"))
    held = wheel.hold(context, ["a", "b"], timeout=4.0, renew_every=0.3)
    held.await_renewal()
    before = network.accepted
    view.execute_command("ACL", "SETUSER", "app", *rules)
    network.cut()
    eventually(lambda: network.accepted > before, LONG_S, "it has begun to connect")
    time.sleep(0.3)
    view.execute_command("ACL", "SETUSER", "app", "+@all")
    held.await_renewal()
    held.assert_all_held()
    assert form_of_last_renewal(network) is scripts.RENEW.form(redis_server_version() >= (7,))


def test_an_acquire_whose_fence_is_refused_leaves_no_lock_behind(wheel: SharedWheel, guarded: RedisServer) -> None:
    """34. ACL rights too few from the start: the lock's own key is allowed, the one for its fence is not."""
    view = guarded.client()
    view.execute_command("ACL", "SETUSER", "app", "resetkeys", "~job*")
    context = wheel.context(as_user(guarded))
    lock = context.lock("job", timeout=60.0, fencing=True)
    with pytest.raises(LockServerError):
        lock.acquire()
    assert not lock.is_held
    eventually(lambda: not view.exists("job"), LONG_S, "the name is free")


# -- 35. DEL, FLUSHALL, another type, PERSIST by someone else: only that entry of the batch is affected. ---------------


def test_meddlers_affect_only_what_they_touch(wheel: SharedWheel, server: RedisServer, view: redis.Redis) -> None:
    """35. DEL, another type under the name, PERSIST by someone else: only that entry of the batch is affected."""
    context = wheel.context(server)
    held = wheel.hold(context, [f"job {number}" for number in range(10)], timeout=3.0, renew_every=0.3)
    held.await_renewal()
    with view.pipeline() as meddler:
        meddler.delete("job 1", "job 2", "job 3", "job 4")
        meddler.set("job 2", STRANGER)
        meddler.hset("job 3", "field", "value")
        meddler.rpush("job 4", "item")
        meddler.persist("job 5")
        meddler.pexpire("job 6", 100_000)
        meddler.rename("job 7", "elsewhere")
        meddler.append("job 8", "x")
        meddler.execute()
    lost = ["job 1", "job 2", "job 3", "job 4", "job 7", "job 8"]
    held.await_loss(*lost)
    held.await_renewal("job 0", "job 5", "job 6", "job 9")

    reasons = {event.name: event.reason for event in held.told()}
    assert sorted(map(str, held.losses.names)) == lost
    assert reasons == {
        "job 1": LossReason.KEY_GONE,
        "job 2": LossReason.TAKEN,
        "job 3": LossReason.TAKEN,
        "job 4": LossReason.TAKEN,
        "job 7": LossReason.KEY_GONE,
        "job 8": LossReason.TAKEN,
    }
    assert all(event.at < event.deadline for event in held.told())
    assert held.believed() == ["job 0", "job 5", "job 6", "job 9"]
    for name in held.believed():
        assert view.get(name) == held.tokens[name]
        # What somebody else has prolonged stays so: a renewal cannot know that it was not an extension.
        assert 0 < view.pttl(name) <= (100_000 if name == "job 6" else 3000)
    assert_stranger_untouched(view, "job 2")
    assert view.hgetall("job 3") == {b"field": b"value"}
    assert view.lrange("job 4", 0, -1) == [b"item"]
    assert view.exists("elsewhere", "job 8") == 2


def test_meddlers_are_noticed_by_release_and_extend_too(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """35. DEL, another type under the name, someone else's token: a loss, and nothing of theirs is touched."""
    context = wheel.context(server)
    for act in ("release", "reacquire", "release_many"):
        held = wheel.hold(context, ["gone", "taken", "hash", "fine"], timeout=30.0)
        with view.pipeline() as meddler:
            meddler.delete("gone", "taken", "hash")
            meddler.set("taken", STRANGER)
            meddler.hset("hash", "field", "value")
            meddler.execute()
        if act == "release_many":
            with pytest.raises(LocksLost) as caught:
                context.release_many(held.locks.values())
            assert set(caught.value.losses) == {"gone", "taken", "hash"}
        else:
            for name in ("gone", "taken", "hash"):
                with pytest.raises(LockLost):
                    getattr(held[name], act)()
            getattr(held["fine"], act)()
        reasons = {event.name: event.reason for event in held.told()}
        assert reasons == {"gone": LossReason.KEY_GONE, "taken": LossReason.TAKEN, "hash": LossReason.TAKEN}
        assert len(held.told()) == 3
        assert_stranger_untouched(view, "taken")
        assert view.hgetall("hash") == {b"field": b"value"}
        if act == "reacquire":
            held["fine"].release()
        assert not view.exists("fine")
        view.flushall()


def test_flushall_ends_every_lease_at_its_next_renewal(
    wheel: SharedWheel, server: RedisServer, view: redis.Redis
) -> None:
    """35. FLUSHALL by someone else. The next fence is a greater one all the same."""
    context, clock = wheel.stepped_context(server)  # the next renewals come when all is prepared
    held = wheel.hold(context, [f"job {number}" for number in range(700)], timeout=30.0)
    fenced = wheel.hold(context, ["fenced"], timeout=30.0, fencing=True)
    register = FencedRegister()
    assert register.write(fenced.lock.fence)
    view.flushall()
    other = wheel.hold(wheel.context(server), ["fenced"], timeout=3.0, renew_every=0.5, fencing=True)
    assert register.write(other.lock.fence)
    assert not register.write(fenced.lock.fence)
    clock.advance(10.5)
    for victims, reason in ((held, LossReason.KEY_GONE), (fenced, LossReason.TAKEN)):
        victims.await_loss()
        victims.assert_lost(reason)
        assert all(event.at < event.deadline for event in victims.told())
    other.await_renewal()
    other.assert_all_held()
