"""Watched locks on real servers: what happens to a key is noticed without a renewal, and nothing else is a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import redis

from tests.support.backend import Backend, Losses
from tests.support.redis_server import require_tracking
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LossReason
from wheel_lock.net.pubsub import InvalidationFeed

pytestmark = [pytest.mark.servers("real"), pytest.mark.settings(watch=True)]

NAME = "order:42"
UNHURRIED_S = 600.0
"""A lock of that is not due for renewal within any bound here, but for the renewal by which it is registered."""


@pytest.fixture(autouse=True, scope="module")
def tracking() -> None:
    require_tracking()


@pytest.fixture
def invalidated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The payloads of all invalidations that arrive in this process, in order."""
    seen: list[Any] = []
    take = InvalidationFeed._take

    def note(feed: InvalidationFeed, keys: object) -> None:
        seen.append(keys)
        take(feed, keys)

    monkeypatch.setattr(InvalidationFeed, "_take", note)
    return seen


def held(context: LockContext, kind: str = "lock", name: str = NAME, **terms: Any) -> tuple[Any, Losses]:
    """A lock that is held and registered, and what is said of its loss."""
    losses = Losses()
    lock = getattr(context, kind)(name, timeout=UNHURRIED_S, on_lost=losses, **terms)
    assert lock.acquire()
    registered([lock])
    return lock, losses


def registered(locks: Iterable[Lock | None]) -> None:
    """Wait until locks have been registered: by a read behind their first renewal, in the same write."""
    for lock in locks:
        assert lock is not None
        eventually(lambda: lock.renewals >= 1)  # noqa: B023


def reason(losses: Losses) -> LossReason:
    """The reason of the one loss that is reported, as soon as it is."""
    eventually(losses.delivered)
    (event,) = losses.delivered()
    return event.reason


def _make_a_list(view: redis.Redis) -> None:
    view.lpush("list", "1")
    view.rename("list", NAME)


CHANGES: dict[str, tuple[Callable[[redis.Redis], object], LossReason]] = {
    "deleted": (lambda view: view.delete(NAME), LossReason.KEY_GONE),
    "overwritten": (lambda view: view.set(NAME, "another's"), LossReason.TAKEN),
    "of another type": (_make_a_list, LossReason.TAKEN),
    "renamed": (lambda view: view.rename(NAME, "elsewhere"), LossReason.KEY_GONE),
    "expired": (lambda view: view.pexpire(NAME, -1), LossReason.KEY_GONE),
    "flushed": (lambda view: view.flushdb(), LossReason.KEY_GONE),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_key_is_noticed_without_a_renewal(backend: Backend, context: LockContext, change: str) -> None:
    lock, losses = held(context)
    assert context.stats().watching
    assert context.health().watching
    work, expected = CHANGES[change]
    work(backend.view)
    assert reason(losses) is expected
    assert lock.lost is expected
    assert not lock.is_held


def test_own_changes_are_not_reported(backend: Backend, context: LockContext, invalidated: list[Any]) -> None:
    witness, losses = held(context, name="witness")
    for kind in ("lock", "reentrant_lock", "fair_lock"):
        lock, _ = held(context, kind)
        lock.extend(5.0)
        lock.reacquire()
        eventually(lambda: lock.renewals >= 1)  # noqa: B023
        lock.release()
    context.release_many(context.acquire_many(["a", "b"], timeout=UNHURRIED_S).values())
    backend.view.delete("witness")
    assert reason(losses) is LossReason.KEY_GONE
    assert invalidated == [[b"witness"]]
    assert witness.lost
