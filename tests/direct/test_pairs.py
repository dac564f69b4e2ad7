"""What an acquire and a release on the direct path send, cost and count, and which locks use it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.direct.opened import on_path, opened, path_of
from tests.support.backend import LONG_S, Backend, token_of
from tests.support.background import in_thread
from tests.support.counting import Counting
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.timers import ask, fall_asleep
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason
from wheel_lock.engine.direct import connection, path
from wheel_lock.observe.contexts import Reading
from wheel_lock.testing import settle

NAME = "order:42"


def pair(context: LockContext, name: str = NAME) -> None:
    with context.lock(name):
        pass


def test_a_context_opens_its_path_after_enough_acquires(real: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WORTH_IT", 5)
    context = real.context()
    direct = path_of(context)
    pair(context)
    for _ in range(3):
        pair(context)
    settle(context.timer)
    assert (direct._opener.missed, direct._opener.connecting, direct.connection) == (4, False, None)
    pair(context)
    eventually(lambda: direct.connection is not None, LONG_S)
    assert direct.uses == 0
    pair(context)
    assert direct.uses == 1


@pytest.mark.usefixtures("unwatched")
def test_a_pair_is_two_commands_on_a_connection_of_its_own(real: Backend, proxy: TcpProxy) -> None:
    context = real.context_through(proxy)
    opened(context)
    settle(context.timer)
    before = len(proxy.log)
    lock = context.lock(NAME)
    assert lock.acquire()
    assert real.view.get(NAME) == token_of(lock)
    assert on_path(lock)
    lock.release()
    sent = [entry for entry in proxy.log[before:] if entry.direction == "to_server"]
    assert [entry.data.splitlines()[2] for entry in sent] == [b"SET", b"EVALSHA"]
    assert len({entry.connection for entry in sent}) == 1
    assert not real.view.exists(NAME)


@pytest.mark.usefixtures("unwatched")
def test_what_a_pair_costs_its_caller(real: Backend) -> None:
    pairs = 50
    with Counting() as counting:
        context = real.context(timer=real.timer())
        opened(context)
        locks = [context.lock(f"{NAME}:{number}") for number in range(pairs)]
        fall_asleep(context.timer)
        uses = path_of(context).uses
        me = threading.get_ident()
        with counting.counted():
            for lock in locks:
                lock.acquire()
                lock.release()
        assert path_of(context).uses == uses + pairs
        caller, others = counting.of(me.__eq__), counting.of(me.__ne__)
    print(caller.table(pairs))
    assert caller.system["send"] == 2 * pairs
    assert (
        caller.system["recv"] <= 4 * pairs + 5
    )  # one before each request, which finds nothing, and one for each reply
    assert others.system.total() <= 10  # what is left of the warm-up
    assert caller.python.total() <= 73 * pairs
    assert caller.c.total() - caller.system["poll"] <= 51 * pairs  # polls wait for a server that is late


def test_when_the_path_is_not_used_any_more_the_thread_sleeps(
    context: LockContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair(context)
    direct = path_of(context)
    ask(context.timer)
    eventually(lambda: not direct.watched and not context.timer.next_due_at(), LONG_S)
    monkeypatch.setattr(path, "LOOK_S", 3600.0)  # the next looks have no end before this thread sees them
    pair(context)
    eventually(lambda: direct.watched, LONG_S)


NOT_FOR_IT: dict[str, dict[str, Any]] = {
    "renewed very often": {"renew_every": 0.3},
    "not renewed": {"renew": False},
    "of any thread": {"thread_local": False},
    "with a limit of renewals": {"max_renewals": 3},
    "with a limit of holding": {"max_hold": 100.0},
    "fenced": {"fencing": True},
    "polling": {"retry_every": 0.5},
    "with hardly any time": {"blocking_timeout": 0.01},
}


@pytest.mark.parametrize("options", NOT_FOR_IT.values(), ids=NOT_FOR_IT)
def test_locks_that_do_not_use_the_path(context: LockContext, options: dict[str, Any]) -> None:
    uses = path_of(context).uses
    lock = context.lock(NAME, **{"timeout": 30.0, **options})
    if lock.acquire():  # one with hardly any time may be too late
        lock.release()
    with context.lock(NAME) as lock:
        pass
    lock.acquire(token="chosen")
    lock.release()
    assert path_of(context).uses == uses + 1


@pytest.mark.parametrize(
    "settings", [{"max_held": 10}, {"min_replicas": 1}, {"watch": True}, {"declare_keys": True}], ids=str
)
def test_contexts_that_have_no_path(real: Backend, settings: dict[str, Any]) -> None:
    assert not real.context(**settings)._engine.direct.exists


@pytest.mark.parametrize("server", ["tls_redis", "unix_redis"])
def test_other_kinds_of_connections(request: pytest.FixtureRequest, server: str) -> None:
    redis_server: RedisServer = request.getfixturevalue(server)
    with LockContext.from_url(redis_server.url) as context:
        if server == "tls_redis":
            # A socket with encryption may hold back what it has read, so it is not for a wait by its descriptor.
            direct = path_of(context)
            pair(context)
            eventually(lambda: pair(context) or direct._opener.worth_it > 1, LONG_S)
            assert direct.connection is None
            assert direct.uses == 0
            # The server ends with the test: a handshake that it breaks off would leave an open socket of Python's.
            eventually(lambda: not direct._opener.connecting, LONG_S)
        else:
            direct = opened(context)
            uses = direct.uses
            pair(context)
            assert direct.uses == uses + 1


def test_a_user_who_may_not_ask_for_the_servers_identity_has_no_path(fresh: Backend) -> None:
    fresh.view.execute_command("ACL", "SETUSER", "small", "on", ">pw", "~*", "&*", "+@all", "-info")
    context = fresh.context_of(fresh.client(username="small", password="pw"))
    direct = path_of(context)
    pair(context)
    pair(context)
    eventually(lambda: direct._opener.worth_it == float("inf"), LONG_S)
    for _ in range(3):
        pair(context)
    assert (direct.uses, direct._opener.connecting) == (0, False)


def test_a_balancer_that_leads_to_another_server(real: Backend, fresh: Backend) -> None:
    proxy = real.proxy()
    context = real.context_through(proxy)
    pair(context)
    eventually(lambda: context.stats().connects == 1)
    direct = path_of(context)
    direct._opener.worth_it = 1
    proxy.lead_to(fresh.port)
    eventually(lambda: pair(context) or direct._opener.worth_it > 1 or direct.connection is not None, LONG_S)
    settle(context.timer)
    pair(context)
    assert (direct.uses, direct.connection) == (0, None)
    assert fresh.view.keys() == []


# Other threads


def test_while_others_wait_nothing_new_uses_the_path(context: LockContext, real: Backend) -> None:
    real.view.set(NAME, "another's", px=60_000)
    waiting = threading.Thread(target=lambda: context.lock(NAME, blocking_timeout=LONG_S).acquire())
    waiting.start()
    eventually(lambda: context.stats().waiting == 1, LONG_S)
    path_of(context)._rest = 0
    uses = path_of(context).uses
    pair(context, "free")
    assert path_of(context).uses == uses
    real.view.delete(NAME)
    real.view.publish("x", "")
    eventually(lambda: context.stats().waiting == 0, 2 * LONG_S)
    waiting.join(LONG_S)


def test_another_thread_makes_the_path_rest(context: LockContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path, "_REST", 3)
    direct = path_of(context)
    with context.lock(NAME):
        in_thread(lambda: pair(context, "another"))
    settle(context.timer)
    uses = direct.uses
    for _ in range(direct._rest):
        pair(context)
        assert direct.uses == uses
    pair(context)
    assert direct.uses == uses + 1


# What is seen of it


@pytest.mark.usefixtures("unwatched")
def test_what_the_path_has_not_counted_yet_is_in_the_exported_histograms(context: LockContext) -> None:
    pair(context)
    settle(context.timer)  # the first look of the timer's thread counts what it finds
    for _ in range(3):
        pair(context)
    with context.lock(NAME):
        reading = Reading("")
        context._engine.read_into(reading)
    counted, stats = reading.counters, context.stats()
    assert len(path_of(context).done) >= 4  # the last release, too
    assert (counted.acquired, counted.released) == (stats.acquired, stats.released - 1)
    assert (counted.acquire.total, counted.held.total) == (stats.acquired, stats.released - 1)


def kill_the_engines_connections(context: LockContext, real: Backend) -> None:
    direct = path_of(context)
    assert direct.connection is not None
    mine = "{}:{}".format(*direct.connection._sock.getsockname())
    for client in real.view.client_list():
        if client["addr"] != mine and "wheel_lock" in client["name"]:
            real.view.client_kill(client["addr"])


def test_the_last_confirmation_is_recent_while_only_the_path_is_used(context: LockContext) -> None:
    direct = path_of(context)
    confirmed_at = direct._renewer.confirmed_at
    uses = direct.uses

    def confirmed() -> bool:
        with context.lock(NAME):
            pass
        return direct._renewer.confirmed_at > confirmed_at

    eventually(confirmed, LONG_S, "the health report is younger than the first lock")
    assert direct.uses > uses
    age_s = context.health().last_confirmation_age_s
    assert age_s is not None
    assert age_s <= context.timer.clock.now() - confirmed_at


def test_a_lock_on_the_path_whose_server_has_forgotten_it_while_the_engine_reconnects(
    context: LockContext, real: Backend
) -> None:
    lock = context.lock(NAME, 120.0)  # so that no renewal is due
    lock.acquire()
    real.view.delete(NAME)
    kill_the_engines_connections(context, real)
    eventually(lambda: lock.lost is LossReason.KEY_GONE, LONG_S, "the loss is found long before a renewal is due")
