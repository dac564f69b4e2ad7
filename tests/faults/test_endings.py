"""Faults 11 and 12: leases whose holder vanishes without a release, and releases and grants that cross on the way."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.holders import Holder
from tests.faults.scene import Losses, Pulse, held, now, own_context, recorded_warnings, wait_for_renewals
from tests.faults.wire import commands, of_kind
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockLost, LockTimeout, LossReason

pytestmark = pytest.mark.slow

NAME = "order:42"


def assert_free_within(server: RedisServer, timeout_s: float, *, since: float, pulse: Pulse) -> None:
    client = server.client()
    eventually(lambda: client.get(NAME) is None, timeout_s=timeout_s + 5.0)
    # Half a second for a machine that is busy; a renewal adds more.
    assert now() <= since + timeout_s + 0.5 + pulse.stood_s(since)


# 11: vanished holders


@pytest.mark.parametrize("cycle", [False, True], ids=["last reference goes", "garbage collector"])
def test_fault_11_a_lock_object_that_is_collected_is_renewed_no_more(
    redis_server: RedisServer, proxy: TcpProxy, pulse: Pulse, cycle: bool
) -> None:
    """11. The lock object is collected, unreleased: renewal stops, the name is free within L, ResourceWarning."""
    losses = Losses()
    with own_context(proxy.url, track_acquisitions=True) as context, recorded_warnings() as warned:
        lock = context.lock(NAME, timeout=1.5, renew_every=0.3, on_lost=losses)
        lock.acquire()
        token = lock.token
        assert token is not None
        wait_for_renewals(lock, 1)
        if cycle:
            knot: list[object] = [lock]
            knot.append(knot)
            del knot
        del lock
        gc.collect()
        gone_at, stamp = now(), time.monotonic()
        assert_free_within(redis_server, 1.5, since=gone_at, pulse=pulse)
        # One that was under way when the lock went may have arrived a moment later.
        moment_s = 0.1 + pulse.stood_s(gone_at)
        assert not of_kind("renew", commands(proxy, since=stamp + moment_s, mentioning=token))
        [text] = eventually(lambda: warned)
        assert "'order:42' was abandoned" in text
        assert "test_endings.py" in text  # where it was acquired
        assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
        assert losses.events[0].at <= losses.events[0].deadline
        assert context.stats().held == 0
        assert context.timer.deaths == 0


def test_fault_11_a_lock_that_was_never_kept_is_abandoned_at_once(redis_server: RedisServer, pulse: Pulse) -> None:
    """11. The mistake that is easiest to make: nobody keeps the object whose acquire succeeded."""
    with own_context(redis_server) as context, recorded_warnings() as warned:
        assert context.lock(NAME, timeout=1.5).acquire()
        gone_at = now()
        assert_free_within(redis_server, 1.5, since=gone_at, pulse=pulse)
        eventually(lambda: warned)
        assert len(warned) == 1


def in_a_thread(call: Callable[[], object]) -> float:
    """Do it in a thread of its own; return when that thread has ended."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return now()


def test_fault_11_a_lock_whose_thread_ends_is_renewed_no_more(redis_server: RedisServer, pulse: Pulse) -> None:
    """11. The owning thread ends: renewal stops, the name is free within L, ResourceWarning."""
    losses = Losses()
    with own_context(redis_server) as context, recorded_warnings() as warned:
        lock = context.lock(NAME, timeout=1.5, renew_every=0.3, on_lost=losses)
        process_wide = context.lock("process-wide", timeout=1.5, renew_every=0.3, thread_local=False)
        ended_at = in_a_thread(lambda: lock.acquire() and process_wide.acquire())
        assert_free_within(redis_server, 1.5, since=ended_at, pulse=pulse)
        assert not lock.is_held
        assert lock.lost is LossReason.ABANDONED
        assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
        assert losses.events[0].at <= losses.events[0].deadline
        [text] = eventually(lambda: warned)
        assert "'order:42' was abandoned" in text
        # What belongs to the process goes on, and any thread may release it.
        wait_for_renewals(process_wide, 1)
        process_wide.release()
        assert lock.acquire()
        lock.release()


