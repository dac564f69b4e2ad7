"""`acquire_many(..., all_or_nothing=True)`: all of the locks or none, and where it is none, nothing is left."""

from __future__ import annotations

import random
import threading

import pytest
import redis

from tests.support.backend import BOTH, Backend, Losses, connected, interrupted, none_left, of
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
    LockLost,
    LockServerError,
    LockTimeout,
    LockUnavailable,
    LossReason,
    TooManyLocks,
)

pytestmark = pytest.mark.servers("real")

NAMES = [f"shard:{number}" for number in range(9500)]  # several parts of 4,000 names, each of several chunks of 500
FEW = NAMES[:50]


@BOTH
def test_all_are_acquired_where_all_are_free(backend: Backend, context: LockContext) -> None:
    locks = context.acquire_many(FEW + FEW[:5], all_or_nothing=True)
    assert list(locks) == FEW
    assert all(lock.is_held for lock in of(locks))
    assert {name: backend.view.get(name) for name in FEW} == {lock.name: lock.token for lock in of(locks)}
    context.release_many(locks.values())
    assert none_left(backend, context)


@BOTH
def test_none_is_acquired_where_one_is_taken(backend: Backend, me: Caller) -> None:
    for taken in (FEW[0], FEW[25], FEW[-1]):
        backend.view.set(taken, "somebody", px=60_000)
        assert me.locks.acquire_many(FEW, all_or_nothing=True) == dict.fromkeys(FEW)
        assert backend.view.keys() == [taken.encode()]  # at once: all has been undone by now
        assert backend.view.get(taken) == b"somebody"
        assert backend.view.pttl(taken) > 50_000
        assert me.context.stats().held == 0
        backend.view.delete(taken)
    assert len(of(me.locks.acquire_many(FEW, all_or_nothing=True))) == len(FEW)


def test_one_that_this_process_holds_is_taken_like_any_other(backend: Backend, context: LockContext) -> None:
    with context.lock(FEW[7]) as lock:
        assert context.acquire_many(FEW, all_or_nothing=True) == dict.fromkeys(FEW)
        assert lock.is_held
        assert lock.owned()
    assert none_left(backend, context)


@pytest.mark.parametrize("taken", [0, 499, 4000, 9499])
def test_none_is_acquired_wherever_the_taken_one_is_among_thousands(real: Backend, taken: int) -> None:
    context = real.context()
    real.view.set(NAMES[taken], "somebody")
    locks = context.acquire_many(NAMES, all_or_nothing=True)
    assert locks == dict.fromkeys(NAMES)
    assert real.view.dbsize() == 1
    assert context.stats().held == 0
    assert context._engine.leases.acquiring == 0


def test_an_early_refusal_spares_the_server_the_rest(real: Backend) -> None:
    context, names = real.context(), [f"shard:{number}" for number in range(40_000)]
    real.view.set(names[0], "somebody")
    before = real.view.info("stats")["total_net_input_bytes"]
    context.acquire_many(names, all_or_nothing=True)
    sent = real.view.info("stats")["total_net_input_bytes"] - before
    assert sent < 40_000 * 30, "not even half of them have been asked for"


def test_all_of_thousands_are_acquired_and_kept(real: Backend) -> None:
    context, clock = real.stepped_context()
    losses = Losses()
    locks = of(context.acquire_many(NAMES[:4500], all_or_nothing=True, timeout=20.0, on_lost=losses))
    clock.advance(7.0)
    assert all(lock.is_held and lock.renewals >= 1 for lock in locks)
    context.release_many(locks)
    assert losses.all_told() == []
    assert none_left(real, context)


def test_the_terms_hold_for_all(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    locks = context.acquire_many(FEW, 20.0, all_or_nothing=True, max_renewals=1, on_lost=losses)
    clock.advance(60.0)
    assert {lock.lost for lock in of(locks)} == {LossReason.RENEWAL_LIMIT}
    assert len(losses.all_told()) == len(FEW)


def test_nothing_is_acquired_beyond_the_limit_of_the_context(backend: Backend) -> None:
    context = backend.context(max_held=49)
    with pytest.raises(TooManyLocks):
        context.acquire_many(FEW, all_or_nothing=True)
    assert none_left(backend, context)
    context.release_many(context.acquire_many(FEW[1:], all_or_nothing=True).values())


# Failures


def test_a_server_that_refuses_is_an_error_and_leaves_nothing(fresh: Backend) -> None:
    context = fresh.context()
    context.lock("warm-up").locked()
    fresh.view.config_set("maxmemory", 1)
    with pytest.raises(LockServerError, match="OOM"):
        context.acquire_many(FEW, all_or_nothing=True)
    fresh.view.config_set("maxmemory", 0)
    assert none_left(fresh, context)


@pytest.mark.parametrize("reply_bytes", [0, 3, 9])
def test_a_connection_that_breaks_meanwhile_does_not_matter(real: Backend, reply_bytes: int) -> None:
    proxy = real.proxy()
    context = real.context_through(proxy)
    context.lock("warm-up").locked()
    proxy.cut_after_bytes(reply_bytes, "to_client")
    locks = of(context.acquire_many(NAMES, all_or_nothing=True))
    assert all(real.view.get(lock.name) == lock.token for lock in locks[::500])
    context.release_many(locks)
    assert none_left(real, context)


def test_a_server_that_falls_silent_leaves_nothing(real: Backend) -> None:
    proxy = real.proxy()
    context = connected(real.context_through(proxy, response_timeout=0.3))
    proxy.drop_replies()
    with pytest.raises((LockTimeout, LockUnavailable)):
        context.acquire_many(NAMES, all_or_nothing=True)
    proxy.heal()
    eventually(lambda: none_left(real, context))


def test_a_caller_who_is_interrupted_leaves_nothing(real: Backend) -> None:
    context = real.context()
    with interrupted(lambda: real.view.dbsize() > 0):
        while True:
            context.release_many(context.acquire_many(NAMES, all_or_nothing=True).values())
    eventually(lambda: none_left(real, context))


def test_a_context_that_is_closed_meanwhile_leaves_nothing(real: Backend) -> None:
    context = real.context()
    acquiring = Background(lambda: context.acquire_many(NAMES, all_or_nothing=True))
    eventually(lambda: real.view.dbsize() > 0)
    context.close()
    eventually(lambda: real.view.dbsize() == 0)
    try:
        locks = acquiring.result()
    except (redis.exceptions.LockError, LockLost):
        return
    assert not any(lock is not None and lock.is_held for lock in locks.values())


# Those who want overlapping sets


def test_of_those_who_want_overlapping_sets_no_two_succeed_at_once_and_none_waits_for_ever(backend: Backend) -> None:
    contexts = [backend.context() for _ in range(3)]
    inside: set[str] = set()
    guard, successes = threading.Lock(), [0] * 6

    def work(number: int) -> None:
        chosen, context = random.Random(number), contexts[number % 3]
        for _ in range(25):
            names = chosen.sample(FEW[:12], 5)
            locks = context.acquire_many(names, all_or_nothing=True)
            if None in locks.values():
                assert set(locks.values()) == {None}
                continue
            with guard:
                assert inside.isdisjoint(names)
                inside.update(names)
                successes[number] += 1
            with guard:
                inside.difference_update(names)
            context.release_many(locks.values())

    calls = [Background(lambda number=number: work(number)) for number in range(6)]  # type: ignore[misc]
    for call in calls:
        call.result()
    assert sum(successes) > 0
    assert backend.view.dbsize() == 0
    assert [none_left(backend, context) for context in contexts] == [True] * 3
