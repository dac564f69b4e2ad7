"""The record of a process: the tokens that a command of it may have given a lock, in memory that outlives the process.

An entry is written before the command is put into a connection, not at the grant: so an acquire whose reply has not come,
and a place in a queue, are in it, too. It ends by a reply that says that the token is not there, by the export of the
lease, or when the key has expired. An entry too many is harmless, because a release is checked by its token; one that is
missing costs the timeout. The exception is an exported lease, whose token is its adopter's proof: its entry ends before
the text is returned.

A slot is written in this order: the arguments of the release, and then its first byte, which makes it an entry. A process
that is killed stops somewhere in that order, and the keeper reads when it is dead: so each entry is whole, or none.

What one command asks for in bulk is a block: one entry for all of it. When few of its leases are left, or one is exported,
the others get entries of their own first, and then the block ends. So its memory is bounded by what is held: four times
what its leases that are left take, or a page.
Tokens that callers have chosen, and locks that outlive their holders on purpose, are never recorded.
"""

from __future__ import annotations

import itertools
import mmap
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple

from wheel_lock.keeper.entries import BLOCK, BRIEF, ENTRY, REGIONS
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.lock_types.base import LockType
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import CLOSING, OPENING, wake_channel
from wheel_lock.protocol.scripts import Script
from wheel_lock.rows import Rows, encoded, like, unmade


class Release(NamedTuple):
    """How a kind of entry is released."""

    script: Script  # which releases many
    channel: bytes = b""  # if there is one, the wake-up channel is not in the entry: it is this, and the name in braces

    def described(self, capability: int, *, keyed: bool) -> dict[str, object]:
        """Return what a keeper is passed of it; with ``keyed`` the script is about one lease, and declares its keys."""
        single = self.script.single
        assert single is not None
        form = (single.script if keyed else self.script).form(capability)
        keys = list(single.keys) if keyed else []
        words = {"keys": keys, "arguments": single.arguments, "channel": self.channel.decode()}
        return {"sha1": form.sha1, "source": form.source.decode(), **words}


RELEASES: tuple[Release, ...] = (
    Release(scripts.RELEASE_MANY, wake_channel(b"x").removesuffix(b"{x}")),
    Release(scripts.RELEASE_MANY),
    Release(scripts.RELEASE_REENTRANT_MANY),
    Release(scripts.RELEASE_FAIR),
    Release(scripts.RELEASE_HOLDERS),
)
"""The kinds of entries; each begins with the number of its kind, from 1. Most are of the first, which is cheap to write."""

_BRIEF_TYPES = (EXCLUSIVE, FENCED)
_NUMBER_OF = {release.script: number for number, release in enumerate(RELEASES, 1)}  # the last of those with a script

_LEAST = 32  # leases of a block, which takes a page of memory at least
_FEW = 4  # a block ends when less than this part of its leases is left

_HEAD = 1 + ENTRY.size
_OF_BLOCKS = len(REGIONS) - 1
_ttl_ms_of: Callable[[Lease], int] = attrgetter("group.timeout_ms")
_OVER = (State.RELEASED, State.LOST, State.REFUSED, State.EXPORTED)

_Slot = tuple[int, list[Any]]
"""A slot: its place in the memory, and the free slots of its region. One object for as long as the record lasts."""


@dataclass(eq=False, slots=True)
class _Block:
    """The entry of many leases. Timer's thread only."""

    slot: _Slot
    leases: Sequence[Lease]  # all that it has begun with; ``Lease.recorded`` of those that are left is the block
    left: int
    few: int  # if less are left it ends
    ttl_ms: int


