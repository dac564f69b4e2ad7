"""extend and reacquire: the time-to-live changes there and the local deadline here, which never outlives it."""

from __future__ import annotations

import math
import time

import pytest

from tests.support.backend import (
    BOTH,
    LONG_S,
    REFUSED_S,
    Backend,
    Losses,
    believes_no_longer_than_the_server,
    connected,
    token_of,
)
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockServerError, LockTimeout, LockUnavailable, LossReason, WheelLockError

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


def test_an_extended_lock_keeps_its_token_and_its_fence(backend: Backend, me: Caller) -> None:
    with me.locks.lock("order:42", fencing=True) as lock:
        before = (lock.token, lock.fence)
        lock.extend(10.0)
        assert (lock.token, lock.fence) == before
        assert backend.view.get("order:42") == token_of(lock)


def test_a_renewal_does_not_cut_an_extension_short(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    with context.lock("order:42", timeout=30.0) as lock:
        lock.extend(300.0, replace_ttl=True)
        clock.advance(250.0)
        assert lock.renewals == 0
        assert backend.view.pttl("order:42") > 200_000  # in real time nearly nothing has passed
        clock.advance(100.0)
        assert lock.is_held
        assert lock.renewals > 0


def test_a_lock_that_was_shortened_is_renewed_before_it_ends(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    with context.lock("order:42", timeout=30.0) as lock:
        lock.extend(3.0, replace_ttl=True)
        clock.advance(2.9)
        assert lock.is_held
        assert lock.renewals == 1
        assert backend.view.pttl("order:42") > 20_000
        clock.advance(60.0)
        assert lock.is_held


def test_a_lock_that_is_not_renewed_lasts_as_long_as_it_was_extended(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.lock("order:42", timeout=30.0, renew=False)
    lock.acquire()
    lock.extend(60.0)
    clock.advance(80.0)
    assert lock.is_held
    clock.advance(10.0)
    assert not lock.is_held
    assert lock.renewals == 0


def test_a_hold_limit_is_not_lifted_by_an_extension(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.lock("order:42", timeout=30.0, max_hold=40.0)
    lock.acquire()
    lock.extend(300.0)
    assert lock.remaining() <= 40.0
    clock.advance(39.0)
    assert lock.is_held
    clock.advance(1.0)
    assert lock.lost is LossReason.HOLD_LIMIT


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


def test_extending_leaves_a_key_alone_that_another_has_taken(backend: Backend, me: Caller) -> None:
    lock = me.locks.lock("order:42", timeout=30.0)
    lock.acquire()
    backend.view.set("order:42", "theirs", px=20_000)
    with pytest.raises(LockLost) as caught:
        lock.extend(100.0)
    assert caught.value.reason is LossReason.TAKEN
    assert backend.view.get("order:42") == b"theirs"
    assert backend.view.pttl("order:42") <= 20_000


def test_extensions_by_several_threads_at_once_are_serial_or_refused(backend: Backend, context: LockContext) -> None:
    lock = context.lock("order:42", timeout=30.0, thread_local=False)

    def extend_often() -> int:
        done = 0
        for _ in range(20):
            try:
                done += lock.extend(100.0, replace_ttl=True)
            except WheelLockError as error:
                if "being extended already" not in str(error):
                    raise
        return done

    with lock:
        assert sum(extending.result() for extending in [Background(extend_often) for _ in range(4)]) > 0
        assert lock.is_held
        assert believes_no_longer_than_the_server(lock, backend.view)


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


def test_after_an_extension_of_unknown_outcome_nobody_believes_longer_than_the_server(backend: Backend) -> None:
    proxy = backend.proxy()
    context = backend.context_through(proxy)
    lock = context.lock("order:42", timeout=2.0, thread_local=False)
    lock.acquire()
    lock.extend(60.0, replace_ttl=True)
    proxy.to_client.delay_s = math.inf
    extending = Background(lambda: lock.extend(10.0))
    eventually(lambda: backend.view.pttl("order:42") > 60_000, LONG_S)
    proxy.cut()
    proxy.heal()
    with pytest.raises(LockUnavailable):
        extending.result()
    # A renewal now would make the key's time-to-live two seconds again: then no more may be believed either.
    for _ in range(100):
        assert believes_no_longer_than_the_server(lock, backend.view)
        time.sleep(0.003)
    assert lock.is_held
    lock.release()


def test_after_an_extension_of_unknown_outcome_the_lock_is_renewed_on(backend: Backend) -> None:
    proxy = backend.proxy()
    losses = Losses()
    context = backend.context_through(proxy)
    with context.lock("order:41"):
        pass  # the scripts are known, so a renewal is answered by four bytes
    lock = context.lock("order:42", timeout=3.0, renew_every=0.3, thread_local=False, on_lost=losses)
    lock.acquire()
    # The renewal stays unanswered until it is overdue; then its reply comes through, that of the extension does not.
    proxy.to_client.delay_s = math.inf
    eventually(lambda: context.stats().overdue, LONG_S)
    extending = Background(lambda: lock.extend(10.0))
    eventually(lambda: backend.view.pttl("order:42") > 3_000, LONG_S)
    proxy.cut_after_bytes(len(b"*0\r\n"), "to_client")
    proxy.to_client.delay_s = 0.0
    with pytest.raises(LockUnavailable):
        extending.result()
    renewed = lock.renewals
    eventually(lambda: lock.renewals > renewed or losses.events, LONG_S, "renewed or lost, but not forgotten")
    assert lock.renewals > renewed
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


def test_time_spent_waiting_for_the_reply_is_not_believed_in(backend: Backend) -> None:
    proxy = backend.proxy()
    context = backend.context_through(proxy)
    with context.lock("order:42", timeout=30.0) as lock:
        proxy.to_client.delay_s = 0.3
        began = time.monotonic()
        lock.extend(10.0, replace_ttl=True)
        assert lock.remaining() <= 10.0 * 0.99 - 0.3
        assert time.monotonic() - began >= 0.3
        proxy.heal()
