"""The table by which a wait queue decides when to try."""

from __future__ import annotations

import pytest

from wheel_lock.engine.waiting.decisions import DECISIONS, IN_FLIGHT, QueueAction, QueueEvent, QueueState

TRIES = {QueueAction.TRY, QueueAction.TRY_AT_PACE, QueueAction.TRY_PLAIN_AT_PACE, QueueAction.FOLLOW}
LOOKS = {QueueAction.LOOK, QueueAction.LOOK_LATER, QueueAction.PREPARE}
EVERY = [(state, event) for state in QueueState for event in QueueEvent]


@pytest.mark.parametrize(("state", "event"), EVERY)
def test_each_decision(state: QueueState, event: QueueEvent) -> None:
    action, following = DECISIONS[state][event]
    if state is QueueState.EMPTY:
        assert action is QueueAction.NOTHING, "nothing is sent without a waiter"
    if state is QueueState.HELD_HERE:
        assert action not in TRIES, "the lock is known to be held"
    if state in IN_FLIGHT and event is not QueueEvent.REFUSED:
        assert action is QueueAction.NOTHING, "a second try would be in flight"
        assert following is None or following in IN_FLIGHT
    if state not in IN_FLIGHT and event is QueueEvent.REFUSED:
        assert action is QueueAction.NOTHING, "no try is in flight"
    if event is QueueEvent.DUE and state is not QueueState.EMPTY and state not in IN_FLIGHT:
        assert action in TRIES | LOOKS, "otherwise nothing would come due again"
    if event is QueueEvent.REFUSED and state in IN_FLIGHT:
        assert action in TRIES | LOOKS, "the same"


@pytest.mark.parametrize("event", [QueueEvent.SUBSCRIBED, QueueEvent.MESSAGE, QueueEvent.RELEASED])
def test_a_wakeup_during_a_try_causes_another_one(event: QueueEvent) -> None:
    for state in IN_FLIGHT:
        following = DECISIONS[state][event].state or state
        assert DECISIONS[following][QueueEvent.REFUSED].action in TRIES
