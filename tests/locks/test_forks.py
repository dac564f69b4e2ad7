"""What needs a process of its own, or the commands that are sent: forks, and the price of acquiring a lock again."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.backend import Backend
from tests.support.lock_types import NAME
from wheel_lock import LockContext

forks = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs os.fork")


def commands(backend: Backend) -> int:
    """How many commands the server has carried out, but for this query itself."""
    stats: dict[str, dict[str, int]] = backend.view.info("commandstats")
    return sum(command["calls"] for name, command in stats.items() if "info" not in name)


# Forks


# Round trips


def test_acquiring_again_and_releasing_so_sends_nothing(real: Backend) -> None:
    context, _ = real.stepped_context()
    lock, rw = context.reentrant_lock(NAME), context.rw_lock("rw")
    with lock, rw.write():
        before = commands(real)
        for _ in range(100):
            with lock, context.reentrant_lock(NAME), rw.write(), rw.read(), context.rw_lock("rw").read():
                pass
        assert commands(real) == before
    with rw.read():
        before = commands(real)
        for _ in range(100):
            with rw.read():
                pass
        assert commands(real) == before


@pytest.mark.parametrize("kind", ["reentrant_lock", "fair_lock", "rw_lock", "semaphore", "multi_lock"])
def test_acquire_and_release_are_one_round_trip_each(real: Backend, kind: str) -> None:
    proxy = real.proxy()
    context = real.context_through(proxy)

    def lock_of(context: LockContext) -> object:
        if kind == "rw_lock":
            return context.rw_lock(NAME).write()
        if kind == "semaphore":
            return context.semaphore(NAME, 2)
        if kind == "multi_lock":
            return context.multi_lock([NAME, "another"])
        return getattr(context, kind)(NAME)

    with lock_of(context):  # type: ignore[attr-defined]
        pass  # the scripts are known from here on
    before = proxy.seen("to_server").count(b"EVALSHA")
    with lock_of(context):  # type: ignore[attr-defined]
        pass
    assert proxy.seen("to_server").count(b"EVALSHA") == before + 2
