"""Several threads, and locks that outlive those who took them: what ends without a release."""

from __future__ import annotations

import gc
import inspect

import pytest
import redis

from tests.faults.support import recorded_warnings
from tests.support.backend import BOTH, LONG_S, Backend, Losses, without_collection
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LossReason

pytestmark = pytest.mark.servers("real")


# Abandoned: no thread is left that could release it


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
    context = LockContext(real.client(client_name="forgotten"))
    lock = context.lock("order:42", timeout=3.0, renew_every=0.1)
    lock.acquire()
    del context
    gc.collect()

    def connections() -> int:
        return [client["name"] for client in real.view.client_list()].count("forgotten")

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
