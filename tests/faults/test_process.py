"""Faults 1 to 4, 6, 7 and 8: what becomes of leases when their process or its threads cannot run, or run wild."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

import wheel_lock
from tests.faults.checker import Belief, History, check
from tests.faults.holders import Holder, Report
from tests.faults.scene import (
    LATE_S,
    POLL_S,
    FencedRegister,
    Losses,
    held,
    hold_the_interpreter,
    now,
    own_context,
    raise_in,
    timer_thread,
    wait_for_end,
    wait_for_renewals,
    wait_s,
)
from tests.faults.wire import commands, of_kind
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import (
    HashedWheelTimer,
    Lock,
    LockContext,
    LockLost,
    LossReason,
    LostEvent,
    Timeout,
    TooManyLocks,
    WheelLockError,
)

pytestmark = pytest.mark.slow

NAME = "order:42"
LIBRARY = os.path.dirname(wheel_lock.__file__)


def belief(report: Report, last_look: Report | None = None) -> Belief:
    """What a holder believed for certain, from its acquire to the last look that said "held"."""
    until = report.after if last_look is None else last_look.before
    return Belief(NAME, report.result["token"], 0, report.after, until, report.result["fence"], "running")


# 1: SIGKILL


def test_fault_01_a_killed_holders_lock_is_free_when_the_server_says_so(redis_server: RedisServer) -> None:
    """1. Holder SIGKILLed: a waiter gets the lock no later than L + its fallback poll, never before the server's
    expiry."""
    client = redis_server.client()
    with Holder(redis_server.url) as holder, own_context(redis_server) as context, ThreadPoolExecutor(1) as waiter:
        first = holder.acquire(NAME, timeout=1.0, fencing=True)
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
        before, left_ms, after = time.monotonic(), client.pttl(NAME), time.monotonic()
        assert isinstance(left_ms, int)
        assert left_ms <= 1000
        granted, granted_at, fence = waiting.result()
        assert granted
        assert granted_at >= before + left_ms / 1000 - 0.002
        assert granted_at <= after + left_ms / 1000 + POLL_S + 1.0  # a second for a machine that is busy
        assert fence is not None
        assert fence > first.result["fence"]


# 2 and 3: SIGSTOP


def test_fault_02_a_holder_stopped_for_half_its_lease_loses_nothing(redis_server: RedisServer) -> None:
    """2. Holder SIGSTOPped 0.5 L: nothing lost."""
    client = redis_server.client()
    with Holder(redis_server.url) as holder:
        token = holder.acquire(NAME, timeout=2.0).result["token"]
        assert holder.ask("acquire_many", prefix="many:", count=20, timeout=2.0).result == 20
        everything = sorted([NAME, *[f"many:{number}" for number in range(20)]])
        eventually(lambda: holder.ask("stats").result["renewed"] >= 21)
        holder.pause()
        holder.order("held")
        time.sleep(1.0)
        holder.resume()
        assert holder.answer().result == everything  # the first thing it does when it runs again
        renewed = holder.ask("stats").result["renewed"]
        eventually(lambda: holder.ask("stats").result["renewed"] >= renewed + 21)
        assert holder.ask("held").result == everything
        assert holder.told == []
        assert holder.ask("stats").result["deaths"] == 0
        assert client.get(NAME) == token.encode()


def test_fault_03_a_holder_stopped_longer_than_its_lease_knows_at_its_first_look(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """3. Holder SIGSTOPped 1.5 L with a contender: first look after SIGCONT says not held; losses are handled before
    renewals; its late release leaves the contender's key alone."""
    client = redis_server.client()
    register = FencedRegister()
    with Holder(proxy.url) as holder, Holder(redis_server.url) as contender:
        first = holder.acquire(NAME, timeout=1.0, fencing=True)
        holder.acquire("other", timeout=30.0, renew_every=0.2)
        assert register.write(first.result["fence"])
        last_look = holder.ask("look", name=NAME)
        assert last_look.result["held"]
        stopped_at = time.monotonic()
        holder.pause()
        second = contender.acquire(NAME, timeout=1.0, fencing=True, blocking_timeout=10.0)
        assert register.write(second.result["fence"])
        time.sleep(max(0.0, stopped_at + 1.5 - time.monotonic()))
        holder.order("look", name=NAME)
        holder.order("release", name=NAME)
        resumed_at = time.monotonic()
        holder.resume()

        look, release = holder.answer(), holder.answer()
        assert look.before >= resumed_at
        assert not look.result["held"]
        assert look.result["lost"] == "NOT_CONFIRMED"
        assert release.error == "LockLost"
        [told] = eventually(lambda: holder.told_of(NAME))
        assert told.told <= resumed_at + LATE_S
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
        assert check(History(beliefs=[belief(first, last_look), belief(second, theirs)])) == []
        assert contender.told == []


