"""Blocks of leases, by themselves."""

from __future__ import annotations

import math
import sys

import pytest

from tests.lease.leases import granted
from wheel_lock.block import Block
from wheel_lock.lease import Event, Lease, State


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
