"""What a lock costs: round trips, objects for the garbage collector to walk, bytes, and nothing when it is gone."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import types
from collections import Counter, deque
from contextlib import suppress

import pytest

from tests.support.backend import Backend
from tests.support.lock_types import KINDS, NAME, make
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockTimeout
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
    """None until it is looked at, and then two: its lock object and its lease. What there is for each batch is shared."""
    number = 3000
    names = [f"shard:{number}" for number in range(number)]
    context.release_many(context.acquire_many(names).values())  # what is made once is made

    def tracked() -> int:
        settle(context.timer)
        gc.collect()
        return len(gc.get_objects())

    before = tracked()
    locks = context.acquire_many(names, timeout=300.0)
    assert tracked() - before <= 0.05 * number  # a few for each batch
    assert all(lock is not None and lock.is_held for lock in locks.values())
    assert tracked() - before <= 2.2 * number  # and a list for each tick of the wheel
    context.release_many(locks.values())


def calls() -> set[object]:
    """Collect; return the calls that are left. An answered request may be on the wheel for as long as it may take."""
    gc.collect()
    return {
        found for found in gc.get_objects() if issubclass(type(found), BulkOperation)
    }  # isinstance asks a weak proxy's object, which may have gone


def test_bytes_per_lock_that_is_held(context: LockContext) -> None:
    """Name and token, encoded, and its places in its rows and in the result; but not the caller's name."""
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
    assert (after - before) / number <= 150 + larger
    context.release_many(locks.values())


# Names come and go: an engine keeps nothing of those that are not held, however long their timeouts were


LONG_S = 86_400.0
ROUNDS = 40
FEW = 150
"""Entries of all containers, which have some thousands: slots of the wheel, connections, notes of a bounded number."""
_BEYOND = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.FrameType)


def entries(context: LockContext) -> Counter[str]:
    """The number of entries in all containers to which a context refers, by the class of their owner."""
    gc.collect()
    found: Counter[str] = Counter()
    seen: set[int] = set()
    left: deque[tuple[object, str]] = deque([(context, "context")])
    while left:
        thing, owner = left.popleft()
        if id(thing) in seen or isinstance(thing, _BEYOND):
            continue
        seen.add(id(thing))
        if isinstance(thing, (dict, list, set, deque)):
            found[owner] += len(thing)
        else:
            owner = type(thing).__name__
        left.extend((other, owner) for other in gc.get_referents(thing))
    return found


def use(context: LockContext, number: int) -> None:
    """Hold, nest, change, be refused, hand over and lose locks of names that come only once."""
    with context.lock(f"a:{number}", timeout=LONG_S, fencing=True) as lock:
        lock.extend(10.0)
        # On a busy machine the answer may be missing when the time is up.
        with suppress(LockTimeout):
            another = context.lock(f"a:{number}", timeout=LONG_S, thread_local=False)
            assert not another.acquire(blocking_timeout=0.01)
    reentrant, rw = (
        context.reentrant_lock(f"b:{number}", timeout=LONG_S),
        context.rw_lock(f"c:{number}", timeout=LONG_S),
    )
    with reentrant, reentrant, rw.read():
        pass
    writer = rw.write()
    writer.acquire()
    writer.downgrade().release()
    with context.semaphore(f"d:{number}", 2, timeout=LONG_S), context.fair_lock(f"e:{number}", timeout=LONG_S):
        pass
    names = [f"f:{number}:{part}" for part in range(3)]
    context.release_many(list(context.acquire_many(names, timeout=LONG_S).values()))
    with context.multi_lock(names, timeout=LONG_S):
        pass
    given, lost = (context.lock(f"{letter}:{number}", timeout=LONG_S) for letter in "gh")
    given.acquire()
    context.adopt(given.export()).release()
    lost.acquire()
    context.force_release(f"h:{number}")


def test_nothing_of_a_name_is_kept(backend: Backend) -> None:
    with LockContext(backend.view, watch=True) as context, context.lock("kept", timeout=LONG_S):
        for number in range(ROUNDS):
            use(context, number)
        eventually(lambda: context.stats().waiting == 0)
        before = entries(context)
        for number in range(ROUNDS, 6 * ROUNDS):
            use(context, number)
        eventually(lambda: (entries(context) - before).total() < FEW)
