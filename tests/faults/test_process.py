"""What becomes of leases when their process is killed, or cannot run for longer than they last."""

from __future__ import annotations

import time

import pytest

from tests.faults.holder import CLIENT, Holder
from tests.faults.sent_commands import commands
from tests.faults.support import (
    FencedRegister,
    Losses,
    Pulse,
    hold_the_interpreter,
    now,
    own_context,
    wait_for_renewals,
)
from tests.support.background import Background
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockLost, LossReason

pytestmark = pytest.mark.slow

NAME = "order:42"
BUSY_S = 1.1  # an interval in which a waiter asks again, and a second for a machine that is busy


def test_a_killed_holders_lock_is_free_when_the_server_says_so(redis_server: RedisServer, pulse: Pulse) -> None:
    client = redis_server.client()
    with Holder(redis_server.url) as holder, own_context(redis_server) as context:
        first = holder.acquire(NAME, timeout=1.5, fencing=True)
        lock = context.lock(NAME, timeout=1.0, fencing=True, blocking_timeout=10.0, thread_local=False)

        def wait() -> float:
            assert lock.acquire()
            return time.monotonic()

        waiting = Background(wait)
        holder.kill()
        # Only when the server has noticed, too, is it sure that no renewal is on its way.
        eventually(lambda: CLIENT not in [other["name"] for other in client.client_list()])
        since, before, left_ms, after = now(), time.monotonic(), client.pttl(NAME), time.monotonic()
        assert left_ms <= 1500
        granted_at = waiting.result()
        assert before + left_ms / 1000 - 0.002 <= granted_at
        assert granted_at <= after + left_ms / 1000 + BUSY_S + pulse.stood_s(since)
        assert lock.fence is not None
        assert lock.fence > first["fence"]
        lock.release()


def test_a_holder_stopped_longer_than_its_lease_knows_at_its_first_look(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """SIGSTOP for 1.5 L. Losses are handled before renewals; its late release leaves the next holder's key alone."""
    register = FencedRegister()
    with Holder(proxy.url) as holder, Holder(redis_server.url) as contender:
        first = holder.acquire(NAME, timeout=1.5, renew_every=0.3, fencing=True)
        holder.acquire("other", timeout=30.0, renew_every=0.2)
        assert register.write(first["fence"])
        stopped_at = time.monotonic()
        holder.pause()
        second = contender.acquire(NAME, timeout=3.0, fencing=True, blocking_timeout=10.0)
        assert register.write(second["fence"])
        time.sleep(max(0.0, stopped_at + 2.25 - time.monotonic()))
        holder.order("look", name=NAME)
        holder.order("release", name=NAME)
        resumed_at = time.monotonic()
        holder.resume()
        look = holder.answer().result
        assert (look["held"], look["lost"]) == (False, "NOT_CONFIRMED")
        assert holder.answer().error == "LockLost"
        assert eventually(lambda: holder.told) == [(NAME, "NOT_CONFIRMED")]
        assert not register.write(first["fence"])

        # The other lease goes on, on the same thread; nothing is renewed for the one that was lost.
        holder.goes_on("other")
        after = commands(proxy, since=resumed_at, mentioning=first["token"])
        assert {command.what for command in after} <= {"release", "release_many"}
        assert contender.look(NAME)["held"]
        assert redis_server.client().get(NAME) == second["token"].encode()
        assert (len(holder.told), contender.told) == (1, [])


def test_an_interpreter_held_longer_than_a_lease_knows_at_its_first_look(redis_server: RedisServer) -> None:
    """The same where an extension keeps the interpreter's lock for 1.5 L."""
    losses, others = Losses(), Losses()
    with own_context(redis_server) as context, Holder(redis_server.url) as contender:
        lock = context.lock(NAME, timeout=1.0, on_lost=losses)
        other = context.lock("other", timeout=30.0, renew_every=0.2, on_lost=others)
        lock.acquire()
        other.acquire()
        contender.order("acquire", name=NAME, timeout=3.0, blocking_timeout=10.0)
        hold_the_interpreter(1.5)
        assert not lock.is_held
        assert lock.lost is LossReason.NOT_CONFIRMED
        with pytest.raises(LockLost):
            lock.release()
        eventually(lambda: losses)
        theirs = contender.answer().result
        assert theirs["granted"]
        wait_for_renewals(other, 3)
        assert other.is_held
        other.release()
        assert redis_server.client().get(NAME) == theirs["token"].encode()
        assert (len(losses), len(others), context.timer.deaths) == (1, 0, 0)
