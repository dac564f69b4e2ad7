"""Renewal: as often as was asked for and no longer than allowed; and how a loss is reported."""

from __future__ import annotations

import pytest

from tests.support.backend import BOTH, Backend, Clock, Losses, token_of
from tests.support.redis_server import redis_server_version
from wheel_lock import HashedWheelTimer, LockLost, LossReason, LostEvent
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
