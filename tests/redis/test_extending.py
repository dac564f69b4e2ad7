"""extend and reacquire: the time-to-live changes there and the local deadline here, which never outlives it."""

from __future__ import annotations

import math

import pytest

from tests.support.backend import (
    BOTH,
    LONG_S,
    REFUSED_S,
    Backend,
    Losses,
    believes_no_longer_than_the_server,
    connected,
)
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockLost, LockServerError, LockTimeout, LockUnavailable, LossReason

pytestmark = pytest.mark.servers("real")


@BOTH
def test_extend_adds_to_the_time_to_live(backend: Backend, me: Caller) -> None:
    with me.locks.lock("order:42", timeout=30.0) as lock:
        assert lock.extend(1e-9) is True  # less than a millisecond
        assert lock.extend(20.0) is True
        assert 40_000 < backend.view.pttl("order:42") <= 50_001
        assert 40.0 * 0.99 < lock.remaining() <= 50.001 * 0.99
        assert believes_no_longer_than_the_server(lock, backend.view)


@BOTH
@pytest.mark.parametrize("to_s", [100.0, 5.0])
def test_extend_replaces_the_time_to_live(backend: Backend, me: Caller, to_s: float) -> None:
    with me.locks.lock("order:42", timeout=30.0) as lock:
        assert lock.extend(to_s, replace_ttl=True) is True
        assert (to_s - 5.0) * 1000 < backend.view.pttl("order:42") <= to_s * 1000
        assert (to_s - 5.0) * 0.99 < lock.remaining() <= to_s * 0.99
        assert believes_no_longer_than_the_server(lock, backend.view)
        assert lock.reacquire() is True
        assert 20_000 < backend.view.pttl("order:42") <= 30_000
        assert believes_no_longer_than_the_server(lock, backend.view)


@BOTH
@pytest.mark.parametrize("replace", [False, True], ids=["add", "replace"])
def test_extending_a_lock_whose_key_has_gone_is_a_loss(backend: Backend, me: Caller, replace: bool) -> None:
    losses = Losses()
    lock = me.locks.lock("order:42", timeout=30.0, on_lost=losses)
    lock.acquire()
    backend.view.delete("order:42")
    with pytest.raises(LockLost) as caught:
        lock.extend(10.0, replace_ttl=replace)
    assert caught.value.reason is LossReason.KEY_GONE
    assert lock.lost is LossReason.KEY_GONE
    assert not backend.view.exists("order:42")
    eventually(lambda: losses.events, LONG_S)
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]
    with pytest.raises(LockLost):
        lock.reacquire()


# When it is not known what became of an extension


def test_an_unanswered_extension_leaves_it_held_as_long_as_was_known(fresh_redis: RedisServer, fresh: Backend) -> None:
    context = connected(fresh.context(response_timeout=REFUSED_S))
    with context.lock("order:42", timeout=5.0) as lock:
        fresh_redis.pause()
        known = lock.remaining()
        with pytest.raises(LockTimeout):
            lock.extend(100.0)
        assert 0.0 < lock.remaining() <= known
        fresh_redis.resume()
        # What keeps it alive from here on: a renewal, or the news that the extension has come about after all.
        eventually(lambda: lock.renewals or lock.remaining() > known, LONG_S)
        assert believes_no_longer_than_the_server(lock, fresh.view)


@pytest.mark.parametrize("replace", [False, True], ids=["add", "replace"])
def test_adding_time_is_not_tried_twice_and_replacing_it_is(backend: Backend, replace: bool) -> None:
    proxy = backend.proxy()
    context = backend.context_through(proxy)
    lock = context.lock("order:42", timeout=30.0, thread_local=False)
    lock.acquire()
    proxy.to_client.delay_s = math.inf
    extending = Background(lambda: lock.extend(40.0, replace_ttl=replace))
    eventually(lambda: backend.view.pttl("order:42") > 35_000, LONG_S)
    proxy.cut()
    proxy.heal()
    if replace:
        assert extending.result() is True
        assert 35_000 < backend.view.pttl("order:42") <= 40_000
    else:
        with pytest.raises(LockUnavailable):
            extending.result()
        assert backend.view.pttl("order:42") <= 70_000
    assert lock.is_held
    assert believes_no_longer_than_the_server(lock, backend.view)
    lock.release()


@pytest.mark.parametrize("change", ["extend", "release"])
def test_a_right_that_was_revoked_is_no_proof_that_another_has_the_lock(fresh: Backend, change: str) -> None:
    fresh.view.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    client = fresh.client(username="app", password="secret")
    context = fresh.context_of(client)
    lock = context.lock("order:42", timeout=10.0)
    lock.acquire()
    fresh.view.execute_command("ACL", "SETUSER", "app", "-get")
    with pytest.raises(LockServerError):
        lock.extend(10.0) if change == "extend" else lock.release()
    assert fresh.view.exists("order:42")
    if change == "extend":
        assert lock.is_held
        assert lock.lost is None
        fresh.view.execute_command("ACL", "SETUSER", "app", "+get")
        lock.release()
        assert not fresh.view.exists("order:42")
