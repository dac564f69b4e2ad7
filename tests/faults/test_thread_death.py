"""The wheel's thread is killed, or fails. It says so, nothing stays believed, and the next call works."""

from __future__ import annotations

import logging

import pytest

from tests.support.backend import Backend, Losses, of
from tests.support.background import Background
from tests.support.timers import kill
from tests.support.waiting import eventually
from wheel_lock import LockLost, LockUnavailable, LossReason
from wheel_lock.sync.call import SyncFuture

pytestmark = pytest.mark.slow

NAME = "order:42"


def test_the_death_of_the_thread_is_reported_and_the_next_call_works(
    real: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    losses = Losses()
    context, untouched = (real.context(timer=real.timer()) for _ in range(2))
    survivor = untouched.lock("survivor", timeout=5.0)
    survivor.acquire()
    sibling = real.context(timer=context.timer)
    locks = of(context.acquire_many([f"many:{number}" for number in range(20)], 2.0, on_lost=losses))
    locks.append(sibling.lock("sibling", timeout=2.0, on_lost=losses))
    locks[-1].acquire()
    kill(context.timer)
    assert not any(lock.is_held for lock in locks)
    assert {lock.lost for lock in locks} == {LossReason.THREAD_DIED}
    eventually(lambda: len(losses.events) == len(locks))
    assert sorted(map(str, losses.names)) == sorted(str(lock.name) for lock in locks)
    assert all(event.at <= event.deadline for event in losses.events)
    eventually(lambda: [record for record in caplog.records if record.levelno == logging.CRITICAL])
    with pytest.raises(LockLost):
        locks[0].release()

    again = context.lock(NAME, timeout=1.5, renew_every=0.2)
    assert again.acquire()
    eventually(lambda: again.renewals >= 10)  # past its first expiry
    assert again.is_held
    assert real.view.get(NAME) == again.token
    again.release()
    assert real.view.get(NAME) is None
    with sibling.lock("sibling", timeout=2.0, blocking_timeout=5.0) as lock:
        assert lock.is_held
    assert len(losses.events) == 21
    assert survivor.is_held
    survivor.release()


def test_a_caller_whose_request_has_died_with_the_thread_gets_an_error(real: Backend) -> None:
    context = real.context(timer=real.timer())
    with context.lock(NAME):
        pass
    waiting = Background(SyncFuture[None](context._engine).wait)
    kill(context.timer)
    with pytest.raises(LockUnavailable, match="ended before it answered"):
        waiting.result()
