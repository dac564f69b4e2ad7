"""A lease, step by step: what may follow what, how long it is believed in, and why it ends."""

from __future__ import annotations

import copy
import math
import pickle
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lease.leases import LEGAL, Terms, granted, new_lease
from wheel_lock.block import Block
from wheel_lock.lease import (
    NO_OWNER,
    TRANSITIONS,
    Event,
    Lease,
    Limits,
    Owner,
    State,
    confirm_all,
    grant_all,
    local_deadline,
    mark_sent,
)
from wheel_lock.protocol.resp import lease_args

VALID = [State.HELD, State.RENEWING, State.OVERDUE, State.EXTENDING]


def renewing(*, limits: Limits | None = None, sent_at: float = 100.0) -> Lease:
    """A lease of 10 s from 100 s on, one renewal of which is unanswered."""
    lease = granted(sent_at, limits=limits)
    mark_sent([lease])
    return lease


def test_a_lease_can_be_neither_copied_nor_pickled() -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"the lease of .* cannot be copied or pickled.*export\(\) and adopt"):
            copied(granted(100.0))


# What may follow what


def test_the_table_is_exactly_what_may_follow_what() -> None:
    assert {(state.name, event.name): after.name for (state, event), after in TRANSITIONS.items()} == {
        (state, event): after for state, events in LEGAL.items() for event, after in events.items()
    }


def test_what_may_not_happen_is_refused_and_changes_nothing() -> None:
    for state, event in product(State, Event):
        lease = new_lease()
        lease.state = state
        after = LEGAL.get(state.name, {}).get(event.name)
        if after is None:
            assert not lease.try_transition(event)
            assert lease.state is state
            with pytest.raises(RuntimeError, match=f"{state.name} cannot take {event.name}"):
                lease.transition(event)
        else:
            assert (lease.try_transition if event in (Event.GRANTED, Event.RELEASE) else lease.transition)(event)
        assert lease.state.name == (after or state.name)


def test_a_lease_begins_without_an_owner() -> None:
    lease = new_lease()
    assert lease.state is State.PENDING
    assert lease.loss is None
    assert not lease.is_valid(-math.inf)
    assert not lease.is_valid(0.0)
    assert lease.owner is NO_OWNER
    assert not NO_OWNER.ended
    assert not Owner().ended


def test_a_lease_that_is_not_pending_cannot_be_granted() -> None:
    for state in set(State) - {State.PENDING}:
        lease = new_lease()
        lease.state = state
        with pytest.raises((RuntimeError, KeyError)):
            grant_all([lease], 100.0, 10.0, None)
        assert lease.state is state


@given(name=st.binary(min_size=1, max_size=512), token=st.binary(min_size=1, max_size=512))
def test_name_and_token_are_read_back_from_what_is_sent(name: bytes, token: bytes) -> None:
    lease = Lease("whatever the caller said", lease_args(name, token), Terms())
    assert lease.key == name
    assert lease.token == token


# The deadline


@given(sent_at=st.floats(0, 1e9), timeout_s=st.floats(0.01, 1e6))
def test_the_deadline_lies_before_the_expiry_counted_from_before_the_sending(sent_at: float, timeout_s: float) -> None:
    deadline = local_deadline(sent_at, timeout_s)
    assert deadline < sent_at + timeout_s
    assert deadline == pytest.approx(sent_at + timeout_s * 0.99 - 0.002)


def test_what_is_seen_of_a_grant_in_the_middle_of_it_is_no_lapse() -> None:
    seen: list[bool] = []

    class Watched(Lease):
        def __setattr__(self, attribute: str, value: object) -> None:
            super().__setattr__(attribute, value)
            if hasattr(self, "call_site"):  # the last one that a new lease gets
                seen.append(self.state <= State.EXTENDING and not self.is_valid(100.0))

    lease = Watched("order:42", lease_args(b"order:42", b"token"), Terms())
    grant_all([lease], 100.0, 10.0, None)
    assert lease.is_valid(100.0)
    assert len(seen) > 1
    assert not any(seen)


def test_only_four_states_are_valid_and_can_lapse() -> None:
    for state in State:
        lease = granted(100.0)
        lease.state = state
        assert lease.is_valid(101.0) == (state in VALID)
        lease.record_lapse()
        assert (lease.loss is not None) == (state in VALID)


# Confirmation


def test_a_renewal_that_is_confirmed_at_the_deadline_is_too_late_and_at_the_last_moment_in_time() -> None:
    lease = renewing()
    before = lease.deadline
    result = confirm_all([lease], 103.0, before, 10.0)
    assert (result.kept, result.other) == ([], [lease])
    assert lease.deadline == before
    assert lease.renewals == 0
    assert lease.state is State.RENEWING  # for the engine to end
    assert not lease.is_valid(before)
    now = math.nextafter(before, 0)
    assert confirm_all([lease], 103.0, now, 10.0).kept == [lease]
    assert lease.is_valid(now)


def test_a_batch_of_which_nothing_goes_on_had_no_time_left_to_speak_of() -> None:
    assert confirm_all([], 103.0, 104.0, 10.0).time_left_s == math.inf
    assert confirm_all([granted(100.0)], 103.0, 104.0, 10.0).time_left_s == math.inf


# Limits


def test_limits_may_be_shared_by_the_leases_of_one_call() -> None:
    limits = Limits(1, math.inf)
    first, second = granted(100.0, limits=limits), granted(100.0, limits=limits)
    mark_sent([first])
    confirm_all([first], 103.0, 104.0, 10.0)
    assert first.at_limit
    assert not second.at_limit


# Blocks of leases, by themselves


def block_of_three() -> tuple[Block, list[Lease]]:
    leases = [granted(100.0) for _ in range(3)]
    return Block(leases), leases


def test_a_block_does_not_keep_what_has_left() -> None:
    leases = [granted(100.0) for _ in range(3)]
    references = [sys.getrefcount(lease) for lease in leases]
    block = Block(tuple(leases))
    block.leave(leases[0])
    block.leave(leases[1])
    assert [sys.getrefcount(lease) for lease in leases] == [references[0], references[1], references[2] + 1]
    block.leave(leases[2])
    assert [sys.getrefcount(lease) for lease in leases] == references


def test_a_block_is_not_renewed_at_its_deadline_and_no_deadline_moves_back() -> None:
    block, leases = block_of_three()
    before = block.own_deadline
    block.move(Event.RENEWAL_SENT)
    assert block.confirm(103.0, before, 10.0) is None
    assert (block.state, block.own_deadline, leases[0].renewals) == (State.RENEWING, before, 0)
    assert block.confirm(90.0, math.nextafter(before, 0), 10.0) is not None
    assert block.own_deadline == before
    assert leases[0].is_valid(math.nextafter(before, 0))
    assert not leases[0].is_valid(before)


def test_blocks_move_by_the_table_of_leases() -> None:
    block, _ = block_of_three()
    with pytest.raises(KeyError):
        block.move(Event.CONFIRMED)