class Record:
    """The entries of the leases of one engine, in a memory file.

    From the timer's thread; of a lease on the direct path from its caller's. Each step on a shared list or dict is one
    operation, and there is no direct path without a GIL.

    Raises:
        OSError: The system has no memory for it.
    """

    def __init__(self, on_full: Callable[[], object]) -> None:
        self.file: int = os.memfd_create("wheel_lock-record", os.MFD_CLOEXEC)
        length = sum(size * slots for size, slots in REGIONS)
        os.truncate(self.file, length)
        self._memory = mmap.mmap(self.file, length)
        self._on_full = on_full  # called when an entry finds no room: that lease will not be released after a crash
        self._slots: dict[Lease, _Slot] = {}  # of the entries of single leases
        self._blocks: dict[_Block, None] = {}
        self._free: list[list[_Slot]] = [[] for _ in REGIONS]
        self._rooms = [size - _HEAD for size, _ in REGIONS]
        self._packs = [Struct(f"{ENTRY.format}{room}s").pack_into for room in self._rooms]
        self._starts = [sum(size * slots for size, slots in REGIONS[:region]) for region in range(len(REGIONS))]
        self._next = [itertools.count().__next__ for _ in REGIONS]  # the first slot of a region that was never used

    @property
    def empty(self) -> bool:
        """True if it has no entries."""
        return not self._slots and not self._blocks

    @property
    def longest_s(self) -> float:
        """The longest time-to-live of an entry's lease, in seconds."""
        of_blocks = [block.ttl_ms for block in list(self._blocks)]
        return max([*map(_ttl_ms_of, list(self._slots)), *of_blocks], default=0) / 1000

    def begin(self, leases: Sequence[Lease]) -> None:
        """Write entries for the leases of one group, before a command that may grant them is sent. Old entries stay."""
        slots = self._slots
        if unmade(leases):
            if like(leases).recorded is not None or self._begin_blocks(leases):
                return
        elif len(leases) >= _LEAST and slots.keys().isdisjoint(leases) and self._begin_blocks(leases):
            return
        for lease in leases:
            if lease.recorded is None and lease not in slots:
                self._begin_single(lease)

    def _begin_blocks(self, leases: Sequence[Lease]) -> bool:
        """Write blocks for all of the leases, and return True; return False if some of them need entries of their own."""
        group: Any = like(leases).group
        body, new = encoded(leases), unmade(leases) or all(lease.recorded is None for lease in leases)
        suits = group.lock_type in _BRIEF_TYPES and new and len(leases) >= _LEAST
        if not suits or OPENING in body or CLOSING in body:
            return False
        if len(body) > self._rooms[-1]:
            middle = len(leases) // 2
            return all([self._begin_blocks(leases[:middle]), self._begin_blocks(leases[middle:])])
        slot = self._take(_OF_BLOCKS)
        if slot is None:
            return False
        block = _Block(slot, leases, len(leases), max(1, len(leases) // _FEW), group.timeout_ms)
        self._blocks[block] = None
        for lease in (leases,) if type(leases) is Rows and not leases.made else leases:
            lease.recorded = block
        memory, at = self._memory, slot[0]
        memory[at + 1 : at + _HEAD + len(body)] = ENTRY.pack(len(body), block.ttl_ms) + body
        memory[at] = BLOCK
        return True

    def _begin_single(self, lease: Lease, slot: _Slot | None = None) -> None:
        body, group = lease.lease_args, lease.group  # type: Any, Any
        lock_type: LockType = group.lock_type
        kind = BRIEF
        if lock_type not in _BRIEF_TYPES or OPENING in body or CLOSING in body:
            if not lock_type.dies_with_holder:
                return
            call = lock_type.release_many([lease])
            assert call.script is not None
            kind, body = _NUMBER_OF[call.script], call.body
        length = len(body)
        region = 0 if length <= self._rooms[0] else bisect_left(self._rooms, length, 0, _OF_BLOCKS)
        if slot is None and region < _OF_BLOCKS:
            slot = self._take(region)
        if slot is None:
            self._on_full()
            return
        self._slots[lease] = slot
        memory, at = self._memory, slot[0]
        self._packs[region](memory, at + 1, length, group.timeout_ms, body)
        memory[at] = kind

    def _take(self, region: int) -> _Slot | None:
        """Return a free slot of a region; None if there is none."""
        free = self._free[region]
        try:
            return free.pop()
        except IndexError:
            pass  # also if another thread was quicker
        (size, slots), number = REGIONS[region], self._next[region]()
        if number < slots:
            return self._starts[region] + number * size, free
        if number % slots == 0:  # not for each that finds no room: all of them are looked at
            self._sweep(in_blocks=region == _OF_BLOCKS)
        return self._take(region) if free else None

    def _sweep(self, *, in_blocks: bool) -> None:
        """End the entries of leases that have ended while no alarm could be set, as when the timer's thread had died."""
        singles = (lease for lease in list(self._slots) if lease.recorded is None)  # else its block is about to end
        blocks = (block for block in self._blocks if not unmade(block.leases))
        some = [lease for block in blocks for lease in block.leases] if in_blocks else singles
        self.end([lease for lease in some if lease.state in _OVER])

    def end(self, leases: Sequence[Lease]) -> None:
        """End the entries of leases whose tokens are at the server no more, or are another's to release."""
        slots, memory = self._slots, self._memory
        few: dict[_Block, None] = {}
        for lease in leases:
            block: Any = lease.recorded
            if block is not None:
                lease.recorded = None
                block.left -= 1
                if block.left < block.few:
                    few[block] = None
            elif (slot := slots.pop(lease, None)) is not None:
                at, free = slot
                memory[at] = 0
                free.append(slot)
        for block in few:
            self._end_block(block)

    def hand_over(self, lease: Lease) -> None:
        """End the entry of an exported lease: no other entry has its token, either."""
        block: Any = lease.recorded
        if block is not None:
            self._end_block(block, lease)
            lease.recorded = None
        self.end((lease,))

    def _end_block(self, block: _Block, exported: Lease | None = None) -> None:
        """End a block behind new entries for the leases that are left. What was interrupted in here can be done again."""
        if block not in self._blocks:
            return  # it has ended; or is a parent's
        left = [lease for lease in block.leases if lease.recorded is block and lease is not exported]
        for lease in left:
            self._begin_single(lease, self._slots.get(lease))
        self._memory[block.slot[0]] = 0
        del self._blocks[block]
        for lease in left:
            lease.recorded = None
        block.slot[1].append(block.slot)

    def clear(self) -> None:
        """End all entries: what is held stays, whatever the keeper hears of this process."""
        self.end([*self._slots, *[lease for block in self._blocks for lease in block.leases]])

    def leave(self) -> None:
        """In a forked child: let go of the parent's memory. What the fork has interrupted cannot write to it any more."""
        self._slots, self._blocks = {}, {}
        self._memory.close()

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)  # the keeper has a descriptor of its own
