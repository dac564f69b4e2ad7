"""What a lock costs: round trips, and, of a bulk, objects for the garbage collector to walk, and bytes."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, NAME, make
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.engine.requests.bulk import BulkOperation
from wheel_lock.testing import settle

pytestmark = pytest.mark.servers("real")

# Round trips


def commands(backend: Backend) -> int:
    """How many commands the server has carried out, but for this query itself."""
    stats: dict[str, dict[str, int]] = backend.view.info("commandstats")
    return sum(command["calls"] for name, command in stats.items() if "info" not in name)


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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "exclusive"])  # which is acquired with SET
def test_acquire_and_release_are_one_round_trip_each(real: Backend, kind: str) -> None:
    proxy = real.proxy()
    context = real.context_through(proxy)
    with make(context, kind):
        pass  # the scripts are known from here on
    before = proxy.seen("to_server").count(b"EVALSHA")
    with make(context, kind):
        pass
    assert proxy.seen("to_server").count(b"EVALSHA") == before + 2


# Memory


def test_objects_per_lock_that_are_left_to_the_collector(context: LockContext) -> None:
    """Two, its lock object and its lease. What there is for each part of a bulk is shared by many."""
    number = 3000
    names = [f"shard:{number}" for number in range(number)]
    context.release_many(context.acquire_many(names).values())  # what is made once is made

    def tracked() -> int:
        settle(context.timer)
        gc.collect()
        return len(gc.get_objects())

    before = tracked()
    locks = context.acquire_many(names, timeout=300.0)
    assert tracked() - before <= 2.2 * number  # and a list for each tick of the wheel
    assert len(locks) == number
    context.release_many(locks.values())


def calls() -> set[object]:
    """Collect; return the calls that are left. An answered request may be on the wheel for as long as it may take."""
    gc.collect()
    return {
        found for found in gc.get_objects() if issubclass(type(found), BulkOperation)
    }  # isinstance asks a weak proxy's object, which may have gone


def test_bytes_per_lock_that_is_held(context: LockContext) -> None:
    """Lease, lock object, and their places in the wheel, in what is held, and in the result; but not the caller's name."""
    number = 10_000
    names = [f"shard:{number}" for number in range(number)]
    context.release_many(context.acquire_many(names[:10]).values())
    settle(context.timer)
    earlier = calls()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        locks = context.acquire_many(names, timeout=300.0)
        settle(context.timer)
        eventually(lambda: calls() <= earlier)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    larger = 20 if "t" in sys.abiflags else 0  # objects of a free-threaded build
    assert (after - before) / number <= 450 + larger
    context.release_many(locks.values())
