"""extend and reacquire: the time-to-live changes there and the local deadline here, which never outlives it."""

from __future__ import annotations

import math

import pytest

from tests.support.backend import (
    BOTH,
    LONG_S,
    Backend,
    believes_no_longer_than_the_server,
)
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import LockServerError, LockUnavailable

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


# When it is not known what became of an extension


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
