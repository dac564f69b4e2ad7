"""Adoptions, one and many: what comes too late, what is refused at once, and what a silent node is not asked."""

from __future__ import annotations

import time

import pytest

from tests.engine.rig import Rig, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests import adopt
from wheel_lock.engine.requests.adopt import Adoption, AdoptMany
from wheel_lock.errors import ContextClosed, LockNotAcquired, LockTimeout
from wheel_lock.protocol.handoff import Handoff


def adoption(rig: Rig, name: str, hold_left: float | None = None) -> Adoption:
    """What is adopted; it may be held for so many seconds more."""
    until = None if hold_left is None else time.time() + hold_left
    handoff = Handoff(name, b"exporter", "lock", None, 3.0, 1.0, None, until, hold_left)
    return rig.lease(name), handoff.options(), handoff


def begin(rig: Rig, *adoptions: Adoption) -> AdoptMany:
    many = AdoptMany(rig.engine.leases, Future(lambda: None))
    rig.post(lambda: (many.add(adoptions), many.seal()))
    return many


def test_what_may_be_held_for_a_moment_only_is_released(rig: Rig) -> None:
    late = adoption(rig, "a", 0.01)
    many = begin(rig, late)
    rig.reply("adopt", integer(1))
    assert many._future.done
    assert isinstance(many.errors[late[0]], LockNotAcquired)
    assert rig.whats() == ["release_many"]


def test_what_is_adopted_is_released_when_the_caller_gives_up(rig: Rig) -> None:
    adoptions = [adoption(rig, name, 3.0) for name in names(2)]
    many = begin(rig, *adoptions)
    assert rig.whats() == ["adopt"] * 2
    rig.say(integer(1))
    assert list(rig.held) == [adoptions[0][0]]
    rig.post(many.give_up)
    assert sorted(name for command in rig.server.take() for name in command.names) == names(2)
    assert not rig.held


def test_a_node_that_does_not_answer_gets_no_more_adoptions(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "MOST_IN_FLIGHT", 1)
    adoptions = [adoption(rig, name) for name in names(3)]
    many = begin(rig, *adoptions)
    rig.server.one("adopt")
    rig.be_silent(rig.engine.options.response_timeout_s + 0.1)
    assert many._future.done
    assert [type(many.errors[lease]) for lease, _, _ in adoptions] == [LockTimeout] * 3
    assert "adopt" not in rig.whats()


def test_very_many_that_are_refused_at_once_are_refused_one_after_the_other(rig: Rig) -> None:
    rig.close_engine()
    adoptions = [adoption(rig, name) for name in names(2000)]
    many = begin(rig, *adoptions)
    assert many._future.done
    assert {type(error) for error in many.errors.values()} == {ContextClosed}
    assert len(many.errors) == 2000
