"""Data under a lock's name, or nonsense in a key that accompanies it: an error to the call that reads it, and to no other.

Nothing of it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import redis

from tests.support.backend import BOTH, LONG_S, Backend
from tests.support.background import Background
from tests.support.lock_types import NAME, make
from tests.support.logged import Log
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError
from wheel_lock.protocol.keys import fence_key, permits_key, queue_keys

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


def holders(members: Mapping[str, float]) -> Prepare:
    return lambda view: (view.delete(NAME), view.zadd(NAME, members))


NO_TIMES = (float("inf"), 1e300, 2.0**53)


def acquires(lock: Any) -> object:
    return lock.acquire(blocking=False)


def waits(lock: Any) -> object:
    return lock.acquire(blocking_timeout=LONG_S)


def looks(lock: Any) -> object:
    return lock.locked()


DATA: dict[str, Prepare] = {
    "string": lambda view: view.set(NAME, "value"),
    "hash": lambda view: view.hset(NAME, "field", "value"),
    "list": lambda view: view.rpush(NAME, "value"),
    "set": lambda view: view.sadd(NAME, "value"),
    "zset": lambda view: view.zadd(NAME, {"value": 1e15}),
    "stream": lambda view: view.xadd(NAME, {"field": "value"}),
}
KEPT = {
    "string": ["exclusive", "polled exclusive", "fenced exclusive", "fair", "multi"],
    "hash": ["reentrant"],
    "zset": ["read", "write", "semaphore"],
}
"""What locks of a kind keep under their names."""
OF_USERS: dict[str, dict[str, float]] = {
    "a score board": {"alice": 10.0, "bob": 20.0},
    "a list of dates": {"alice": 1.7e15, "bob": 1.8e15},
    "times in seconds": {"alice": 1.7e9, "p:bob": 1.8e9},
    "one letter": {"t": 3.0},
    "what looks like a waiter": {"i:0123456789abcdefghijkl": 3.0},
}
HASHES: list[dict[Any, Any]] = [{"name": "Alice", "born": "1990"}, {"name": "Alice"}, {"cart:open": "1"}]
Corruption = tuple[list[str], tuple[Callable[[Any], object], ...], str, list[Prepare]]
CORRUPT: dict[str, Corruption] = {
    **{
        f"a {data} for a {kept}": (
            kinds,
            (waits,),
            f"^WRONGTYPE .*a {data} that does not expire.* a {kept} ",
            [DATA[data]],
        )
        for kept, kinds in KEPT.items()
        for data in DATA
        if data != kept
    },
    "a hash of a user's own": (
        ["reentrant", "fenced reentrant"],
        (acquires, waits),
        "a hash of other fields that does not expire",
        [lambda view, data=data: (view.delete(NAME), view.hset(NAME, mapping=data)) for data in HASHES],  # type: ignore[misc]
    ),
    "a sorted set of a user's own": (
        KEPT["zset"],
        (waits,),
        "a zset of other members that does not expire",
        [holders(data) for data in OF_USERS.values()],
    ),
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


def lock_of(context: LockContext, kind: str) -> Any:
    _, polled, plain = kind.rpartition("polled ")
    terms: dict[str, Any] = {"retry_every": 0.02} if polled else {}
    return make(context, plain, timeout=3.0, renew_every=0.05, **terms)


def everything(view: redis.Redis) -> dict[Any, Any]:
    """What is on the server, but the lock that is held beside."""
    keys: Any = view.keys("*")
    return {key: (view.dump(key), view.pttl(key) == -1) for key in keys if key != b"beside"}


def fails_and_nothing_else_does(backend: Backend, what: str, kind: str, call: Callable[[Any], object]) -> None:
    context, view = backend.context(), backend.view
    _, _, says, prepare = CORRUPT[what]
    with context.lock("beside", timeout=3.0, renew_every=0.05) as beside:
        connects = context.stats().connects
        for step in prepare:
            step(view)
            before = everything(view)
            with pytest.raises(LockServerError, match=rf"{says}.*\(lock 'order:42'\)"):
                call(lock_of(context, kind))
            if what.endswith("for a string"):  # a waiter for a fair lock has had a place in the queue
                eventually(lambda: everything(view) == before, LONG_S, "nothing is left of the waiter")  # noqa: B023
            assert everything(view) == before
        renewals = beside.renewals
        eventually(lambda: beside.renewals > renewals, LONG_S)
        assert context.stats().connects == connects


CASES = [(what, kind, call) for what, (kinds, calls, _, _) in CORRUPT.items() for kind in kinds for call in calls]


@BOTH
@pytest.mark.parametrize(("what", "kind", "call"), [case for case in CASES if " for a " in case[0]])
def test_data_is_an_error_that_names_its_type(
    backend: Backend, what: str, kind: str, call: Callable[[Any], object]
) -> None:
    fails_and_nothing_else_does(backend, what, kind, call)


@pytest.mark.parametrize(("what", "kind", "call"), [case for case in CASES if " for a " not in case[0]])
def test_the_call_that_reads_it_fails_and_nothing_else_does(
    real: Backend, what: str, kind: str, call: Callable[[Any], object]
) -> None:
    fails_and_nothing_else_does(real, what, kind, call)


# What expires may be another kind of lock


@pytest.mark.parametrize("data", OF_USERS)
@pytest.mark.parametrize("kind", KEPT["zset"])
def test_a_sorted_set_of_a_users_own_that_expires_stays_as_it_is(real: Backend, kind: str, data: str) -> None:
    context, clock = real.stepped_context()
    real.view.zadd(NAME, OF_USERS[data])
    real.view.pexpire(NAME, 3_600_000)
    acquiring = Background(lambda: make(context, kind).acquire(blocking_timeout=60.0))
    eventually(lambda: context.stats().waiting == 1)
    clock.advance(70.0)
    assert not acquiring.result()
    context.close()  # after whatever cleans up behind it
    kept: Any = real.view.zrange(NAME, 0, -1, withscores=True)
    assert kept == [(name.encode(), score) for name, score in OF_USERS[data].items()]
    assert real.view.pttl(NAME) > 3_000_000


def test_the_one_try_of_a_plain_lock_is_refused_as_redis_py_is(real: Backend) -> None:
    DATA["list"](real.view)
    assert not real.context().lock(NAME).acquire(blocking=False)
    assert real.context().acquire_many([NAME]) == {NAME: None}


@pytest.mark.parametrize(("kept", "kind"), [(kept, kind) for kept, kinds in KEPT.items() for kind in kinds])
def test_expiring_data_is_waited_for_with_a_warning(real: Backend, log: Log, kept: str, kind: str) -> None:
    data = "hash" if kept != "hash" else "list"
    DATA[data](real.view)
    real.view.pexpire(NAME, 60_000)
    waiting = Background(lock_of(real.context(), kind).acquire)
    eventually(lambda: log.said("waiting for the lock"), LONG_S)
    real.view.pexpire(NAME, 100)
    assert waiting.result()
    [(level, found)] = [line for line in log.lines if "waiting for the lock" in line[1]]
    assert level == "WARNING"
    assert f"holds a {data}," in found
    assert f"keeps a {kept}" in found
