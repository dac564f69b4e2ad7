"""The record of a process: the tokens that a command of it may have given a lock, in memory that outlives the process.

An entry is written before the command is put into a connection, not at the grant: so an acquire whose reply has not come,
and a place in a queue, are in it, too. It ends by a reply that says that the token is not there, by the export of the
lease, or when the key has expired. An entry too many is harmless, because a release is checked by its token; one that is
missing costs the timeout. The exception is an exported lease, whose token is its adopter's proof: its entry ends before
the text is returned.

A slot is written in this order: the arguments of the release, and then its first byte, which makes it an entry. A process
that is killed stops somewhere in that order, and the keeper reads when it is dead: so each entry is whole, or none.
Tokens that callers have chosen, and locks that outlive their holders on purpose, are never recorded.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from wheel_lock.keeper.entries import ENTRY, REGIONS
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.lock_types.base import LockType
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import wake_channel
from wheel_lock.protocol.scripts import Script


class Release(NamedTuple):
    """How a kind of entry is released.

    Attributes:
        script: The script, which releases many.
        channel: If it is not empty, the wake-up channel is not in the entry: it is this, and the name in braces.
    """

    script: Script
    channel: bytes = b""

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

_BRIEF = 1
_BRIEF_TYPES = (EXCLUSIVE, FENCED)
_NUMBER_OF = {release.script: number for number, release in enumerate(RELEASES, 1)}  # the last of those with a script

_BYTES = sum(size * slots for size, slots in REGIONS)
_type_of: Callable[[Lease], LockType] = attrgetter("group.lock_type")
_ttl_ms_of: Callable[[Lease], int] = attrgetter("group.timeout_ms")


class Record:
    """The entries of the leases of one engine, in a memory file.

    From the timer's thread; of a lease on the direct path from its caller's. Each step on a shared list or dict is one
    operation, and there is no direct path without a GIL.

    Args:
        on_full: Called when an entry finds no room: that lease will not be released after a crash.

    Attributes:
        file: The descriptor of the memory file.

    Raises:
        OSError: The system has no memory for it.
    """

    def __init__(self, on_full: Callable[[], object]) -> None:
        self.file: int = os.memfd_create("wheel_lock-record", os.MFD_CLOEXEC)
        os.truncate(self.file, _BYTES)
        self._memory = mmap.mmap(self.file, _BYTES)
        self._on_full = on_full
        self._slots: dict[Lease, tuple[int, int]] = {}  # the region and the place of each entry
        self._free: list[list[int]] = [[] for _ in REGIONS]
        self._starts = [sum(size * slots for size, slots in REGIONS[:region]) for region in range(len(REGIONS))]
        self._next = [itertools.count().__next__ for _ in REGIONS]  # the first slot of a region that was never used

    @property
    def empty(self) -> bool:
        """True if it has no entries."""
        return not self._slots

    @property
    def longest_s(self) -> float:
        """The longest time-to-live of an entry's lease, in seconds."""
        return max((_ttl_ms_of(lease) for lease in list(self._slots)), default=0) / 1000

    def begin(self, leases: Iterable[Lease]) -> None:
        """Write entries for the leases that a command may grant, before it is sent. Those that have one keep it."""
        slots = self._slots
        for lease in leases:
            if lease not in slots:
                lock_type, body = _type_of(lease), lease.lease_args
                if lock_type in _BRIEF_TYPES and b"{" not in body and b"}" not in body:
                    self._begin(lease, _BRIEF, body)
                elif lock_type.dies_with_holder:
                    call = lock_type.release_many([lease])
                    assert call.script is not None
                    self._begin(lease, _NUMBER_OF[call.script], call.body)

    def _begin(self, lease: Lease, kind: int, body: bytes) -> None:
        entry = ENTRY.pack(len(body), _ttl_ms_of(lease)) + body
        length = len(entry) + 1
        region = 0
        while region < len(REGIONS) and REGIONS[region][0] < length:
            region += 1
        at = self._take(region) if region < len(REGIONS) else None
        if at is None:
            self._on_full()
            return
        self._slots[lease] = (region, at)
        memory = self._memory
        memory[at + 1 : at + length] = entry
        memory[at] = kind

    def _take(self, region: int) -> int | None:
        """Return a free slot of a region; None if there is none."""
        if self._free[region]:
            try:
                return self._free[region].pop()
            except IndexError:
                pass  # another thread was quicker
        (size, slots), number = REGIONS[region], self._next[region]()
        if number < slots:
            return self._starts[region] + number * size
        self._sweep()
        return self._free[region].pop() if self._free[region] else None

    def _sweep(self) -> None:
        """End the entries of leases that have ended while no alarm could be set, as when the timer's thread had died."""
        over = (State.RELEASED, State.LOST, State.REFUSED, State.EXPORTED)
        self.end([lease for lease in list(self._slots) if lease.state in over])

    def end(self, leases: Sequence[Lease]) -> None:
        """End the entries of leases whose tokens are at the server no more, or are another's to release."""
        slots, memory, free = self._slots, self._memory, self._free
        for lease in leases:
            slot = slots.pop(lease, None)
            if slot is not None:
                region, at = slot
                memory[at] = 0
                free[region].append(at)

    def clear(self) -> None:
        """End all entries: what is held stays, whatever the keeper hears of this process."""
        self.end(list(self._slots))

    def leave(self) -> None:
        """In a forked child: let go of the parent's memory. What the fork has interrupted cannot write to it any more."""
        self._slots = {}
        self._memory.close()

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)  # the keeper has a descriptor of its own
