"""Blocks of leases, by themselves."""

from __future__ import annotations

import math
import sys

import pytest

from tests.lease.leases import granted
from wheel_lock.block import Block, parts_of
from wheel_lock.lease import Event, Lease, State, local_deadline


def block_of_three() -> tuple[Block, list[Lease]]:
    leases = [granted(100.0) for _ in range(3)]
    return Block(leases), leases


def test_a_lease_that_leaves_has_the_deadline_the_renewals_and_the_state_of_its_block() -> None:
    block, leases = block_of_three()
    block.move(Event.RENEWAL_SENT)
    assert [lease.state for lease in leases] == [State.HELD] * 3
    assert block.confirm(103.0, 104.0, 10.0) == pytest.approx(local_deadline(100.0, 10.0) - 104.0)
    deadline = local_deadline(103.0, 10.0)
    assert [(lease.deadline, lease.renewals) for lease in leases] == [(deadline, 1)] * 3
    block.leave(leases[0])
    assert (leases[0].state, leases[0].deadline, leases[0].renewals) == (State.HELD, deadline, 1)
    block.move(Event.RENEWAL_SENT)
    block.leave(leases[1])
    assert (leases[1].state, leases[1].deadline) == (State.RENEWING, deadline)
    assert block.confirm(106.0, 107.0, 10.0) is not None
    assert [lease.renewals for lease in leases] == [1, 1, 2]
    assert [lease.deadline for lease in leases] == [deadline, deadline, local_deadline(106.0, 10.0)]
    assert (block.size, list(block.leases)) == (1, [leases[2]])


def test_a_block_does_not_keep_what_has_left() -> None:
    leases = [granted(100.0) for _ in range(3)]
    references = [sys.getrefcount(lease) for lease in leases]
    block = Block(tuple(leases))
    block.leave(leases[0])
    block.leave(leases[1])
    assert [sys.getrefcount(lease) for lease in leases] == [references[0], references[1], references[2] + 1]
    block.leave(leases[2])
    assert [sys.getrefcount(lease) for lease in leases] == references


def test_the_bytes_of_a_block_are_those_of_the_leases_that_are_left() -> None:
    block, leases = block_of_three()
    assert block.encoded() is block.encoded()
    assert block.encoded() == b"".join(lease.lease_args for lease in leases)
    block.leave(leases[1])
    assert block.encoded() == leases[0].lease_args + leases[2].lease_args
    assert list(block.split()) == [leases[0], leases[2]]
    assert block.encoded() == b""


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


@pytest.mark.parametrize(
    ("sizes", "blocks", "leases"),
    [
        ((500,), [500], 0),
        ((251, 500), [251, 500], 0),
        ((250,), [250], 0),
        ((250, 400), [400, 250], 0),
        ((250, 1), [], 251),
        ((501,), [], 501),
        ((501, 251), [251], 501),
        ((250, 250, 400), [400], 500),
        ((0,), [0], 0),
    ],
)
def test_which_blocks_are_merged(sizes: tuple[int, ...], blocks: list[int], leases: int) -> None:
    entries = [Block([granted(100.0) for _ in range(size)]) if size > 1 else granted(100.0) for size in sizes if size]
    if sizes == (0,):
        left = Block([lease := granted(100.0)])
        left.leave(lease)
        entries = [left]
    whole, others = parts_of(entries, 500)
    assert [block.size for block in whole] == blocks
    assert len(others) == leases
    assert {lease.block for lease in others} <= {None}