def test_fault_11_a_bulk_of_locks_whose_thread_ends_is_renewed_no_more(redis_server: RedisServer, pulse: Pulse) -> None:
    """11. The same for acquire_many(), and each of them is told once."""
    client = redis_server.client()
    losses = Losses()
    locks: list[Lock] = []
    names = [f"many:{number}" for number in range(50)]
    with own_context(redis_server) as context, recorded_warnings() as warned:
        ended_at = in_a_thread(
            lambda: locks.extend(held(context.acquire_many(names, 1.5, thread_local=True, on_lost=losses)))
        )
        eventually(lambda: not client.exists(*names))
        assert now() <= ended_at + 2.0 + pulse.stood_s(ended_at)
        eventually(lambda: len(warned) == 50)
        assert sorted(map(str, losses.names)) == sorted(names)
        assert {lock.lost for lock in locks} == {LossReason.ABANDONED}


def test_fault_11_a_thread_that_ends_while_its_lease_is_overdue(
    redis_server: RedisServer, proxy: TcpProxy, pulse: Pulse
) -> None:
    """11. Renewal stops also for a lease that waits for the server to come back."""
    losses = Losses()
    acquired, end = threading.Event(), threading.Event()
    with own_context(proxy.url) as context, recorded_warnings() as warned:
        lock = context.lock(NAME, timeout=3.0, renew_every=0.3, on_lost=losses)

        def own() -> None:
            lock.acquire()
            acquired.set()
            end.wait(10.0)

        owner = threading.Thread(target=own)
        owner.start()
        assert acquired.wait(10.0)
        token = lock.token
        assert token is not None
        proxy.refuse()
        proxy.cut()
        eventually(lambda: context.stats().overdue == 1)
        end.set()
        owner.join()
        ended_at, stamp = now(), time.monotonic()
        proxy.heal()
        eventually(lambda: losses)
        assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
        assert not of_kind("renew", commands(proxy, since=stamp, mentioning=token))
        assert_free_within(redis_server, 3.0, since=ended_at, pulse=pulse)
        eventually(lambda: warned)
        assert len(warned) == 1


# 12: crossing


