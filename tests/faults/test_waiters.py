"""Those who wait while something breaks: a wake-up can be lost, a turn never is, and everybody is told how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

from tests.faults.holders import ROOT, Holder
from tests.faults.meddling_proxy import MeddlingProxy
from tests.faults.monitor import Monitor
from tests.faults.support import Pulse, own_context
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.timers import kill
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, Lock, LockContext, LockServerError, LockUnavailable

pytestmark = pytest.mark.slow

NAME = "order:42"
CHANNEL = f"wheel_lock:wake:{{{NAME}}}"
NEVER_S = 600.0  # a fallback that nobody lives to see: what is got was got by being woken
BUSY_S = 1.0  # how late a busy machine may be
MENDED_S = 4.5  # by then a connection for wake-ups that has silently died has been replaced


class DeafeningProxy(MeddlingProxy):
    """A network that can lose what the server says to those who listen, and nothing else."""

    def deafen(self) -> None:
        """Swallow from now on what is said on connections that have subscribed to something; new ones are served."""
        listening = {entry.connection for entry in list(self.log) if b"SUBSCRIBE" in entry.data}

        def lose() -> None:
            for connection in self._open.values():
                if connection.number in listening:
                    connection.replies.lost = True

        self._call(lose)


@pytest.fixture
def others(redis_server: RedisServer) -> Iterator[LockContext]:
    """Another process's context."""
    with own_context(redis_server) as context:
        yield context


@pytest.fixture
def network(redis_server: RedisServer) -> Iterator[DeafeningProxy]:
    with DeafeningProxy(redis_server.port) as proxy:
        yield proxy


def hold(context: LockContext, timeout: float = 30.0) -> Lock:
    lock = context.lock(NAME, timeout, thread_local=False)
    assert lock.acquire(blocking=False)
    return lock


def wait(context: LockContext, name: str = NAME, **terms: Any) -> Background[float]:
    """Begin to wait for a lock, and return when its caller stands in line. The result is when it was granted."""
    lock = context.lock(name, timeout=30.0, thread_local=False, **terms)
    waiting = context.stats().waiting

    def acquire() -> float:
        assert lock.acquire()
        at = time.monotonic()
        lock.release()
        return at

    background = Background(acquire)
    eventually(lambda: context.stats().waiting > waiting)
    return background


def listeners(server: RedisServer) -> int:
    """How many connections listen for the release of the lock."""
    return int(server.client().pubsub_numsub(CHANNEL)[0][1])


def connections(server: RedisServer) -> list[str]:
    """The library's connections."""
    return sorted(client["id"] for client in server.client().client_list() if client["name"].startswith("wheel_lock:"))


def wait_and_listen(context: LockContext, server: RedisServer) -> Background[float]:
    waiting = wait(context)
    eventually(lambda: listeners(server) == 1)
    return waiting


def seconds_to_grant(waiting: Background[float], release: Callable[[], object]) -> float:
    """Let go of the lock, and return how long it took until the waiter had it, but for the time when nobody could run."""
    with Pulse() as pulse:
        at = time.monotonic()
        release()
        took_s = waiting.result(30.0) - at
        return took_s - pulse.stood_s()


# Wake-ups that are lost


def test_a_waiter_whose_subscription_is_killed_is_woken_all_the_same(
    redis_server: RedisServer, others: LockContext
) -> None:
    holder = hold(others)
    with own_context(redis_server, fallback_interval=NEVER_S) as context:
        waiting = wait_and_listen(context, redis_server)
        for _ in range(5):
            assert redis_server.client().client_kill_filter(_type="pubsub") == 1
            eventually(lambda: listeners(redis_server) == 1, message="it has subscribed again")
        assert seconds_to_grant(waiting, holder.release) < BUSY_S


def test_a_release_while_the_subscription_is_away_is_found_when_it_is_back(
    redis_server: RedisServer, others: LockContext
) -> None:
    holder = hold(others)
    with own_context(redis_server, fallback_interval=NEVER_S) as context:
        waiting = wait_and_listen(context, redis_server)
        time.sleep(0.2)  # its early looks are over

        def kill_and_release() -> None:
            redis_server.client().client_kill_filter(_type="pubsub")
            holder.release()

        assert seconds_to_grant(waiting, kill_and_release) < BUSY_S


