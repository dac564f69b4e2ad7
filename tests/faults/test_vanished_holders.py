"""Faults 11 and 12: leases whose holder vanishes without a release, and releases and grants that cross on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.holders import Holder
from tests.faults.sent_commands import commands, of_kind
from tests.faults.support import (
    LATE_S,
    Losses,
    Pulse,
    assert_is_kept,
    held,
    now,
    own_context,
    recorded_warnings,
)
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockTimeout, LossReason

pytestmark = pytest.mark.slow

NAME = "order:42"


def assert_free_within(server: RedisServer, timeout_s: float, *, since: float, pulse: Pulse) -> None:
    client = server.client()
    eventually(lambda: client.get(NAME) is None, timeout_s=timeout_s + 5.0)
    # Half a second for a machine that is busy; a renewal adds more.
    assert now() <= since + timeout_s + 0.5 + pulse.stood_s(since)


# 11: vanished holders


def in_a_thread(call: Callable[[], object]) -> float:
    """Do it in a thread of its own; return when that thread has ended."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return now()


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
        eventually(lambda: sum("'many:" in text for text in warned) == 50)
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


@pytest.mark.parametrize(("late", "fencing"), [("request", False), ("reply", True)], ids=["plain", "fenced"])
def test_fault_12_a_grant_that_nobody_waits_for_is_released_at_once(
    redis_server: RedisServer, proxy: TcpProxy, late: str, fencing: bool
) -> None:
    """12. An acquire that completes after its caller gave up, because the request or its reply was late: the grant is
    released at once, not left to expire."""
    client = redis_server.client()
    losses = Losses()
    with own_context(proxy.url, response_timeout=0.8) as context:
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


# 8: after a loss


def test_fault_08_a_lock_that_is_acquired_again_after_a_loss_is_renewed(
    redis_server: RedisServer, proxy: TcpProxy, pulse: Pulse
) -> None:
    """8. ... and a re-acquired lock of the same name is renewed, while nothing of the old lease touches it."""
    losses = Losses()
    with own_context(proxy.url) as context:
        lock = context.lock(NAME, timeout=0.8, renew_every=0.1, on_lost=losses)
        lock.acquire()
        old = lock.token
        assert old is not None
        proxy.refuse()
        proxy.cut()
        eventually(lambda: losses)
        assert lock.lost is LossReason.NOT_CONFIRMED
        [event] = losses.events
        assert event.at <= event.deadline + LATE_S + pulse.stood_s(event.deadline, event.at)
        proxy.heal()
        healed_at = time.monotonic()
        assert lock.acquire(blocking_timeout=5.0)
        assert lock.lost is None
        assert lock.token != old
        assert_is_kept(lock, redis_server, timeout_s=0.8)
        assert not of_kind("renew", commands(proxy, since=healed_at, mentioning=old))
        assert len(losses) == 1
