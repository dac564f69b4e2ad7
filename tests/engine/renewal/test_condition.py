"""The condition of a node: what shows it, and what may be sent there, in any order of events."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.rig import Rig
from wheel_lock.engine.renewal.retries import AWAY, NEXT, REJECTING, WELL, Condition, Retries, Sign
from wheel_lock.lock_types import EXCLUSIVE

SIGNS = st.lists(st.sampled_from(Sign))
OF_RENEWALS = tuple(sign for sign in Sign if sign not in (Sign.TROUBLE, Sign.READY))


def after(signs: Iterable[Sign], condition: Condition = AWAY) -> Condition:
    for sign in signs:
        condition = NEXT.get((condition, sign), condition)
    return condition


@given(before=SIGNS, replies=st.lists(st.sampled_from(OF_RENEWALS)))
def test_only_the_node_itself_says_whether_it_is_there(before: list[Sign], replies: list[Sign]) -> None:
    """A late reply on a connection that is silent does not count, and no reply makes a node go away."""
    assert after([*before, Sign.TROUBLE, *replies]) is AWAY
    assert after([*before, Sign.READY]) is WELL
    assert after([*before, Sign.READY, *replies]) is not AWAY


@given(before=SIGNS, replies=st.lists(st.sampled_from([Sign.REFUSED, Sign.ALL_NOT_NOW, Sign.OTHERWISE])))
def test_a_server_that_rejects_is_probed_until_it_has_executed_something(
    before: list[Sign], replies: list[Sign]
) -> None:
    condition = after([*before, Sign.READY, Sign.REFUSED, *replies])
    assert condition.probes
    assert not condition.accepts
    assert after([Sign.EXECUTED], condition) is after([Sign.GRANTED], condition) is WELL


@given(before=SIGNS, replies=st.lists(st.sampled_from([Sign.ALL_NOT_NOW, Sign.GRANTED, Sign.EXECUTED])))
def test_a_proxy_is_probed_until_a_call_is_answered_otherwise(before: list[Sign], replies: list[Sign]) -> None:
    condition = after([*before, Sign.READY, Sign.ALL_NOT_NOW, *replies])
    assert condition.probes
    assert condition.accepts  # the servers behind it do not depend on each other
    assert after([Sign.OTHERWISE], condition) is WELL


def test_each_condition_is_reached_and_left() -> None:
    assert set(NEXT.values()) == {before for before, _ in NEXT} == set(Condition)
    assert all(before is not condition for (before, _), condition in NEXT.items())


@given(signs=SIGNS)
def test_what_rests_is_due_again_when_the_node_becomes_well(signs: list[Sign]) -> None:
    with Rig() as rig:
        lease, shard = rig.lease("a"), rig.engine.router.renewer
        retries = Retries(shard, rig.engine.leases, lambda: None)
        for sign in signs:
            before = retries.condition
            retries.resting.add(lease)
            retries.refused[EXCLUSIVE.renew] = None
            resumed = retries.note(sign)
            assert resumed == (retries.condition is WELL and (before is not WELL or sign is Sign.READY))
            assert (lease in retries.resting) is not resumed
            assert bool(retries.refused) is not (resumed and sign in (Sign.READY, Sign.GRANTED))


def test_a_script_that_is_refused_again_while_others_are_executed_stops_no_others(rig: Rig) -> None:
    retries = Retries(rig.engine.router.renewer, rig.engine.leases, lambda: None)
    retries.note(Sign.READY)
    retries.note_refused(EXCLUSIVE.renew)
    assert retries.condition is REJECTING
    retries.note(Sign.EXECUTED)  # of another script
    retries.note_refused(EXCLUSIVE.renew)
    assert retries.condition is WELL