def test_a_wake_up_that_the_network_swallows_costs_the_fallback_interval_at_most(
    redis_server: RedisServer, others: LockContext, network: DeafeningProxy
) -> None:
    holder = hold(others)
    with own_context(network.url, fallback_interval=0.3) as context:
        waiting = wait_and_listen(context, redis_server)
        time.sleep(0.7)  # its looks are as far apart as they get
        network.deafen()
        assert seconds_to_grant(waiting, holder.release) < 0.3 + BUSY_S


def test_a_subscription_that_is_only_half_open_is_replaced(
    redis_server: RedisServer, others: LockContext, network: DeafeningProxy
) -> None:
    holder = hold(others)
    with own_context(network.url, fallback_interval=NEVER_S) as context:
        waiting = wait_and_listen(context, redis_server)
        network.deafen()
        time.sleep(0.1)
        assert seconds_to_grant(waiting, holder.release) < MENDED_S + BUSY_S


def test_a_waiter_outlives_the_restart_of_its_server(fresh_redis: RedisServer) -> None:
    with own_context(fresh_redis, fallback_interval=NEVER_S) as context, own_context(fresh_redis) as holders:
        hold(holders)
        waiting = wait_and_listen(context, fresh_redis)
        assert seconds_to_grant(waiting, fresh_redis.restart) < 5.0 + BUSY_S


def test_a_waiter_outlives_a_pause_of_its_server(fresh_redis: RedisServer) -> None:
    with own_context(fresh_redis, fallback_interval=NEVER_S) as context, own_context(fresh_redis) as holders:
        holder = hold(holders)
        waiting = wait_and_listen(context, fresh_redis)
        fresh_redis.pause()
        time.sleep(1.0)
        fresh_redis.resume()
        assert seconds_to_grant(waiting, holder.release) < MENDED_S + BUSY_S


# Wake-ups that are not allowed