def test_fault_12_a_release_while_a_renewal_is_unanswered(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """12. Release racing an in-flight renewal: nothing is sent for the token after release returned, and the renewal's
    reply changes nothing, neither for the old lease nor for the next one of the name."""
    client = redis_server.client()
    losses = Losses()
    with own_context(proxy.url) as context, ThreadPoolExecutor(1) as owner:
        lock = context.lock(NAME, timeout=4.0, renew_every=0.2, on_lost=losses)
        owner.submit(lock.acquire).result()
        first = lock.token
        assert first is not None
        proxy.to_client.delay_s = float("inf")
        eventually(lambda: of_kind("renew", commands(proxy, mentioning=first)))
        releasing = owner.submit(lock.release)
        eventually(lambda: client.get(NAME) is None)
        assert not lock.is_held
        again = owner.submit(lock.acquire)
        proxy.to_client.delay_s = 0.0
        releasing.result()
        released_at = time.monotonic()
        assert again.result()
        second = lock.token
        assert second is not None
        assert second != first
        renewals = lock.renewals  # looked at before the log: it counts none but its own
        assert renewals <= len(of_kind("renew", commands(proxy, mentioning=second)))
        wait_for_renewals(lock, 3)
        assert client.get(NAME) == second
        assert not commands(proxy, since=released_at, mentioning=first)
        owner.submit(lock.release).result()
        assert not losses


def test_fault_12_nothing_is_sent_for_a_token_after_its_release_returned(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """12. The same at random moments, and while the server forgets its scripts, so that calls must be sent twice."""
    client = redis_server.client()
    released: list[tuple[bytes, float]] = []
    with own_context(proxy.url) as context:
        for turn in range(120):
            lock = context.lock(f"race:{turn % 3}", timeout=10.0, renew_every=0.01)
            lock.acquire()
            token = lock.token
            assert token is not None
            time.sleep(random.uniform(0.0, 0.03))
            if turn % 4 == 0:
                client.script_flush()
            lock.release()
            released.append((token, time.monotonic()))
        assert context.stats().renewed > 0
        with context.lock("a last round trip"):
            pass
        log = commands(proxy)
    late = [command for token, at in released for command in log if command.mentions(token) and command.time > at]
    assert late == []
    assert client.keys("race:*") == []


@pytest.mark.parametrize("late", ["request", "reply"])
@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
def test_fault_12_a_grant_that_nobody_waits_for_is_released_at_once(
    redis_server: RedisServer, proxy: TcpProxy, late: str, fencing: bool
) -> None:
    """12. An acquire that completes after its caller gave up, because the request or its reply was late: the grant is
    released at once, not left to expire."""
    client = redis_server.client()
    losses = Losses()
    with own_context(proxy.url, response_timeout=1.0) as context:
        with context.lock("warm up"):
            pass
        lock = context.lock(NAME, timeout=30.0, fencing=fencing, on_lost=losses)
        direction = proxy.to_server if late == "request" else proxy.to_client
        direction.delay_s = float("inf")
        with pytest.raises(LockTimeout):
            lock.acquire()
        assert not lock.is_held
        direction.delay_s = 0.0
        # In one order of commands, so whatever comes after finds the name free.
        eventually(lambda: of_kind("release_many", commands(proxy, mentioning=NAME)))
        eventually(lambda: client.get(NAME) is None)
        assert context.stats().held == 0
        assert lock.acquire(blocking=False)
        assert client.get(NAME) == lock.token
        lock.release()
        assert not losses


def test_fault_12_a_bulk_that_nobody_waits_for_is_released_at_once(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """12. The same for acquire_many()."""
    client = redis_server.client()
    names = [f"many:{number}" for number in range(1200)]
    with own_context(proxy.url, response_timeout=1.0) as context:
        with context.lock("warm up"):
            pass
        proxy.to_client.delay_s = float("inf")
        with pytest.raises(LockTimeout):
            context.acquire_many(names, 30.0)
        proxy.to_client.delay_s = 0.0
        eventually(lambda: not client.exists(*names))
        assert context.stats().held == 0
        assert all(context.acquire_many(names, 5.0).values())


def test_fault_12_a_grant_to_an_interrupted_caller_is_released_at_once(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """12. The caller gave up because of Ctrl-C."""
    client = redis_server.client()
    with Holder(proxy.url) as holder:
        holder.acquire("warm up", timeout=30.0)
        proxy.to_client.delay_s = float("inf")
        holder.order("acquire", name=NAME, timeout=30.0)
        eventually(lambda: client.get(NAME))
        holder.interrupt()
        assert holder.answer().error == "KeyboardInterrupt"
        proxy.to_client.delay_s = 0.0
        eventually(lambda: client.get(NAME) is None)
        assert not holder.ask("look", name=NAME).result["held"]
        assert holder.told == []
        holder.acquire(NAME)
        assert holder.ask("release", name=NAME).error == ""
        assert holder.ask("release", name="warm up").error == ""


def test_fault_12_a_grant_that_outlived_its_own_lease_is_not_believed(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """12. A grant that took longer to arrive than it lasts is no grant; the contender who has it by now keeps it."""
    client = redis_server.client()
    with own_context(proxy.url) as context, own_context(redis_server) as contender, ThreadPoolExecutor(1) as other:
        with context.lock("warm up"):
            pass
        proxy.to_client.delay_s = float("inf")
        lock = context.lock(NAME, timeout=1.0, max_attempts=1)
        acquiring = other.submit(lock.acquire)
        eventually(lambda: client.get(NAME))
        theirs = contender.lock(NAME, timeout=5.0)
        theirs.acquire()
        proxy.to_client.delay_s = 0.0
        assert not acquiring.result()
        assert not lock.is_held
        eventually(lambda: of_kind("release_many", commands(proxy, mentioning=NAME)))
        with context.lock("a round trip"):
            pass
        assert client.get(NAME) == theirs.token
        theirs.release()


def test_fault_12_a_release_after_the_loss_leaves_the_next_holder_alone(redis_server: RedisServer) -> None:
    """12. The holder that was robbed of its key releases: whoever has it now keeps it, with its own time-to-live."""
    client = redis_server.client()
    with own_context(redis_server) as context:
        lock = context.lock(NAME, timeout=30.0)
        lock.acquire()
        client.set(NAME, "another", px=60_000)
        with pytest.raises(LockLost):
            lock.release()
        assert client.get(NAME) == b"another"
        left_ms = client.pttl(NAME)
        assert isinstance(left_ms, int)
        assert left_ms > 30_000
