"""The hashed timing wheel: entries in, due entries out. Integers only - no clock, no thread, no I/O.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 6, and Netty's HashedWheelTimer. An entry
belongs to slot ``deadline tick mod slots``. A slot keeps what is due when its turn comes next apart from what is due in
later rounds, so a turn takes the former as a whole and never looks at an entry that is not due for this round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar


class WheelEntry:
    """What can be scheduled: a base class, so that a timer costs no object beside the thing it is for.

    Attributes:
        tick: The deadline tick of the last ``schedule``; -1 before the first. It stays after the entry has come due.
    """

    __slots__ = ("tick",)

    tick: int


E = TypeVar("E", bound=WheelEntry)


class Wheel(Generic[E]):
    """A hashed timing wheel.

    Args:
        slots: How many slots: a power of two, at least 2. One rotation is as many ticks.
        now: The tick at which it begins.

    Raises:
        ValueError: ``slots`` is no power of two of at least 2.

    >>> class Timer(WheelEntry):
    ...     __slots__ = ()
    ...     def __init__(self): self.tick = -1
    >>> wheel, early, late = Wheel(slots=8), Timer(), Timer()
    >>> wheel.schedule(late, 20); wheel.schedule(early, 3)
    >>> wheel.next_due_tick(), wheel.advance(5) == [early], wheel.next_due_tick()
    (3, True, 20)
    >>> wheel.cancel(late), wheel.cancel(late), len(wheel)
    (True, False, 0)
    """

    __slots__ = ("_later", "_later_bits", "_later_first", "_mask", "_near", "_near_bits", "_now", "_slots", "_stale")

    def __init__(self, slots: int = 1024, now: int = 0) -> None:
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 2 or slots & (slots - 1):
            raise ValueError(f"slots must be a power of two of at least 2, not {slots!r}")
        self._slots = slots
        self._mask = slots - 1
        self._now = now
        # Keyed by the entry itself: a cancel removes exactly it, nothing dead stays behind, insertion order is kept.
        self._near: list[dict[E, None]] = [{} for _ in range(slots)]  # due within one rotation from now
        self._later: list[dict[E, None]] = [{} for _ in range(slots)]  # due in later rounds
        self._near_bits = 0  # one bit per occupied slot, touched only when a slot becomes empty or ceases to be
        self._later_bits = 0
        self._later_first: dict[int, int] = {}  # by slot: its first deadline in later rounds, or an earlier tick
        self._stale: set[int] = set()  # slots whose first deadline may be gone

    @property
    def now(self) -> int:
        """The last tick that :meth:`advance` has reached."""
        return self._now

    @property
    def slots(self) -> int:
        """The number of slots, which is the number of ticks in a rotation."""
        return self._slots

    # -- in ----------------------------------------------------------------------------------------------------------

    def schedule(self, entry: E, tick: int) -> None:
        """Have ``entry`` come due at ``tick``. O(1).

        Args:
            entry: Something that is not in the wheel.
            tick: Its deadline; one that has passed already becomes the next tick.

        Raises:
            ValueError: The entry is in the wheel.
        """
        now = self._now
        if entry.tick > now and entry in self:
            raise ValueError(f"the entry is in the wheel already, due at tick {entry.tick}")
        if tick <= now:
            tick = now + 1
        index = tick & self._mask
        if tick - now <= self._slots:
            slot = self._near[index]
            if not slot:
                self._near_bits |= 1 << index
            slot[entry] = None
        else:
            self._put_later(index, tick)[entry] = None
        entry.tick = tick

    def _put_later(self, index: int, tick: int) -> dict[E, None]:
        """Return the later rounds of a slot, noting that something due at ``tick`` is about to join them."""
        slot = self._later[index]
        if not slot:
            self._later_bits |= 1 << index
            self._later_first[index] = tick
            self._stale.discard(index)
        elif tick < self._later_first[index]:
            self._later_first[index] = tick
        return slot

    def schedule_many(self, entries: Sequence[E], tick: int) -> None:
        """Have all of ``entries``, none of which is in the wheel, come due at ``tick``. O(n), at a fraction of the price.

        Raises:
            ValueError: One of them is in the wheel; nothing has been scheduled then.
        """
        if not entries:
            return
        now = self._now
        for entry in entries:
            if entry.tick > now and entry in self:
                raise ValueError(f"an entry is in the wheel already, due at tick {entry.tick}")
        self._put_many(entries, max(tick, now + 1))

    def _put_many(self, entries: Sequence[E], tick: int) -> None:
        index = tick & self._mask
        if tick - self._now <= self._slots:
            slot = self._near[index]
            if not slot:
                self._near_bits |= 1 << index
        else:
            slot = self._put_later(index, tick)
        slot.update(dict.fromkeys(entries))
        for entry in entries:
            entry.tick = tick

    def rearm(self, entries: Sequence[E], after: int) -> None:
        """Schedule each of ``entries``, which :meth:`advance` has returned, ``after`` ticks past its previous deadline.

        A deadline that has passed by then becomes the next tick. Entries of one tick that stand together are inserted
        together, so entries in the order of ``advance`` cost least. O(n).

        Raises:
            ValueError: ``after`` is less than 1.
        """
        if after < 1:
            raise ValueError(f"after must be at least 1 tick, not {after!r}")
        start, count, now = 0, len(entries), self._now
        while start < count:
            tick = entries[start].tick
            if entries[-1].tick == tick and start == 0:
                run: Sequence[E] = entries  # the common case, and most of the work: everything is of one tick
                stop = count
                for entry in entries:
                    if entry.tick != tick:
                        stop = 0
                        break
            else:
                stop = 0
            if not stop:
                stop = start + 1
                while stop < count and entries[stop].tick == tick:
                    stop += 1
                run = entries[start:stop]
            self._put_many(run, max(tick + after, now + 1))
            start = stop

    # -- out ---------------------------------------------------------------------------------------------------------

    def cancel(self, entry: E) -> bool:
        """Take ``entry`` out. O(1).

        Returns:
            True if it was in the wheel, False if it was not (any more).
        """
        tick = entry.tick
        ahead = tick - self._now
        if ahead <= 0:
            return False
        index = tick & self._mask
        if ahead <= self._slots:
            slot = self._near[index]
            if entry not in slot:
                return False
            del slot[entry]
            if not slot:
                self._near_bits ^= 1 << index
            return True
        slot = self._later[index]
        if entry not in slot:
            return False
        del slot[entry]
        if not slot:
            self._later_bits ^= 1 << index
            del self._later_first[index]
            self._stale.discard(index)
        elif tick == self._later_first[index]:
            self._stale.add(index)
        return True

    def advance(self, to_tick: int) -> list[E]:
        """Move on to ``to_tick`` and return what has come due. O(occupied slots on the way + entries due).

        Returns:
            Every entry with a deadline up to and including ``to_tick``, in order of deadline; those of one tick in the
            order in which they were scheduled.

        Raises:
            ValueError: ``to_tick`` lies in the past.
        """
        if to_tick < self._now:
            raise ValueError(f"the wheel is at tick {self._now} and cannot go back to {to_tick!r}")
        due: list[E] = []
        while self._now < to_tick:
            bits = self._near_bits | self._later_bits
            if not bits:
                break
            # At most one rotation at a time: beyond that the same slots come round again.
            self._turn(min(to_tick, self._now + self._slots), bits, due)
        self._now = to_tick
        return due

    def _turn(self, to_tick: int, bits: int, due: list[E]) -> None:
        """Visit the occupied slots from the next tick to ``to_tick``, less than or exactly one rotation away."""
        first = self._now + 1
        start = first & self._mask
        # Rotate so that the bit of the next tick is the lowest, and cut off what is not reached.
        window = ((bits >> start) | (bits << (self._slots - start))) & ((1 << (to_tick - first + 1)) - 1)
        while window:
            low = window & -window
            window ^= low
            tick = first + low.bit_length() - 1
            index = tick & self._mask
            slot = self._near[index]
            if slot:
                due.extend(slot)
                self._near[index] = {}
                self._near_bits ^= 1 << index
            self._now = tick
            if self._later_bits >> index & 1 and self._later_first[index] <= tick + self._slots:
                self._promote(index, tick + self._slots)
        self._now = to_tick

    def _promote(self, index: int, tick: int) -> None:
        """Move what is due when this slot's turn comes next, at ``tick``, from the later rounds to the near one."""
        later = self._later[index]
        promoted = [entry for entry in later if entry.tick <= tick]
        if len(promoted) == len(later):
            self._near[index], self._later[index] = later, {}
            self._later_bits ^= 1 << index
            del self._later_first[index]
            self._stale.discard(index)
        else:
            self._near[index] = dict.fromkeys(promoted)
            for entry in promoted:
                del later[entry]
            self._later_first[index] = min([entry.tick for entry in later])
            self._stale.discard(index)
        if self._near[index]:
            self._near_bits |= 1 << index

    def clear(self) -> list[E]:
        """Take everything out and return it, in order of deadline. O(n log n)."""
        entries = [entry for slot in (*self._near, *self._later) for entry in slot]
        entries.sort(key=lambda entry: entry.tick)  # stable: within a tick the order of scheduling stays
        self._near = [{} for _ in range(self._slots)]
        self._later = [{} for _ in range(self._slots)]
        self._near_bits = self._later_bits = 0
        self._later_first.clear()
        self._stale.clear()
        return entries

    # -- what is in it -----------------------------------------------------------------------------------------------

    def next_due_tick(self) -> int | None:
        """Return the exact tick at which something is due next; None when the wheel is empty.

        O(1) in the number of entries while something is due within a rotation, else O(occupied slots).
        """
        if self._near_bits:
            first = self._now + 1
            start = first & self._mask
            bits = (self._near_bits >> start) | (self._near_bits << (self._slots - start))
            return first + (bits & -bits).bit_length() - 1
        if not self._later_first:
            return None
        for index in self._stale:
            self._later_first[index] = min([entry.tick for entry in self._later[index]])
        self._stale.clear()
        return min(self._later_first.values())

    def load(self, tick: int) -> int:
        """Return how many entries share the slot and the round of ``tick``; all later rounds count as one. O(1)."""
        tick = max(tick, self._now + 1)
        slots = self._near if tick - self._now <= self._slots else self._later
        return len(slots[tick & self._mask])

    def occupancy(self) -> list[int]:
        """Return the number of entries in each slot, all rounds together. O(slots)."""
        return [len(near) + len(later) for near, later in zip(self._near, self._later, strict=True)]

    def __len__(self) -> int:
        """Return the number of entries. O(slots)."""
        return sum(map(len, self._near)) + sum(map(len, self._later))

    def __contains__(self, entry: object) -> bool:
        """Return whether ``entry`` is scheduled. O(1)."""
        if not isinstance(entry, WheelEntry) or entry.tick <= self._now:
            return False
        slots = self._near if entry.tick - self._now <= self._slots else self._later
        return entry in slots[entry.tick & self._mask]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} slots={self._slots} now={self._now} entries={len(self)}>"

    def check(self) -> None:
        """Compare every shortcut with a search of everything, for tests. O(n).

        Raises:
            AssertionError: They differ; the message says where.
        """
        ticks: list[int] = []
        for index in range(self._slots):
            near, later = self._near[index], self._later[index]
            if any(not 0 < entry.tick - self._now <= self._slots for entry in near):
                raise AssertionError(f"slot {index} holds an entry that is not due within a rotation")
            if any(entry.tick - self._now <= self._slots for entry in later):
                raise AssertionError(f"slot {index} keeps an entry back that is due within a rotation")
            if any(entry.tick & self._mask != index for entry in (*near, *later)):
                raise AssertionError(f"slot {index} holds an entry of another slot")
            if bool(near) != bool(self._near_bits >> index & 1) or bool(later) != bool(self._later_bits >> index & 1):
                raise AssertionError(f"the bitmaps are wrong about slot {index}")
            if bool(later) != (index in self._later_first):
                raise AssertionError(f"the first later deadline of slot {index} is kept wrongly")
            if later and (first := min(entry.tick for entry in later)) != self._later_first[index]:
                if index not in self._stale or first < self._later_first[index]:
                    raise AssertionError(f"slot {index} is wrong about its first later deadline, {first}")
            ticks += [entry.tick for entry in (*near, *later)]
        if self.next_due_tick() != min(ticks, default=None):
            raise AssertionError(
                f"next_due_tick() is {self.next_due_tick()}, the first deadline {min(ticks, default=None)}"
            )
