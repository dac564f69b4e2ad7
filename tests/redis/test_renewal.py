"""Renewal: as often as was asked for and no longer than allowed; how a loss is reported; what ends without a release."""

from __future__ import annotations

import gc
import inspect

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend, Clock, Losses, token_of, without_collection
from tests.support.logged import recorded_warnings
from tests.support.redis_server import redis_server_version
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LockLost, LossReason, LostEvent
from wheel_lock.protocol import scripts

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
    assert losses.delivered() == []


# How a loss is reported


@BOTH
@pytest.mark.parametrize("reason", [LossReason.KEY_GONE, LossReason.TAKEN])
def test_on_lost_is_called_once_on_the_notifier_thread(backend: Backend, reason: LossReason) -> None:
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
    [event] = losses.delivered()
    assert isinstance(event, LostEvent)
    assert (event.name, event.reason, event.renewals, event.fence) == ("order:42", reason, 2, fence)
    assert event.at < event.deadline
    assert losses.threads[0].startswith("wheel-lock-notifier")
    assert backend.view.get("order:42") == (None if reason is LossReason.KEY_GONE else b"theirs")
    assert dict(context.stats().lost_by_reason) == {reason: 1}


# Scripts


def test_a_server_gets_the_form_of_the_scripts_that_it_understands(fresh: Backend) -> None:
    with fresh.context().lock("order:42"):
        flagged = fresh.view.script_exists(*[script.flagged.sha1 for script in scripts.ALL])
        plain = fresh.view.script_exists(*[script.plain.sha1 for script in scripts.ALL])
    knows_flags = redis_server_version() >= (7,)
    assert flagged == [knows_flags] * len(scripts.ALL)
    assert plain == [not knows_flags] * len(scripts.ALL)


# One thread


def test_contexts_share_one_timer_unless_they_are_given_another(backend: Backend) -> None:
    assert backend.context().timer is backend.context().timer is HashedWheelTimer.shared()


# What ends without a release: locks that outlive those who took them


def is_renewed_no_more(view: redis.Redis, name: str) -> bool:
    """Whether the key of a lock of 20 s comes nearer to its end than renewals every 0.1 s would let it."""
    return bool(eventually(lambda: view.pttl(name) < 19_300, LONG_S, f"{name} is no longer renewed"))


@BOTH
@pytest.mark.parametrize("tracked", [False, True], ids=["untracked", "tracked"])
def test_a_lock_that_is_collected_unreleased_is_renewed_no_more(backend: Backend, tracked: bool) -> None:
    context = backend.context(track_acquisitions=tracked)
    losses = Losses()
    lock = context.lock("order:42", timeout=20.0, renew_every=0.1, on_lost=losses)
    lock.acquire()
    line = inspect.stack()[0].lineno - 1
    with recorded_warnings() as warned, without_collection():
        del lock
        eventually(lambda: losses.delivered() and warned, LONG_S)
    assert [event.reason for event in losses.events] == [LossReason.ABANDONED]
    assert len(warned) == 1
    assert "'order:42' was abandoned without a release" in warned[0]
    assert (f"{__file__}:{line}" in warned[0]) is tracked
    assert context.stats().held == 0
    renewed = context.stats().renewed
    assert is_renewed_no_more(backend.view, "order:42")
    assert context.stats().renewed == renewed


def test_bulk_locks_that_are_dropped_are_renewed_no_more_and_say_where_they_came_from(backend: Backend) -> None:
    context = backend.context(track_acquisitions=True)
    losses = Losses()
    locks = context.acquire_many(["order:1", "order:2"], timeout=20.0, renew_every=0.1, on_lost=losses)
    line = inspect.stack()[0].lineno - 1
    with recorded_warnings() as warned, without_collection():  # nothing of the acquire keeps them in a cycle
        locks.clear()
        eventually(lambda: len(losses.delivered()) == len(warned) == 2, LONG_S)
    assert is_renewed_no_more(backend.view, "order:1")
    assert is_renewed_no_more(backend.view, "order:2")
    assert len(warned) == 2
    assert all(f"{__file__}:{line}" in warning for warning in warned)


@pytest.mark.parametrize("ending", ["released", "lost"])
def test_the_connection_of_a_collected_context_is_closed_when_nothing_is_held(real: Backend, ending: str) -> None:
    # Not real.context(), which would keep it.
    name = f"forgotten:{ending}"
    context = LockContext(real.client(client_name=name))
    lock = context.lock("order:42", timeout=3.0, renew_every=0.1)
    lock.acquire()
    del context
    gc.collect()

    def connections() -> int:
        return [client["name"] for client in real.view.client_list()].count(name)

    assert connections() == 1
    if ending == "released":
        lock.release()
    else:
        real.view.delete("order:42")
        eventually(lambda: lock.lost, LONG_S)
    eventually(lambda: connections() == 0, LONG_S, "hung up")
    assert lock.acquire()  # it can be used again nevertheless
    lock.release()


def test_an_unused_context_that_is_collected_starts_no_thread() -> None:
    timer = HashedWheelTimer()
    LockContext(redis.Redis(port=1), timer=timer)
    gc.collect()
    assert not timer.running
    timer.stop()
