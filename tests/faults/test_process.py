"""Faults 1 to 4: what becomes of leases when their process cannot run, or only later."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.holders import Holder, Told
from tests.faults.sent_commands import commands
from tests.faults.support import (
    LATE_S,
    POLL_S,
    FencedRegister,
    Losses,
    Pulse,
    hold_the_interpreter,
    now,
    own_context,
    wait_for_renewals,
)
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import (
    LockLost,
    LossReason,
)

pytestmark = pytest.mark.slow

NAME = "order:42"


def assert_told_at_once(holder: Holder, told: Told, resumed_at: float, resumed_by: float) -> None:
    """A holder that was stopped has told of a loss as soon as it ran again, somewhere between these two."""
    assert told.told <= resumed_by + LATE_S + holder.ask("stalled", since=resumed_at).result


# 1: SIGKILL


def test_fault_01_a_killed_holders_lock_is_free_when_the_server_says_so(
    redis_server: RedisServer, pulse: Pulse
) -> None:
    """1. Holder SIGKILLed: a waiter gets the lock no later than L + its fallback poll, never before the server's
    expiry."""
    client = redis_server.client()
    with Holder(redis_server.url) as holder, own_context(redis_server) as context, ThreadPoolExecutor(1) as waiter:
        first = holder.acquire(NAME, timeout=1.5, fencing=True)
        lock = context.lock(NAME, timeout=1.0, fencing=True, blocking_timeout=10.0)

        def wait() -> tuple[bool, float, int | None]:
            granted = lock.acquire()
            granted_at = time.monotonic()
            fence = lock.fence
            lock.release()
            return granted, granted_at, fence

        waiting = waiter.submit(wait)
        holder.kill()
        # Only when the server has noticed, too, is it sure that no renewal is on its way.
        eventually(lambda: "holder" not in [other["name"] for other in client.client_list()])
        since = now()
        before, left_ms, after = time.monotonic(), client.pttl(NAME), time.monotonic()
        assert isinstance(left_ms, int)
        assert left_ms <= 1500
        granted, granted_at, fence = waiting.result()
        assert granted
        assert granted_at >= before + left_ms / 1000 - 0.002
        busy_s = 1.0 + pulse.stood_s(since)  # a second for a machine that is busy
        assert granted_at <= after + left_ms / 1000 + POLL_S + busy_s
        assert fence is not None
        assert fence > first.result["fence"]


# 2 and 3: SIGSTOP


def test_fault_03_a_holder_stopped_longer_than_its_lease_knows_at_its_first_look(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """3. Holder SIGSTOPped 1.5 L with a contender: first look after SIGCONT says not held; losses are handled before
    renewals; its late release leaves the contender's key alone."""
    client = redis_server.client()
    register = FencedRegister()
    with Holder(proxy.url) as holder, Holder(redis_server.url) as contender:
        holder.ask("watch")
        first = holder.acquire(NAME, timeout=1.5, renew_every=0.3, fencing=True)
        holder.acquire("other", timeout=30.0, renew_every=0.2)
        assert register.write(first.result["fence"])
        last_look = holder.ask("look", name=NAME)
        assert last_look.result["held"]
        stopped_at = time.monotonic()
        holder.pause()
        second = contender.acquire(NAME, timeout=3.0, fencing=True, blocking_timeout=10.0)
        assert register.write(second.result["fence"])
        time.sleep(max(0.0, stopped_at + 2.25 - time.monotonic()))
        holder.order("look", name=NAME)
        holder.order("release", name=NAME)
        resumed_at = time.monotonic()
        holder.resume()
        resumed_by = time.monotonic()

        look, release = holder.answer(), holder.answer()
        assert look.before >= resumed_at
        assert not look.result["held"]
        assert look.result["lost"] == "NOT_CONFIRMED"
        assert release.error == "LockLost"
        [told] = eventually(lambda: holder.told_of(NAME))
        assert_told_at_once(holder, told, resumed_at, resumed_by)
        assert not register.write(first.result["fence"])

        # The other lease goes on, on the same thread; nothing is renewed for the one that was lost.
        other = holder.ask("look", name="other").result
        eventually(lambda: holder.ask("look", name="other").result["renewals"] >= other["renewals"] + 3)
        assert holder.ask("look", name="other").result["held"]
        token = first.result["token"]
        after = commands(proxy, since=resumed_at, mentioning=token)
        assert {command.what for command in after} <= {"release", "release_many"}
        theirs = contender.ask("look", name=NAME)
        assert theirs.result["held"]
        assert client.get(NAME) == second.result["token"].encode()
        assert not [command for command in commands(proxy) if command.mentions(second.result["token"])]
        assert [told.name for told in holder.told] == [NAME]
        assert contender.told == []


# 4: the interpreter's lock


def test_fault_04_an_interpreter_held_longer_than_a_lease_knows_at_its_first_look(
    redis_server: RedisServer, pulse: Pulse
) -> None:
    """4. GIL held in C for 1.5 L: as 3."""
    client = redis_server.client()
    register = FencedRegister()
    losses, others = Losses(), Losses()
    with own_context(redis_server) as context, Holder(redis_server.url) as contender:
        lock = context.lock(NAME, timeout=1.0, fencing=True, on_lost=losses)
        other = context.lock("other", timeout=30.0, renew_every=0.2, on_lost=others)
        lock.acquire()
        other.acquire()
        assert register.write(lock.fence)
        contender.order("acquire", name=NAME, timeout=3.0, fencing=True, blocking_timeout=10.0)
        hold_the_interpreter(1.5)
        held_at_first_look, resumed_at = lock.is_held, now()
        assert not held_at_first_look
        assert lock.lost is LossReason.NOT_CONFIRMED
        with pytest.raises(LockLost):
            lock.release()
        eventually(lambda: losses)
        [told_at] = losses.told_at
        assert told_at <= resumed_at + LATE_S + pulse.stood_s(resumed_at, told_at)
        theirs = contender.answer().result
        assert theirs["granted"]
        assert register.write(theirs["fence"])
        assert not register.write(lock.fence)

        wait_for_renewals(other, 3)
        assert other.is_held
        other.release()
        assert contender.ask("look", name=NAME).result["held"]
        assert client.get(NAME) == theirs["token"].encode()
        assert len(losses) == 1
        assert not others
        assert context.timer.deaths == 0
        assert contender.told == []
