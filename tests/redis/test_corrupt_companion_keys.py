"""Nonsense in a key that accompanies a lock: an error to the call that reads it, and to no other; nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from tests.support.backend import LONG_S, Backend
from tests.support.lock_types import make
from tests.support.waiting import eventually
from wheel_lock import LockServerError
from wheel_lock.protocol.keys import fence_key, permits_key, queue_keys

NAME = "order"
FENCE, PERMITS = fence_key(NAME.encode()), permits_key(NAME.encode())
QUEUE, ALIVE = queue_keys(NAME.encode())
SOON = 4e12  # a time in a century, by the server's clock in ms
FENCED = ["fenced exclusive", "fenced reentrant", "fenced write", "fenced fair"]
NO_NUMBERS: list[str | bytes] = [
    *("nan", "-nan", "inf", "-inf", "infinity", "0x10", "1e3", " 5", "5 ", "+5", "-1", "1.5", "5,0", "", "five"),
    *(b"\xff", "5\n", "5\x00", "\u0665", "9007199254740993", "-9223372036854775808", "9" * 400, "0" * 17),
]
Prepare = Callable[[redis.Redis], object]
OTHER_TYPES: dict[str, Callable[[redis.Redis, bytes], Any]] = {
    "list": lambda view, key: view.rpush(key, "5"),
    "hash": lambda view, key: view.hset(key, "5", "5"),
    "set": lambda view, key: view.sadd(key, "5"),
}
WAITER = "w" * 22


def instead_of_a_number(key: bytes, *more: str) -> list[Prepare]:
    """Texts that are not numbers, and other types, under a key."""
    texts: list[Prepare] = [lambda view, text=text: view.set(key, text) for text in (*NO_NUMBERS, *more)]  # type: ignore[misc]
    return texts + instead_of_a_set(key)


def instead_of_a_set(key: bytes) -> list[Prepare]:
    return [lambda view, put=put: (view.delete(key), put(view, key)) for put in OTHER_TYPES.values()]  # type: ignore[misc]


def queue_of(ticket: float | str, alive_until: float | str) -> Prepare:
    """A queue with one ticket, whose waiter is alive for some time."""
    return lambda view: (
        view.delete(QUEUE, ALIVE),
        view.zadd(QUEUE, {WAITER: ticket}),
        view.zadd(ALIVE, {WAITER: alive_until}),
    )


def holders(members: dict[str, float]) -> Prepare:
    return lambda view: (view.delete(NAME), view.zadd(NAME, members))


NO_TIMES = (float("inf"), 1e300, 2.0**53)


def acquires(lock: Any) -> object:
    return lock.acquire(blocking=False)


def waits(lock: Any) -> object:
    return lock.acquire(blocking_timeout=LONG_S)


def looks(lock: Any) -> object:
    return lock.locked()


CORRUPT: dict[str, tuple[list[str], tuple[Callable[[Any], object], ...], str, list[Prepare]]] = {
    "fence": (FENCED, (acquires, waits), "the fence key of this", instead_of_a_number(FENCE, "9007199254740991")),
    "permits": (["semaphore"], (acquires, waits, looks), "the permits key of this", instead_of_a_number(PERMITS)),
    "queue": (
        ["fair", "fenced fair"],
        (waits,),
        "the queue of this fair lock",
        [
            *(queue_of(1, until) for until in ("inf", "-inf", "1e300", "-5", "1.5", "9007199254740993")),
            *(queue_of(ticket, SOON) for ticket in ("inf", "1e300", "-5", "1.5", "9007199254740992")),
            *instead_of_a_set(QUEUE),
            *instead_of_a_set(ALIVE),
        ],
    ),
    "holder": (
        ["read", "write", "fenced write", "semaphore"],
        (acquires, waits),
        "a zset of other members that does not expire",
        [
            *(holders({"r:" + "r" * 44: score}) for score in NO_TIMES),
            *(holders({"p:" + "p" * 22: score}) for score in NO_TIMES),
            *(holders({"w:" + "w" * 44: -score}) for score in NO_TIMES),
            *(holders({"i:" + "i" * 22: -score}) for score in NO_TIMES),
            holders({"t": float("-inf")}),
            holders({"r:" + "r" * 44: float("inf"), "r:" + "s" * 44: SOON, "w:" + "w" * 44: -SOON}),
        ],
    ),
}


def everything(view: redis.Redis) -> dict[Any, Any]:
    """What is on the server, but the lock that is held beside."""
    keys: Any = view.keys("*")
    return {key: (view.dump(key), view.pttl(key) == -1) for key in keys if key != b"beside"}


@pytest.mark.parametrize(
    ("what", "kind", "call"),
    [(what, kind, call) for what, (kinds, calls, _, _) in CORRUPT.items() for kind in kinds for call in calls],
)
def test_the_call_that_reads_it_fails_and_nothing_else_does(
    real: Backend, what: str, kind: str, call: Callable[[Any], object]
) -> None:
    context = real.context()
    _, _, says, prepare = CORRUPT[what]
    with context.lock("beside", timeout=3.0, renew_every=0.05) as beside:
        connects = context.stats().connects
        for step in prepare:
            step(real.view)
            before = everything(real.view)
            with pytest.raises(LockServerError, match=rf"{says}.*\(lock 'order'\)"):
                call(make(context, kind, NAME, timeout=3.0, renew_every=0.05))
            assert everything(real.view) == before
        renewals = beside.renewals
        eventually(lambda: beside.renewals > renewals, LONG_S)
        assert context.stats().connects == connects