def restricted(server: RedisServer, *rights: str) -> str:
    """Make a user with all rights but these about channels; return the URL of the server for that user."""
    server.client().execute_command("ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "+@all", *rights)
    return f"redis://app:secret@127.0.0.1:{server.port}/0"


@pytest.mark.parametrize("rights", [("resetchannels",), ("allchannels", "-@pubsub")])
def test_who_may_not_subscribe_looks_by_himself(fresh_redis: RedisServer, rights: tuple[str, ...]) -> None:
    url = restricted(fresh_redis, *rights)
    with own_context(url, fallback_interval=0.2) as context, own_context(fresh_redis) as holders:
        holder = hold(holders)
        waiting = wait(context)
        eventually(lambda: len(connections(fresh_redis)) == 3)  # two for the locks, one that only listens
        before = connections(fresh_redis)
        time.sleep(2.2)  # the first PING must not cost the connection
        assert connections(fresh_redis) == before
        assert seconds_to_grant(waiting, holder.release) < 0.2 + BUSY_S


def test_who_may_not_publish_can_release_and_hand_on_all_the_same(fresh_redis: RedisServer) -> None:
    with own_context(restricted(fresh_redis, "resetchannels"), fallback_interval=0.2) as holders:
        holder = hold(holders)
        with own_context(fresh_redis, fallback_interval=0.2) as context:
            waiting = wait_and_listen(context, fresh_redis)
            within = wait(holders)
            first = min(seconds_to_grant(within, holder.release), seconds_to_grant(waiting, lambda: None))
            assert first < 0.2 + BUSY_S


def test_rights_that_are_given_while_somebody_waits_are_used(fresh_redis: RedisServer) -> None:
    url = restricted(fresh_redis, "resetchannels")
    with own_context(url, fallback_interval=NEVER_S) as context, own_context(fresh_redis) as holders:
        holder = hold(holders)
        waiting = wait(context)
        time.sleep(0.3)
        assert listeners(fresh_redis) == 0
        fresh_redis.client().execute_command("ACL", "SETUSER", "app", "allchannels")
        eventually(lambda: listeners(fresh_redis) == 1)
        assert seconds_to_grant(waiting, holder.release) < BUSY_S


# Holders that vanish


def test_when_the_holder_crashes_its_waiter_gets_the_lock_as_soon_as_the_server_says_so(
    redis_server: RedisServer,
) -> None:
    """1. Holder SIGKILLed: a waiter gets the lock no later than L + a little, never before the server's expiry."""
    with own_context(redis_server, fallback_interval=NEVER_S) as context, Holder(redis_server.url) as holder:
        holder.acquire(NAME, timeout=1.5)
        waiting = wait_and_listen(context, redis_server)
        time.sleep(0.75)  # it has been renewed since the waiter's last look
        holder.kill()
        with Pulse() as pulse:
            before, left_s, after = time.monotonic(), redis_server.client().pttl(NAME) / 1000, time.monotonic()
            granted_at = waiting.result()
            assert before + left_s - 0.005 <= granted_at <= after + left_s + BUSY_S + pulse.stood_s()


def test_when_a_process_crashes_while_it_contends_the_others_go_on(redis_server: RedisServer) -> None:
    with own_context(redis_server, fallback_interval=0.3) as context, Holder(redis_server.url) as rival:
        holder = hold(context)
        rival.ask("acquire_in_thread", name=NAME, timeout=1.0)
        eventually(lambda: listeners(redis_server) == 1)
        waiting = [wait(context) for _ in range(3)]
        rival.kill()
        holder.release()
        for each in waiting:
            each.result(1.0 + 0.3 + 10.0)


# Ends that everybody is told of


def endings(context: LockContext, callers: int, end: Callable[[], object]) -> list[Exception]:
    """Have so many wait for some names, end it all, and return what they were told."""
    waiting = [wait(context, f"order:{number % 10}") for number in range(callers)]
    told: list[Exception] = []
    with Pulse() as pulse:
        at = time.monotonic()
        end()
        for each in waiting:
            with pytest.raises(redis.exceptions.LockError) as caught:
                each.result()
            told.append(caught.value)
        assert time.monotonic() - at - pulse.stood_s() < BUSY_S
    assert len({id(error) for error in told}) == callers
    return told


@pytest.fixture
def taken(redis_server: RedisServer) -> redis.Redis:
    """Locks that somebody else holds."""
    client = redis_server.client()
    for number in range(10):
        client.set(f"order:{number}", "somebody", px=60_000)
    return client


def test_the_end_of_the_context_is_told_to_all(redis_server: RedisServer, taken: redis.Redis) -> None:
    others = connections(redis_server)  # of contexts that nobody has collected yet
    with own_context(redis_server) as context:
        told = endings(context, 100, context.close)
        assert {type(error) for error in told} == {ContextClosed}
    eventually(lambda: set(connections(redis_server)) <= set(others))
    assert taken.mget([f"order:{number}" for number in range(10)]) == [b"somebody"] * 10


def test_the_death_of_the_thread_is_told_to_all_and_who_comes_later_waits_as_before(
    redis_server: RedisServer, taken: redis.Redis
) -> None:
    with own_context(redis_server, fallback_interval=NEVER_S) as context:
        told = endings(context, 100, lambda: kill(context.timer))
        assert {type(error) for error in told} == {LockUnavailable}
        assert context.stats().waiting == 0
        with own_context(redis_server) as holders:
            holder = hold(holders)
            waiting = wait_and_listen(context, redis_server)
            assert seconds_to_grant(waiting, holder.release) < BUSY_S
    assert taken.get("order:0") == b"somebody"


def test_an_error_of_the_server_is_told_to_all(fresh_redis: RedisServer) -> None:
    client = fresh_redis.client()
    for number in range(10):
        client.set(f"order:{number}", "somebody", px=60_000)
    with own_context(fresh_redis, fallback_interval=0.1) as context:
        told = endings(context, 50, lambda: client.config_set("min-replicas-to-write", 1))
        assert {type(error) for error in told} == {LockServerError}
        assert all("NOREPLICAS" in str(error) for error in told)


def test_a_forked_child_waits_for_nothing_and_its_parent_goes_on_waiting(
    redis_server: RedisServer, others: LockContext
) -> None:
    holder = hold(others)
    with Holder(redis_server.url, forks=2, fallback_interval=NEVER_S) as parent:
        parent.ask("acquire_in_thread", name=NAME, timeout=2.0)
        eventually(lambda: listeners(redis_server) == 1)
        quiet, busy = parent.fork(), parent.fork()
        assert quiet.ask("acquire", name="other", timeout=2.0).result["granted"]
        busy.ask("acquire_in_thread", name=NAME, timeout=2.0)
        eventually(lambda: listeners(redis_server) == 2)  # the quiet one does not listen
        holder.release()
        eventually(lambda: parent.events or busy.events, message="one of them gets it")
        assert not (parent.events and busy.events)
        first, second = (parent, busy) if parent.events else (busy, parent)
        assert first.ask("release", name=NAME).error == ""
        eventually(lambda: second.events, message="the other one gets it, too")
        assert second.ask("release", name=NAME).error == ""
        assert not quiet.events
        assert (parent.reap(quiet), parent.reap(busy)) == (0, 0)
        assert parent.ask("stats").result["connects"] == 1


def test_a_program_whose_threads_wait_for_ever_ends_when_its_main_thread_does(redis_server: RedisServer) -> None:
    redis_server.client().set(NAME, "somebody", px=60_000)
    code = (
        "import sys, threading, time\n"
        "from wheel_lock import LockContext\n"
        "context = LockContext.from_url(sys.argv[1])\n"
        "with context.lock('held'):\n"
        f"    wait = context.lock({NAME!r}).acquire\n"
        "    for _ in range(50):\n"
        "        threading.Thread(target=wait, daemon=True).start()\n"
        "    while context.stats().waiting < 50:\n"
        "        time.sleep(0.01)\n"
        "kept = context.lock('kept')\n"
        "kept.acquire()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, redis_server.url],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=30.0,  # half of the time for which they would wait
    )
    assert (done.returncode, done.stderr) == (0, "")


# Everybody at once

CONTENDER = """
import sys, threading, time
from wheel_lock import LockContext
context = LockContext.from_url(sys.argv[1])
grants = []
def contend():
    while time.monotonic() < until:
        with context.lock("contended", timeout=5.0):
            grants.append(1)
print("ready", flush=True)
until = float(sys.stdin.readline())
threads = [threading.Thread(target=contend) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(grants))
"""


def test_of_two_processes_that_contend_in_a_tight_loop_neither_starves(
    redis_server: RedisServer,
) -> None:
    with ExitStack() as stack:
        processes = []
        for count in (1, 6):
            process = subprocess.Popen(
                [sys.executable, "-c", CONTENDER, redis_server.url, str(count)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        until = time.monotonic() + 1.5
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{until}\n")
            process.stdin.flush()
        grants = [int(process.communicate(timeout=20.0)[0]) for process in processes]
    assert sum(grants) > 100
    assert min(grants) >= sum(grants) / 20, grants


def test_while_subscriptions_and_connections_are_cut_again_and_again_everybody_gets_his_turn(
    fresh_redis: RedisServer,
) -> None:
    """Two contexts with four threads each, and nobody looks by himself; what the server said goes for the truth."""
    names = ["stress:0", "stress:1"]
    inside = dict.fromkeys(names, 0)
    grants: list[tuple[str, int]] = []
    until = time.monotonic() + 3.0

    def contend(context: LockContext, number: int) -> None:
        while time.monotonic() < until:
            name = names[number % 2]
            with context.lock(name, timeout=2.0, fencing=True, blocking_timeout=20.0) as lock:
                inside[name] += 1
                assert lock.fence is not None
                grants.append((name, lock.fence))
                assert inside[name] == 1
                inside[name] -= 1

    with ExitStack() as stack:
        monitor = stack.enter_context(Monitor(fresh_redis))
        proxies = [stack.enter_context(DeafeningProxy(fresh_redis.port)) for _ in range(2)]
        contexts = [stack.enter_context(own_context(proxy.url, fallback_interval=NEVER_S)) for proxy in proxies]
        threads = [
            Background(lambda context=context, number=number: contend(context, number))  # type: ignore[misc]
            for context in contexts
            for number in range(4)
        ]
        client, cuts = fresh_redis.client(), 0
        while time.monotonic() < until:
            client.client_kill_filter(_type="pubsub")
            if cuts % 5 == 0:
                proxies[cuts % 2].cut()
            cuts += 1
            time.sleep(0.05)
        for thread in threads:
            thread.result(30.0)
        assert all(context.stats().waiting == 0 for context in contexts)
        tenures = monitor.tenures(names)
    assert len(grants) > 50
    for name in names:
        fences = [fence for granted, fence in grants if granted == name]
        assert fences == sorted(set(fences))
        assert set(map(str, fences)) <= {tenure.holder for tenure in tenures if tenure.name == name}
