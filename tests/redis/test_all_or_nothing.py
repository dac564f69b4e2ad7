"""`acquire_many(..., all_or_nothing=True)`: all of the locks or none, and where it is none, nothing is left."""

from __future__ import annotations

import pytest
import redis

from tests.support.backend import BOTH, Backend, Losses, none_left, of
from tests.support.background import Background
from tests.support.callers import Caller
from tests.support.waiting import eventually
from wheel_lock import (
    LockContext,
    LockLost,
    LossReason,
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


def test_the_terms_hold_for_all(backend: Backend) -> None:
    context, clock = backend.stepped_context()
    losses = Losses()
    locks = context.acquire_many(FEW, 20.0, all_or_nothing=True, max_renewals=1, on_lost=losses)
    clock.advance(60.0)
    assert {lock.lost for lock in of(locks)} == {LossReason.RENEWAL_LIMIT}
    assert len(losses.all_told()) == len(FEW)


# Failures


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
