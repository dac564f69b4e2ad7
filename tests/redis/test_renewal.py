"""Renewal: as often as was asked for and no longer than allowed; and how a loss is told."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.backend import BOTH, LONG_S, Backend, Clock, Losses, believes_no_longer_than_the_server, token_of
from tests.support.redis_server import redis_server_version
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LockLost, LossReason, LostEvent
from wheel_lock.protocol import scripts
from wheel_lock.runtime.notifier import NOTIFIER

pytestmark = pytest.mark.servers("real")

# A timeout of 3 s, 10 s of work, renewal at half the timeout: six renewals, and the release cancels the seventh


@BOTH
def test_ten_seconds_of_work_under_a_lock_of_three_take_six_renewals(backend: Backend) -> None:
    proxy = backend.proxy()
    clock = Clock()
    context = backend.context_through(proxy, timer=backend.timer(clock))
    losses = Losses()
    with context.lock("report", timeout=3.0, renew_every=1.5, on_lost=losses) as lock:
        token = token_of(lock)
        for second in range(10):
            assert lock.is_held, f"in second {second}"
            assert not context.lock("report").acquire(blocking=False)
            clock.advance(1.0)
        assert lock.renewals == 6
        assert backend.view.get("report") == token
    assert not backend.view.exists("report")
    sent = proxy.seen("to_server").count(token)
    clock.advance(10.0)
    assert lock.renewals == 6
    assert context.stats().renewed == 6
    assert proxy.seen("to_server").count(token) == sent == 8  # the acquire, the renewals, the release
    assert losses.all_told() == []


def test_the_same_work_in_real_time_takes_six_renewals(real: Backend) -> None:
    context = real.context()
    began = context.timer.clock.now()
    with context.lock("report", timeout=2.0, renew_every=0.15) as lock:
        while lock.renewals < 6:
            assert believes_no_longer_than_the_server(lock, real.view)
            assert real.view.get("report") == token_of(lock)
            time.sleep(0.02)
    # On a machine that overslept there is time for more, but never for more than one every interval. The first is early
    # by less than a tick of 10 ms: due times are rounded down to ticks.
    renewals = lock.renewals
    assert renewals <= (context.timer.clock.now() - began + 0.01) / 0.15
    assert not real.view.exists("report")
    time.sleep(0.2)
    assert lock.renewals == context.stats().renewed == renewals
    assert context.stats().lost == 0


def test_a_lock_that_is_acquired_again_is_renewed_again(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    lock = context.lock("order:42", timeout=30.0)
    for _ in range(3):
        with lock:
            assert lock.renewals == 0
            clock.advance(100.0)
            assert lock.renewals == 10


# Limits


@pytest.mark.parametrize("limit", [0, 6])
def test_a_lock_is_renewed_no_more_often_than_allowed(backend: Backend, limit: int) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    lock = context.lock("order:42", timeout=30.0, renew_every=15.0, max_renewals=limit, on_lost=losses)
    lock.acquire()
    clock.advance(15.0 * limit + 29.0)
    assert lock.is_held
    assert lock.renewals == limit
    clock.advance(1.0)
    assert lock.lost is LossReason.RENEWAL_LIMIT
    assert [event.reason for event in losses.all_told()] == [LossReason.RENEWAL_LIMIT]
    assert losses.events[0].renewals == limit
    assert losses.events[0].at < losses.events[0].deadline
    with pytest.raises(LockLost):
        lock.release()


@pytest.mark.parametrize("max_hold", [10.0, 100.0])
def test_a_lock_is_held_no_longer_than_allowed(backend: Backend, max_hold: float) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    lock = context.lock("order:42", timeout=30.0, max_hold=max_hold, on_lost=losses)
    lock.acquire()
    acquired = clock.now()
    assert lock.remaining() <= max_hold
    clock.advance(max_hold - 0.1)
    assert lock.is_held
    clock.advance(0.1)
    assert not lock.is_held
    assert lock.lost is LossReason.HOLD_LIMIT
    assert [event.reason for event in losses.all_told()] == [LossReason.HOLD_LIMIT]
    assert losses.events[0].at <= losses.events[0].deadline <= acquired + max_hold


def test_a_lock_that_is_not_to_be_renewed_ends_by_itself(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    lock = context.lock("order:42", timeout=30.0, renew=False, on_lost=losses)
    lock.acquire()
    clock.advance(29.0)
    assert lock.is_held
    clock.advance(1.0)
    assert not lock.is_held
    assert lock.renewals == 0
    assert lock.lost is not None
    assert [event.reason for event in losses.all_told()] == [lock.lost]
    assert context.stats().batches == 0


# How a loss is told


@BOTH
@pytest.mark.parametrize("reason", [LossReason.KEY_GONE, LossReason.TAKEN])
def test_on_lost_is_told_once_on_the_notifier_thread(backend: Backend, reason: LossReason) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    lock = context.lock("order:42", timeout=30.0, fencing=True, on_lost=losses)
    lock.acquire()
    fence = lock.fence
    clock.advance(25.0)
    if reason is LossReason.KEY_GONE:
        backend.view.delete("order:42")
    else:
        backend.view.set("order:42", "theirs")
    clock.advance(5.0)
    assert not lock.is_held
    assert lock.lost is reason
    for _ in range(2):
        with pytest.raises(LockLost) as caught:
            lock.release()
        assert caught.value.reason is reason
    clock.advance(100.0)
    [event] = losses.all_told()
    assert isinstance(event, LostEvent)
    assert (event.name, event.reason, event.renewals, event.fence) == ("order:42", reason, 2, fence)
    assert event.at < event.deadline
    assert losses.threads[0].startswith("wheel-lock-notifier")
    assert backend.view.get("order:42") == (None if reason is LossReason.KEY_GONE else b"theirs")
    assert dict(context.stats().lost_by_reason) == {reason: 1}


def test_a_release_tells_no_loss_and_a_release_that_finds_one_tells_it(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    lock = context.lock("order:42", on_lost=losses)
    with lock:
        pass
    assert losses.all_told() == []
    lock.acquire()
    backend.view.delete("order:42")
    with pytest.raises(LockLost):
        lock.release()
    assert [event.reason for event in losses.all_told()] == [LossReason.KEY_GONE]


def test_other_callbacks_run_after_one_fails(
    backend: Backend, context: LockContext, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: LostEvent) -> None:
        raise SystemExit("a callback must not end anything")

    losses = Losses()
    locks = [context.lock(f"order:{number}", timeout=3.0, renew_every=0.1, on_lost=fail) for number in range(3)]
    locks.append(context.lock("order:last", timeout=3.0, renew_every=0.1, on_lost=losses))
    for lock in locks:
        lock.acquire()
    backend.view.flushall()
    eventually(lambda: context.stats().lost == 4, LONG_S)
    assert len(losses.all_told()) == 1
    assert "callback" in caplog.text
    with context.lock("order:42", timeout=3.0, renew_every=0.1) as alive:
        eventually(lambda: alive.renewals, LONG_S)


def test_a_callback_that_sleeps_delays_no_renewal(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    entered, go_on = threading.Event(), threading.Event()

    def sleep(event: LostEvent) -> None:
        entered.set()
        go_on.wait(LONG_S)

    lock = context.lock("order:42", timeout=30.0, on_lost=sleep)
    lock.acquire()
    with context.lock("order:43", timeout=30.0) as other:
        backend.view.delete("order:42")
        clock.advance(10.0)
        assert entered.wait(LONG_S)
        clock.advance(100.0)
        assert other.renewals == 11
        go_on.set()
    assert NOTIFIER.drain(LONG_S)


def test_a_callback_may_acquire_the_lock_anew(backend: Backend, context: LockContext) -> None:
    again: list[bool] = []
    lock = context.lock(
        "order:42", timeout=3.0, renew_every=0.1, thread_local=False, on_lost=lambda event: again.append(lock.acquire())
    )
    lock.acquire()
    backend.view.delete("order:42")
    eventually(lambda: again, LONG_S)
    assert again == [True]
    assert lock.is_held
    assert backend.view.get("order:42") == token_of(lock)
    lock.release()


@BOTH
def test_only_the_lock_whose_key_was_touched_is_lost(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    locks = [context.lock(f"order:{number}", timeout=30.0) for number in range(20)]
    for lock in locks:
        lock.acquire()
    backend.view.delete("order:3")
    backend.view.set("order:5", "theirs")
    backend.view.delete("order:7")
    backend.view.rpush("order:7", "another type")
    backend.view.persist("order:9")
    clock.advance(10.0)
    assert {lock.name: lock.lost for lock in locks if lock.lost} == {
        "order:3": LossReason.KEY_GONE,
        "order:5": LossReason.TAKEN,
        "order:7": LossReason.TAKEN,
    }
    assert 0 < backend.view.pttl("order:9") <= 30_000
    for lock in locks:
        if lock.is_held:
            lock.release()


# Scripts


def test_a_server_gets_the_form_of_the_scripts_that_it_understands(fresh: Backend) -> None:
    with fresh.context().lock("order:42"):
        flagged = fresh.view.script_exists(*[script.flagged.sha1 for script in scripts.ALL])
        plain = fresh.view.script_exists(*[script.plain.sha1 for script in scripts.ALL])
    knows_flags = redis_server_version() >= (7,)
    assert flagged == [knows_flags] * len(scripts.ALL)
    assert plain == [not knows_flags] * len(scripts.ALL)


@BOTH
def test_a_server_that_has_forgotten_the_scripts_costs_no_lease(backend: Backend, context: LockContext) -> None:
    losses = Losses()
    locks = [context.lock(f"order:{number}", timeout=3.0, renew_every=0.1, on_lost=losses) for number in range(3)]
    for lock in locks:
        lock.acquire()
    for _ in range(3):
        renewed = context.stats().renewed
        backend.view.script_flush()
        eventually(lambda renewed=renewed: context.stats().renewed >= renewed + 3, LONG_S)  # type: ignore[misc]
    backend.view.script_flush()
    locks[0].reacquire()
    backend.view.script_flush()
    for lock in locks:
        assert lock.is_held
        lock.release()
    backend.view.script_flush()
    with context.lock("order:42", fencing=True) as fenced:
        assert fenced.fence
    backend.view.script_flush()
    bulk = context.acquire_many(["order:1", "order:2"])
    backend.view.script_flush()
    context.release_many(bulk.values())
    assert backend.view.keys("order:*") == []
    assert losses.all_told() == []


def test_scripts_forgotten_while_renewals_are_outstanding_cost_no_lease(real: Backend) -> None:
    context = real.context()
    bulk = context.acquire_many([f"order:{number}" for number in range(200)], timeout=3.0, renew_every=0.1)
    deadline = time.monotonic() + LONG_S
    while context.stats().renewed < 600:
        assert time.monotonic() < deadline
        real.view.script_flush()
    assert context.stats().lost == 0
    context.release_many(bulk.values())


# One thread


def test_one_thread_keeps_the_locks_of_two_contexts(backend: Backend) -> None:
    timer = backend.timer()
    contexts = [backend.context(timer=timer) for _ in range(2)]
    before = threading.active_count()
    bulks = [
        context.acquire_many([f"{index}:{number}" for number in range(500)], timeout=3.0, renew_every=0.1)
        for index, context in enumerate(contexts)
    ]
    eventually(lambda: all(context.stats().renewed >= 500 for context in contexts), LONG_S)
    eventually(lambda: threading.active_count() <= before + 2, LONG_S, "but the timer there is at most a notifier")
    assert [thread.name for thread in threading.enumerate()].count(timer.name) == 1
    for context, bulk in zip(contexts, bulks, strict=True):
        assert context.stats().held == 500
        context.release_many(bulk.values())


def test_contexts_share_one_timer_unless_they_are_given_another(backend: Backend) -> None:
    assert backend.context().timer is backend.context().timer is HashedWheelTimer.shared()


def test_users_tasks_run_on_the_same_timer_and_the_notifier_thread(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    ran: list[str] = []
    with context.lock("order:42", timeout=30.0) as lock:
        timeout = context.timer.new_timeout(lambda timeout: ran.append(threading.current_thread().name), delay=2.5)
        cancelled = context.timer.new_timeout(lambda timeout: ran.append("cancelled"), delay=2.5)
        assert cancelled.cancel()
        clock.advance(2.4)
        assert ran == []
        clock.advance(0.2)
        assert NOTIFIER.drain(LONG_S)
        assert timeout.expired
        assert len(ran) == 1
        assert ran[0].startswith("wheel-lock-notifier")
        assert lock.is_held


@pytest.mark.parametrize(("timeout", "every"), [(1.0, 0.985), (10.0, 9.895)])
def test_a_very_long_interval_does_not_renew_all_the_time(backend: Backend, timeout: float, every: float) -> None:
    context = backend.context()
    lock = context.lock("order:42", timeout=timeout, renew_every=every)
    began = time.monotonic()
    lock.acquire()
    time.sleep(0.5)  # in which nothing is to happen
    renewals, lasted_s = lock.renewals, time.monotonic() - began
    assert renewals <= lasted_s / (timeout / 3)
