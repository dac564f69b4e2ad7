"""Names come and go: an engine keeps nothing of those that are not held, however long their timeouts were."""

from __future__ import annotations

import gc
import types
from collections import Counter, deque
from contextlib import suppress

import pytest

from tests.support.backend import Backend
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockTimeout

pytestmark = pytest.mark.servers("real")

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