def test_fault_03_a_confirmation_that_waited_in_the_socket_does_not_revive_it(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """3. As above, and a renewal was answered just before the stop: the reply is the first thing that is read."""
    client = redis_server.client()
    with Holder(proxy.url) as holder, Holder(redis_server.url) as contender:
        first = holder.acquire(NAME, timeout=1.0)
        proxy.to_client.delay_s = float("inf")
        eventually(lambda: of_kind("renew", commands(proxy, mentioning=first.result["token"])))
        holder.pause()
        proxy.to_client.delay_s = 0.0
        stopped_at = time.monotonic()
        second = contender.acquire(NAME, timeout=1.0, blocking_timeout=10.0)
        time.sleep(max(0.0, stopped_at + 1.5 - time.monotonic()))
        holder.order("look", name=NAME)
        resumed_at = time.monotonic()
        holder.resume()
        assert not holder.answer().result["held"]
        [told] = eventually(lambda: holder.told_of(NAME))
        assert told.reason == "NOT_CONFIRMED"
        assert told.told <= resumed_at + LATE_S
        assert not holder.ask("look", name=NAME).result["held"]
        assert holder.ask("release", name=NAME).error == "LockLost"
        # Answered on the same connection, so the owner-checked release that follows a late success has been, too.
        holder.acquire("another", timeout=1.0)
        assert client.get(NAME) == second.result["token"].encode()
        assert not of_kind("renew", commands(proxy, since=resumed_at, mentioning=first.result["token"]))
        assert len(holder.told) == 1


@pytest.mark.parametrize("first_look_after_s", [0.0, LATE_S], ids=["look first", "reply first"])
def test_fault_03_a_success_that_is_read_after_v_is_given_back(
    redis_server: RedisServer, proxy: TcpProxy, first_look_after_s: float
) -> None:
    """3. Stopped until after V, but not until after the expiry that the waiting reply tells of: the lease is lost all
    the same, whoever comes first, and the key is given back at once."""
    client = redis_server.client()
    with Holder(proxy.url) as holder:
        first = holder.acquire(NAME, timeout=1.5)
        token = first.result["token"]
        proxy.to_client.delay_s = float("inf")
        eventually(lambda: of_kind("renew", commands(proxy, mentioning=token)))
        holder.pause()
        proxy.to_client.delay_s = 0.0
        time.sleep(max(0.0, first.after + 1.7 - time.monotonic()))
        if not first_look_after_s:
            holder.order("look", name=NAME)
        resumed_at = time.monotonic()
        holder.resume()
        if first_look_after_s:
            time.sleep(first_look_after_s)
            holder.order("look", name=NAME)
        assert not holder.answer().result["held"]
        [told] = eventually(lambda: holder.told_of(NAME))
        assert told.reason == "NOT_CONFIRMED"
        assert told.told <= resumed_at + LATE_S
        eventually(lambda: client.get(NAME) is None)
        assert of_kind("release_many", commands(proxy, since=resumed_at, mentioning=token))
        assert not holder.ask("look", name=NAME).result["held"]
        assert len(holder.told) == 1


# 4: the interpreter's lock


def test_fault_04_an_interpreter_held_for_half_a_lease_loses_nothing(redis_server: RedisServer) -> None:
    """4. GIL held in C for 0.5 L: as 2."""
    losses = Losses()
    with own_context(redis_server) as context:
        locks = held(context.acquire_many([f"many:{number}" for number in range(50)], 2.0, on_lost=losses))
        eventually(lambda: all(lock.renewals for lock in locks))
        hold_the_interpreter(1.0)
        assert all(lock.is_held for lock in locks)
        renewals = {lock: lock.renewals for lock in locks}
        eventually(lambda: all(lock.renewals > renewals[lock] for lock in locks))
        assert all(lock.is_held for lock in locks)
        assert not losses
        assert context.timer.deaths == 0
        context.release_many(locks)


def test_fault_04_an_interpreter_held_longer_than_a_lease_knows_at_its_first_look(redis_server: RedisServer) -> None:
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
        contender.order("acquire", name=NAME, timeout=1.0, fencing=True, blocking_timeout=10.0)
        hold_the_interpreter(1.5)
        held_at_first_look, resumed_at = lock.is_held, now()
        assert not held_at_first_look
        assert lock.lost is LossReason.NOT_CONFIRMED
        with pytest.raises(LockLost):
            lock.release()
        eventually(lambda: losses)
        assert losses.told_at[0] <= resumed_at + LATE_S
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


def test_fault_04_four_spinning_threads_lose_nothing_and_the_lag_heals(redis_server: RedisServer) -> None:
    """4. Four pure-Python spinning threads: nothing lost, lag recovers."""
    losses = Losses()
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    with own_context(redis_server) as context:
        locks = held(context.acquire_many([f"many:{number}" for number in range(200)], 2.0, on_lost=losses))
        spinners = [threading.Thread(target=spin) for _ in range(4)]
        for spinner in spinners:
            spinner.start()
        time.sleep(2.5)  # longer than a lease, so each of them must have been renewed
        assert all(lock.is_held for lock in locks)
        stop.set()
        for spinner in spinners:
            spinner.join()
        # Renewed every third of the timeout, a lease never has less than 0.65 of it left.
        eventually(lambda: all(lock.remaining() > 0.6 * 2.0 for lock in locks))
        assert context.stats().overdue == 0
        assert not losses
        context.release_many(locks)


# 6: callbacks


def lose_at_the_server(server: RedisServer, *names: str) -> None:
    server.client().delete(*names)


@contextmanager
def bystander(context: LockContext) -> Iterator[Callable[[], None]]:
    """A lease that nothing may happen to. What it yields waits until it has been renewed thrice more."""
    losses = Losses()
    lock = context.lock("bystander", timeout=2.0, renew_every=0.05, on_lost=losses)
    lock.acquire()

    def goes_on() -> None:
        wait_for_renewals(lock, 3)
        assert lock.is_held

    goes_on()
    yield goes_on
    goes_on()
    assert not losses
    lock.release()


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_fault_06_a_callback_that_raises_harms_nobody_else(
    redis_server: RedisServer, error: type[BaseException]
) -> None:
    """6. A callback raises, raises SystemExit: no tick is delayed, and the callbacks after it are called."""
    called: list[str | bytes] = []
    losses = Losses()

    def misbehave(event: LostEvent) -> None:
        called.append(event.name)
        raise error("on purpose")

    with own_context(redis_server) as context, bystander(context):
        locks = []
        for name, callback in (("bad", misbehave), ("good", losses), ("worse", misbehave), ("better", losses)):
            lock = context.lock(name, timeout=1.0, renew_every=0.1, on_lost=callback)
            lock.acquire()
            locks.append(lock)
        lose_at_the_server(redis_server, "bad", "good", "worse", "better")
        eventually(lambda: len(losses) == 2 and len(called) == 2)
        assert sorted(map(str, called)) == ["bad", "worse"]
        assert {lock.lost for lock in locks} == {LossReason.KEY_GONE}
        assert context.timer.deaths == 0


def test_fault_06_a_task_of_the_timer_that_raises_harms_nobody_else(redis_server: RedisServer) -> None:
    """6. The same for what users give to new_timeout()."""
    expired: list[int] = []

    def misbehave(timeout: object) -> None:
        expired.append(1)
        raise SystemExit("on purpose")

    with own_context(redis_server) as context, bystander(context):
        context.timer.new_timeout(misbehave, 0.0)
        context.timer.new_timeout(lambda timeout: expired.append(2), 0.1)
        eventually(lambda: len(expired) == 2)
        assert context.timer.pending == 0
        assert context.timer.deaths == 0


def test_fault_06_a_callback_that_sleeps_delays_no_tick(redis_server: RedisServer) -> None:
    """6. A callback sleeps 10 s: meanwhile locks are acquired, renewed, lost at the right time and released."""
    wake = threading.Event()
    asleep = threading.Event()
    losses = Losses()

    def sleep(event: LostEvent) -> None:
        asleep.set()
        wake.wait(10.0)

    with own_context(redis_server) as context, bystander(context) as goes_on:
        try:
            sleepy = context.lock("sleepy", timeout=1.0, renew_every=0.1, on_lost=sleep)
            sleepy.acquire()
            lose_at_the_server(redis_server, "sleepy")
            assert asleep.wait(5.0)
            goes_on()
            for number in range(10):
                with context.lock(f"quick:{number}"):
                    pass
            lost_meanwhile = context.lock(NAME, timeout=1.0, renew_every=0.1, on_lost=losses)
            lost_meanwhile.acquire()
            lose_at_the_server(redis_server, NAME)
            wait_for_end(lost_meanwhile)
            goes_on()
            assert not wake.is_set()
        finally:
            wake.set()
        eventually(lambda: losses)  # it waited for the sleeper, and is told all the same
        assert losses.events[0].at <= losses.events[0].deadline


def test_fault_06_a_callback_may_use_the_library(redis_server: RedisServer) -> None:
    """6. Callbacks call back: acquire anew, release, look, extend. None of that holds up the thread they wait for."""
    seen: list[object] = []

    def call_back(event: LostEvent) -> None:
        with pytest.raises(LockLost):
            lock.release()
        with pytest.raises(LockLost):
            lock.extend(1.0)
        seen.extend([lock.is_held, lock.lost, lock.acquire(), lock.is_held])
        lock.release()

    with own_context(redis_server) as context, bystander(context):
        lock = context.lock(NAME, timeout=1.0, renew_every=0.1, thread_local=False, on_lost=call_back)
        lock.acquire()
        lose_at_the_server(redis_server, NAME)
        eventually(lambda: len(seen) == 4)
        assert seen == [False, LossReason.KEY_GONE, True, True]
        assert context.timer.deaths == 0


class RaisingHandler(logging.Handler):
    """A log handler with a bug of its own: it lets its exceptions out."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("disk full")


def test_fault_06_a_log_handler_that_raises_does_not_swallow_a_loss(redis_server: RedisServer) -> None:
    """6. Log handlers are users' code like callbacks are: one that raises must not keep a callback from being told."""
    handler = RaisingHandler(logging.WARNING)
    losses = Losses()
    logger = logging.getLogger("wheel_lock")
    logger.addHandler(handler)
    try:
        with own_context(redis_server) as context, bystander(context):
            for name in ("first", "second"):
                lock = context.lock(name, timeout=1.0, renew_every=0.1, on_lost=losses)
                lock.acquire()
                lose_at_the_server(redis_server, name)
                wait_for_end(lock)
            eventually(lambda: losses.names == ["first", "second"])
    finally:
        logger.removeHandler(handler)


# 7: the death of the wheel's thread


def kill_timer_thread(timer: HashedWheelTimer) -> None:
    """Let it die of a SystemExit that comes out of nowhere, and return when it has."""
    thread, deaths = timer_thread(timer), timer.deaths
    raise_in(thread, SystemExit)
    timer.post(lambda: None)  # an exception reaches a thread only when it runs
    eventually(lambda: timer.deaths > deaths)
    thread.join(5.0)
    assert not thread.is_alive()


def assert_is_kept(lock: Lock, server: RedisServer, *, timeout_s: float) -> None:
    """It is held, it is renewed past its first expiry, and it can be released."""
    assert lock.is_held
    wait_s(1.5 * timeout_s)
    assert lock.is_held
    assert lock.renewals >= 3
    assert server.client().get(lock.name) == lock.token
    lock.release()
    assert server.client().get(lock.name) is None


def test_fault_07_the_death_of_the_thread_is_told_and_the_next_call_works(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """7. The wheel thread killed: not held by V, CRITICAL in the log, next call works."""
    losses = Losses()
    with own_context(redis_server) as context, own_context(redis_server) as untouched:
        survivor = untouched.lock("survivor", timeout=1.0)
        survivor.acquire()
        sibling = LockContext.from_url(redis_server.url, timer=context.timer)
        locks = held(context.acquire_many([f"many:{number}" for number in range(20)], 1.0, on_lost=losses))
        locks.append(sibling.lock("sibling", timeout=1.0, on_lost=losses))
        locks[-1].acquire()
        kill_timer_thread(context.timer)
        assert not any(lock.is_held for lock in locks)
        assert {lock.lost for lock in locks} == {LossReason.THREAD_DIED}
        eventually(lambda: len(losses) == len(locks))
        assert sorted(map(str, losses.names)) == sorted(str(lock.name) for lock in locks)
        assert all(event.at <= event.deadline for event in losses.events)
        eventually(lambda: [record for record in caplog.records if record.levelno == logging.CRITICAL])
        with pytest.raises(LockLost):
            locks[0].release()

        again = context.lock(NAME, timeout=1.0)
        assert again.acquire()
        assert_is_kept(again, redis_server, timeout_s=1.0)
        with sibling.lock("sibling", timeout=1.0, blocking_timeout=5.0) as lock:
            assert lock.is_held
        assert len(losses) == 21
        assert survivor.is_held
        survivor.release()
        sibling.close()


def test_fault_07_a_lock_acquired_while_the_thread_dies_is_kept_or_refused(redis_server: RedisServer) -> None:
    """7. Next call works - also where that call is what wakes the thread to its death."""
    client = redis_server.client()
    with own_context(redis_server) as context:
        with context.lock("warm up"):
            pass
        eventually(lambda: context.timer.next_due_at() is None)
        raise_in(timer_thread(context.timer), SystemExit)
        lock = context.lock(NAME, timeout=1.0, max_attempts=1)
        try:
            granted = lock.acquire()
        except WheelLockError:
            granted = False
        assert context.timer.deaths == 1
        if granted:
            assert_is_kept(lock, redis_server, timeout_s=1.0)
        # Whatever it said, nobody holds the lock now, so nobody may keep it alive.
        eventually(lambda: client.get(NAME) is None, timeout_s=3.0, message="the name is free within its timeout")


def test_fault_07_the_cap_on_held_locks_outlives_the_thread(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """7. An acquire that was under way when the thread died is counted out once, not twice."""
    with own_context(proxy.url, max_held=1) as context, ThreadPoolExecutor(1) as other:
        with context.lock("warm up"):
            pass
        proxy.to_client.delay_s = float("inf")
        under_way = other.submit(context.lock("under way", timeout=1.0).acquire)
        eventually(lambda: commands(proxy, mentioning="under way"))
        kill_timer_thread(context.timer)
        proxy.to_client.delay_s = 0.0
        with pytest.raises(WheelLockError):
            under_way.result()
        with context.lock("first"), pytest.raises(TooManyLocks):
            context.lock("second").acquire()


def test_fault_07_timeouts_of_users_outlive_the_thread(redis_server: RedisServer) -> None:
    """7. What waits on the wheel for somebody else is not forgotten, and comes once."""
    expired: list[int] = []

    def note(number: int, timeout: Timeout) -> None:
        expired.append(number)

    with own_context(redis_server) as context:
        for number in range(5):
            context.timer.new_timeout(partial(note, number), 0.3)
        kill_timer_thread(context.timer)
        assert context.timer.pending == 5
        eventually(lambda: sorted(expired) == list(range(5)), timeout_s=3.0)
        assert context.timer.pending == 0


def test_fault_07_threads_that_use_the_context_while_it_dies_again_and_again(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """7. A lock that one of them got is lost for a true reason or not at all, and no name is kept alive by nobody."""
    caplog.set_level(logging.CRITICAL, logger="wheel_lock")
    client = redis_server.client()
    stop = threading.Event()
    reasons: list[LossReason | None] = []
    strange: list[BaseException] = []

    def use(context: LockContext, prefix: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            lock = context.lock(f"{prefix}:{number}", timeout=1.0)
            try:
                if lock.acquire():
                    reasons.append(lock.lost)
                    lock.release()
            except WheelLockError:
                reasons.append(lock.lost)
            except BaseException as error:
                strange.append(error)

    with own_context(redis_server, response_timeout=1.0) as context:
        many = held(context.acquire_many([f"many:{number}" for number in range(2000)], 1.0))
        users = [threading.Thread(target=use, args=[context, f"user:{number}"]) for number in range(4)]
        for user in users:
            user.start()
        for _ in range(6):
            time.sleep(0.1)
            kill_timer_thread(context.timer)
        stop.set()
        for user in users:
            user.join(10.0)
        assert not any(user.is_alive() for user in users)
        assert strange == []
        assert set(reasons) <= {None, LossReason.THREAD_DIED}
        assert {lock.lost for lock in many} == {LossReason.THREAD_DIED}
        # Nobody holds anything now.
        eventually(lambda: client.keys() == [], timeout_s=3.0, message="all names are free within their timeout")
        assert context.stats().held == 0
        with context.lock(NAME) as lock:
            assert lock.is_held


PLACES = 40  # a renewal, its reply and what follows are fewer calls than that


class StrikeAtCall:
    """Raises once, on the thread that it is installed on, in the nth function of the library that is called there."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.where = "nowhere"

    def install(self) -> None:
        sys.settrace(self._trace)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            self._left -= 1
            if self._left < 0:
                sys.settrace(None)
                self.where = frame.f_code.co_qualname
                raise MemoryError(f"struck in {self.where}")


@pytest.fixture
def stage(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], LockContext]]:
    """Makes contexts, each with a thread of its own, that may be left in any state."""
    caplog.set_level(logging.CRITICAL, logger="wheel_lock")
    contexts: list[LockContext] = []

    def make() -> LockContext:
        contexts.append(LockContext.from_url(redis_server.url, timer=HashedWheelTimer(), response_timeout=1.0))
        with contexts[-1].lock("warm up"):
            pass
        return contexts[-1]

    yield make
    for context in contexts:
        if finishes(partial(context.close, 1.0), within_s=3.0):
            context.timer.stop()


def finishes(call: Callable[[], object], *, within_s: float) -> bool:
    """Whether `call()` returns or raises an error of the library in time."""

    def run() -> None:
        try:
            call()
        except WheelLockError:
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(within_s)
    return not thread.is_alive()


def test_fault_07_an_error_anywhere_on_the_thread_ends_no_lease_in_silence(
    redis_server: RedisServer, stage: Callable[[], LockContext]
) -> None:
    """7. The exception may be any, and may strike anywhere in what the thread does about a renewal: each lease is then
    renewed on, or it is lost and that is told by V."""
    client = redis_server.client()
    held_on: list[tuple[Lock, Losses, StrikeAtCall]] = []
    for nth in range(PLACES):
        context, losses, strike = stage(), Losses(), StrikeAtCall(nth)
        lock = context.lock(f"place:{nth}", timeout=1.0, on_lost=losses)
        lock.acquire()
        context.timer.post(strike.install)  # the thread has nothing to do until the renewal
        held_on.append((lock, losses, strike))
    wait_s(2.0)
    silent = []
    for lock, losses, strike in held_on:
        told_in_time = len(losses) == 1 and losses.events[0].at <= losses.events[0].deadline
        if not told_in_time and (losses or lock.renewals < 2 or client.get(lock.name) != lock.token):
            silent.append(strike.where)
    assert not silent, f"nobody was told after an error in {', '.join(silent)}"


def test_fault_07_an_error_anywhere_on_the_thread_keeps_no_caller_waiting(
    redis_server: RedisServer, stage: Callable[[], LockContext]
) -> None:
    """7. The same in what the thread does about an acquire and a release: the call ends, with a result or an error."""
    callers: list[tuple[threading.Thread, StrikeAtCall]] = []

    def use(lock: Lock) -> None:
        try:
            with lock:
                pass
        except WheelLockError:
            pass

    for nth in range(PLACES):
        context, strike = stage(), StrikeAtCall(nth)
        context.timer.post(strike.install)
        caller = threading.Thread(target=use, args=[context.lock(f"place:{nth}", timeout=1.0)], daemon=True)
        caller.start()
        callers.append((caller, strike))
    until = now() + 4.0
    for caller, _ in callers:
        caller.join(max(0.0, until - now()))
    stuck = [strike.where for caller, strike in callers if caller.is_alive()]
    assert not stuck, f"callers wait for ever after an error in {', '.join(stuck)}"
    # Nobody holds anything now, so nothing may be kept alive.
    eventually(lambda: redis_server.client().keys("place:*") == [], message="all names are free within their timeout")


# 8: a series of failures


def test_fault_08_renewal_resumes_after_errors_of_the_server(fresh_redis: RedisServer) -> None:
    """8. N failed renewals, then health: renewal resumes. Here the server refuses every write for a while."""
    client = fresh_redis.client()
    losses = Losses()
    with own_context(fresh_redis) as context:
        locks = held(
            context.acquire_many([f"many:{number}" for number in range(10)], 2.0, renew_every=0.2, on_lost=losses)
        )
        client.config_set("min-replicas-to-write", 1)
        eventually(lambda: context.stats().unknown >= 3 * len(locks))
        assert all(lock.is_held for lock in locks)
        client.config_set("min-replicas-to-write", 0)
        renewals = {lock: lock.renewals for lock in locks}
        eventually(lambda: all(lock.renewals >= renewals[lock] + 3 for lock in locks))
        assert context.stats().overdue == 0
        assert not losses
        context.release_many(locks)
        assert client.keys() == []


def test_fault_08_renewal_resumes_after_the_network_was_away(redis_server: RedisServer, proxy: TcpProxy) -> None:
    """8. The same where the connection is cut, again and again."""
    losses = Losses()
    with own_context(proxy.url) as context:
        locks = held(
            context.acquire_many([f"many:{number}" for number in range(10)], 2.0, renew_every=0.2, on_lost=losses)
        )
        proxy.refuse()
        proxy.cut()
        eventually(lambda: context.stats().overdue == len(locks))
        proxy.heal()
        for _ in range(3):
            time.sleep(0.1)
            proxy.cut()
        renewals = {lock: lock.renewals for lock in locks}
        eventually(lambda: all(lock.renewals >= renewals[lock] + 3 for lock in locks))
        assert context.stats().overdue == 0
        assert not losses
        context.release_many(locks)


def test_fault_08_a_lock_that_is_acquired_again_after_a_loss_is_renewed(
    redis_server: RedisServer, proxy: TcpProxy
) -> None:
    """8. ... and a re-acquired lock of the same name is renewed, while nothing of the old lease touches it."""
    losses = Losses()
    with own_context(proxy.url) as context:
        lock = context.lock(NAME, timeout=1.0, on_lost=losses)
        lock.acquire()
        old = lock.token
        assert old is not None
        proxy.refuse()
        proxy.cut()
        eventually(lambda: losses)
        assert lock.lost is LossReason.NOT_CONFIRMED
        assert losses.events[0].at <= losses.events[0].deadline
        proxy.heal()
        healed_at = time.monotonic()
        assert lock.acquire(blocking_timeout=5.0)
        assert lock.lost is None
        assert lock.token != old
        assert_is_kept(lock, redis_server, timeout_s=1.0)
        assert not of_kind("renew", commands(proxy, since=healed_at, mentioning=old))
        assert len(losses) == 1
