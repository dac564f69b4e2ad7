"""redis-py's own Lock on the same names: the two exclude each other, so a service can move over bit by bit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.support.backend import BOTH, Backend
from tests.support.background import Background
from wheel_lock import LockContext

pytestmark = pytest.mark.servers("real")


def test_redis_py_waits_for_ours(backend: Backend, context: LockContext) -> None:
    theirs = backend.view.lock("order:42", timeout=30.0, sleep=0.01)
    with context.lock("order:42"):
        assert theirs.locked()
        assert not theirs.owned()
        assert not theirs.acquire(blocking=False)
        waiting = Background(lambda: theirs.acquire(blocking=True))
        time.sleep(0.05)
        assert not waiting.done
    assert waiting.result()
    assert theirs.locked()


def test_ours_waits_for_redis_py(backend: Backend, context: LockContext) -> None:
    theirs = backend.view.lock("order:42", timeout=30.0, thread_local=False)
    ours = context.lock("order:42", retry_every=0.01, thread_local=False)
    with theirs:
        assert ours.locked()
        assert not ours.owned()
        assert not ours.acquire(blocking=False)
        waiting = Background(ours.acquire)
        time.sleep(0.05)
        assert not waiting.done
    assert waiting.result()
    assert ours.owned()
    ours.release()


@BOTH
def test_the_seven_methods_of_redis_py_mean_the_same(backend: Backend, context: LockContext) -> None:
    def tour(lock: Any) -> list[object]:
        seen: list[object] = [lock.locked(), lock.owned(), lock.acquire(blocking=False), lock.locked(), lock.owned()]
        seen += [lock.extend(10), round(backend.view.pttl("order:42") / 10_000)]
        seen += [lock.extend(20, replace_ttl=True), round(backend.view.pttl("order:42") / 10_000)]
        seen += [lock.reacquire(), round(backend.view.pttl("order:42") / 10_000)]
        lock.release()
        seen += [lock.locked(), lock.owned(), lock.acquire(token="x"), backend.view.get("order:42")]
        lock.release()
        return seen

    ours = context.lock("order:42", timeout=30.0)
    assert tour(ours) == tour(backend.view.lock("order:42", timeout=30.0))
