"""Being woken, on servers of both kinds: at once by a release, soon by anything else, in order, and at what price."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.background import Background, in_thread
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext
from wheel_lock.testing import fake_context

pytestmark = [pytest.mark.servers("real"), pytest.mark.settings(fallback_interval=600.0)]

NAME = "order:42"
NEVER_S = 600.0  # a fallback that nobody lives to see


def wait_for(context: LockContext, name: str = NAME, **terms: Any) -> Background[Lock]:
    """Begin to wait for a lock, and return when its caller stands in line."""
    lock = context.lock(name, timeout=30.0, thread_local=False, **terms)
    waiting = context.stats().waiting

    def acquire() -> Lock:
        assert lock.acquire()
        return lock

    background = Background(acquire)
    eventually(lambda: context.stats().waiting > waiting or background.done)
    return background


def listeners(backend: Backend, *names: str) -> list[int]:
    """How many connections listen for the release of each lock."""
    channels = [f"wheel_lock:wake:{{{name}}}" for name in names]
    return [count for _, count in backend.view.pubsub_numsub(*channels)]


# By what


@BOTH
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another process", "the same"])
def test_a_release_wakes_the_waiter(backend: Backend, me: Caller, context: LockContext, elsewhere: bool) -> None:
    waiter = me.locks.lock(NAME, timeout=30.0)
    with (backend.context() if elsewhere else context).lock(NAME, timeout=30.0):
        waiting = waiter.acquire.begin()
        if elsewhere:
            eventually(lambda: listeners(backend, NAME) == [1])
        assert not waiting.done()
    assert waiting.result(LONG_S)
    assert waiter.is_held


@pytest.mark.parametrize("way", ["redis-py", "DEL"])
def test_a_release_that_nobody_publishes_is_noticed_within_the_fallback_interval(backend: Backend, way: str) -> None:
    context = backend.context(fallback_interval=0.2)
    stranger = backend.view.lock(NAME, timeout=60.0)
    assert stranger.acquire()
    waiting = wait_for(context)
    time.sleep(0.5)  # by now the looks are as far apart as they get
    assert not waiting.done
    released_at = time.monotonic()
    if way == "redis-py":
        stranger.release()
    else:
        backend.view.delete(NAME)
    waiting.result()
    assert time.monotonic() - released_at < 0.2 + 3.0


# Under a clock that is moved by hand


def test_a_context_for_tests_wakes_its_waiters() -> None:
    with fake_context(fallback_interval=NEVER_S) as context:
        with context.lock(NAME):
            waiting = wait_for(context)
        in_thread(waiting.result().release)
        stranger = LockContext(context.server.client())
        with stranger.lock(NAME):
            waiting = wait_for(context)
        waiting.result().release()
        stranger.close()
