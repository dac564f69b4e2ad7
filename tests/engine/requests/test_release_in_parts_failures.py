"""Failures and interruptions between the parts of a release, and in them: none of it stays held, and no caller waits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.engine.requests.parts import (
    MANY,
    PART,
    half_released,
    post_close,
    post_release,
    released,
    turn_times,
    turn_until,
)
from tests.engine.rig import BUG, FINE, TAKEN, Command, Rig, array, breaking, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.engine.requests.bulk import BulkBatch, BulkOperation
from wheel_lock.engine.requests.bulk_operations import AcquireMany
from wheel_lock.errors import LockUnavailable, LossReason
from wheel_lock.lease import State
from wheel_lock.options import lock_options

pytestmark = pytest.mark.usefixtures("small_parts")


def test_nothing_of_it_is_left_in_a_forked_child(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    half_released(rig, leases)
    sent = rig.everything_sent()
    rig.fork()
    rig.go_on(5.0)
    assert rig.everything_sent() == sent
    assert rig.believes(rig.hold("a", 30.0))


@contextmanager
def strike(owner: Any, method: str, count: int, error: BaseException) -> Iterator[None]:
    """Have a method raise ``error`` in place of its ``count``-th call, in a ``with``."""
    call, calls = getattr(owner, method), itertools.count(1)

    def struck(*arguments: Any) -> Any:
        if next(calls) == count:
            raise error
        return call(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, method, struck)
        yield


def test_a_failure_in_a_part_loses_the_rest_and_no_caller_waits(rig: Rig) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = half_released(rig, leases)
    with breaking(rig.engine.leases, "begin_release_many"):
        rig.timer.turn()
    turn_until(rig, lambda: future.done)
    assert isinstance(future.error, LockUnavailable)
    assert rig.reasons == [(name, LossReason.INTERNAL_ERROR) for name in names(MANY)[PART:]]
    assert not rig.held
    assert rig.failures
    rig.failures.clear()


@pytest.mark.rig(batch_size=PART)
@pytest.mark.parametrize("place", ["begin_release_many", "unhold"])
def test_a_failure_in_the_reply_that_undoes_an_acquire_leaves_nothing_held(rig: Rig, place: str) -> None:
    leases = [rig.lease(name, 30.0) for name in names(MANY)]
    future: Future[None] = Future(lambda: None)
    bulk = AcquireMany(rig.engine.leases, lock_options(30.0), future, all_or_nothing=True)
    for work in (partial(bulk.begin, len(leases)), partial(bulk.add, leases), bulk.seal):
        rig.post(work)
    assert len(rig.server.take()) == MANY // PART
    rig.say(FINE * (MANY // PART - 1))
    assert len(rig.held) == MANY - PART
    rig.server.say(array(1, TAKEN))
    with strike(rig.engine.leases, place, 1, BUG):
        rig.timer.turn()
    turn_until(rig, lambda: future.done)
    assert not rig.held
    assert not any(map(rig.believes, leases))
    assert rig.failures
    rig.failures.clear()


# Interruptions on a timer without a thread


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    "place",
    [
        ("leases", "begin_release_many"),
        ("leases", "unhold"),
        (BulkOperation, "_backlog_of"),
        (BulkOperation, "pump"),
        (BulkBatch, "start"),
        ("timer", "go_on_with"),
    ],
    ids=lambda place: place[1],
)
def test_an_interrupted_part_raises_and_all_of_it_is_released_nevertheless(
    rig: Rig, place: tuple[Any, str], count: int
) -> None:
    leases = rig.hold_many(names(MANY), 30.0)
    future = post_release(rig, leases)
    owner, method = place
    if owner == "leases":
        owner = rig.engine.leases
    elif owner == "timer":
        owner = rig.timer
    commands: list[Command] = []
    with strike(owner, method, count, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        turn_times(rig, count)
    assert not future.done
    commands += turn_until(rig, lambda: future.done)
    assert released(commands) == Counter(names(MANY))
    assert future.result() == {}
    assert {lease.state for lease in leases} == {State.RELEASED}
    assert not rig.held
    assert rig.told == []


def test_an_interrupted_part_of_a_close_leaves_none_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "_LOSSES_A_TURN", PART)
    with Rig(release_on_close=False) as rig:
        leases = rig.hold_many(names(MANY), 30.0)
        closed = post_close(rig)
        rig.timer.turn()
        with strike(rig.engine.leases, "unhold", 3, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            rig.timer.turn()
        turn_until(rig, lambda: closed.done)
        assert not any(map(rig.believes, leases))
        assert {lease.loss for lease in leases} == {LossReason.CONTEXT_CLOSED}
