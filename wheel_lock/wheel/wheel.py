"""The hashed timing wheel: entries in, due entries out. Integers only - no clock, no thread, no I/O.

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 6, and Netty's HashedWheelTimer. An entry
that is due within one rotation is in slot ``tick mod slots``, so all entries of a slot are due at one tick and are taken
as a whole. Entries beyond that are kept by tick until the tick is within one rotation, and then move into the slot as a
whole, too. (Netty keeps them in the slot and counts their rounds down, one entry at a time.)

A cancelled entry is not searched for. Its ``tick`` no longer is the slot's, which marks it as dead; the slot removes its
dead entries when they are seven in eight. It counts down to that, so a cancel is a subtraction, whatever the size of the
wheel.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from operator import length_hint
from typing import Generic, TypeVar

_FEW = 16  # dead entries that a slot may keep in any proportion: removing them has a cost, too
_CANCELLED = -1


class WheelEntry:
    """Base class of scheduled objects, so that a timer costs no second object. In one wheel at a time.

    Attributes:
        tick: The deadline, also after it has come due; -1 before the first ``schedule`` and after a cancel.
    """

    __slots__ = ("tick",)

    tick: int


E = TypeVar("E", bound=WheelEntry)


class Wheel(Generic[E]):
    """A hashed timing wheel.

    Args:
        slots: The number of slots, which is that of the ticks of a rotation: a power of two, at least 2.
        now: The tick at which the wheel begins.

    Attributes:
        now: The last tick that :meth:`advance` has reached.

    Raises:
        ValueError: ``slots`` is not a power of two of at least 2.

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

    __slots__ = (
        "_bearable",
        "_bits",
        "_horizon",
        "_later",
        "_later_dead",
        "_later_ticks",
        "_left",
        "_mask",
        "_near",
        "_slots",
        "now",
    )

    def __init__(self, slots: int = 1024, now: int = 0) -> None:
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 2 or slots & (slots - 1):
            raise ValueError(f"slots must be a power of two of at least 2, not {slots!r}")
        self._slots = slots
        self._mask = slots - 1
        self.now: int = now
        self._horizon = now + slots  # the last tick that has a slot
        self._reset()

    def _reset(self) -> None:
        self._near: list[list[E]] = [[] for _ in range(self._slots)]
        # Of each slot: how many dead entries it may have before it is looked at, and how many of these are left. The
        # difference is the number of its dead entries. A slot without any has 0 and 0.
        self._bearable = [0] * self._slots
        self._left = [0] * self._slots
        self._bits = 0  # a bit for each slot that is not empty; written only when that changes
        self._later: dict[int, list[E]] = {}  # beyond the horizon, by tick
        self._later_dead: dict[int, int] = {}
        self._later_ticks: list[int] = []  # a heap of the keys of _later, and of some removed ones

    @property
    def slots(self) -> int:
        """The number of slots, which is the number of ticks in a rotation."""
        return self._slots

    # -- scheduling --------------------------------------------------------------------------------------------------

    def schedule(self, entry: E, tick: int) -> None:
        """Schedule ``entry``. O(1); beyond one rotation O(log n) in ticks, not entries.

        Args:
            entry: An entry that is not in the wheel.
            tick: The deadline; one that has passed becomes the next tick.

        Raises:
            ValueError: The entry is in the wheel.
        """
        now = self.now
        if entry.tick > now:
            raise ValueError(f"the entry is in the wheel already, due at tick {entry.tick}")
        if tick <= now:
            tick = now + 1
        if tick <= self._horizon:
            index = tick & self._mask
            slot = self._near[index]
            if not slot:
                self._bits |= 1 << index
            slot.append(entry)
        else:
            self._later_slot(tick).append(entry)
        entry.tick = tick

    def _later_slot(self, tick: int) -> list[E]:
        slot = self._later.get(tick)
        if slot is None:
            slot = self._later[tick] = []
            heappush(self._later_ticks, tick)
        return slot

    def schedule_many(self, entries: Sequence[E], tick: int) -> None:
        """Schedule all of ``entries``, none of which is in the wheel, at ``tick``. O(n), at a fraction of the cost.

        Raises:
            ValueError: One of them is in the wheel; none has been scheduled then.
        """
        if not entries:
            return
        now = self.now
        for entry in entries:
            if entry.tick > now:
                raise ValueError(f"an entry is in the wheel already, due at tick {entry.tick}")
        if tick <= now:
            tick = now + 1
        self._slot(tick).extend(entries)
        for entry in entries:
            entry.tick = tick

    def _slot(self, tick: int) -> list[E]:
        """Return the slot of ``tick``, into which an entry is about to be put."""
        if tick > self._horizon:
            return self._later_slot(tick)
        index = tick & self._mask
        slot = self._near[index]
        if not slot:
            self._bits |= 1 << index
        return slot

    def rearm(self, entries: Sequence[E], after: int) -> list[int]:
        """Schedule each of ``entries``, which :meth:`advance` has returned, ``after`` ticks past its previous deadline.

        A deadline that has passed by then becomes the next tick. Adjacent entries of one tick are inserted together, so
        entries in the order of ``advance`` cost least. O(n).

        Returns:
            The new deadline of each run of adjacent entries of one tick.

        Raises:
            ValueError: ``after`` is less than 1.
        """
        if after < 1:
            raise ValueError(f"after must be at least 1 tick, not {after!r}")
        ticks: list[int] = []
        start, total = 0, len(entries)
        others = iter(entries)
        next(others, None)
        while start < total:
            first, end = entries[start], total
            before = first.tick
            first.tick = tick = max(before + after, self.now + 1)
            for entry in others:
                if entry.tick != before:
                    end -= 1 + length_hint(others)
                    break
                entry.tick = tick
            self._slot(tick).extend(entries[start:end] if end - start < total else entries)
            ticks.append(tick)
            start = end
        return ticks

    # -- removing ---------------------------------------------------------------------------------------------------

    def cancel(self, entry: E) -> bool:
        """Remove ``entry``; return False if it was not in the wheel. O(1), amortised."""
        tick = entry.tick
        if tick <= self.now:
            return False
        entry.tick = _CANCELLED
        if tick <= self._horizon:
            index = tick & self._mask
            left = self._left[index] - 1
            self._left[index] = left
            if left < 0:
                self._bury(index, tick, self._bearable[index] - left)
        else:
            self._bury_later(tick)
        return True

    def _bury(self, index: int, tick: int, dead: int) -> None:
        """Remove the dead entries of a slot if no other is in it, or they are too many; else return when to check again."""
        slot = self._near[index]
        size = len(slot)
        if dead == size:
            self._near[index] = []
            self._bits ^= 1 << index
            self._bearable[index] = self._left[index] = 0
            return
        many = size - (size >> 3)
        if dead >= many and dead > _FEW:
            self._near[index] = _living(slot, tick, dead)
            self._bear(index, 0, 0)
        else:
            # Entries may come until then, which makes this too early, but none leave.
            self._bear(index, (many if dead < many else min(size, _FEW + 1)) - 1, dead)

    def _dead(self, index: int) -> int:
        return self._bearable[index] - self._left[index]

    def _bear(self, index: int, bearable: int, dead: int) -> None:
        self._bearable[index] = bearable
        self._left[index] = bearable - dead

    def _bury_later(self, tick: int) -> None:
        slot = self._later[tick]
        dead = self._later_dead.get(tick, 0) + 1
        if dead == len(slot):
            del self._later[tick]
            self._later_dead.pop(tick, None)
            self._drop_gone_ticks()
        elif dead > _FEW and dead >= len(slot) - (len(slot) >> 3):
            self._later[tick] = _living(slot, tick, dead)
            self._later_dead.pop(tick, None)
        else:
            self._later_dead[tick] = dead

    def _drop_gone_ticks(self) -> None:
        """Remove ticks without entries from the front of the heap, and from all of it if they are too many."""
        ticks, later = self._later_ticks, self._later
        if len(ticks) > 2 * len(later) + _FEW:
            ticks[:] = later
            heapify(ticks)
        while ticks and ticks[0] not in later:
            heappop(ticks)

    def advance(self, to_tick: int) -> list[E]:
        """Advance to ``to_tick`` and return the due entries. O(occupied slots up to there + entries due).

        Returns:
            All entries with a deadline up to and including ``to_tick``, in order of deadline; those of one tick in the
            order in which they were scheduled.

        Raises:
            ValueError: ``to_tick`` is in the past.
        """
        if to_tick < self.now:
            raise ValueError(f"the wheel is at tick {self.now} and cannot go back to {to_tick!r}")
        due: list[E] = []
        if self._bits:
            self._empty_slots(min(to_tick, self._horizon), due)
        self.now = to_tick
        self._horizon = to_tick + self._slots
        if self._later_ticks and self._later_ticks[0] <= self._horizon:
            self._bring_near(due)
        return due

    def _empty_slots(self, to_tick: int, due: list[E]) -> None:
        first = self.now + 1
        start = first & self._mask
        # Rotated so that the bit of the next tick is the lowest, and cut off after the last.
        ahead = (self._bits >> start) | (self._bits << (self._slots - start))
        window = ahead & ((1 << (to_tick - first + 1)) - 1) & ((1 << self._slots) - 1)
        while window:
            lowest = window & -window
            window ^= lowest
            tick = first + lowest.bit_length() - 1
            index = tick & self._mask
            slot, self._near[index] = self._near[index], []
            self._bits ^= 1 << index
            if self._bearable[index]:
                slot = _living(slot, tick, self._dead(index))
                self._bear(index, 0, 0)
            if due:
                due += slot
            else:
                due.extend(slot)

    def _bring_near(self, due: list[E]) -> None:
        """Take the ticks that are no longer beyond the horizon: append due entries to ``due``, move others into slots."""
        ticks = self._later_ticks
        while ticks and ticks[0] <= self._horizon:
            tick = heappop(ticks)
            slot = self._later.pop(tick, None)
            if slot is None:
                continue
            dead = self._later_dead.pop(tick, 0)
            if tick <= self.now:
                due += _living(slot, tick, dead) if dead else slot
            else:
                index = tick & self._mask
                self._near[index] = slot
                self._bear(index, dead, dead)
                self._bits |= 1 << index
        self._drop_gone_ticks()

    def clear(self) -> list[E]:
        """Remove all entries and return them, in order of deadline; ``now`` is unchanged. O(n)."""
        entries = [entry for slot, tick, dead in self._all() for entry in _living(slot, tick, dead)]
        for entry in entries:
            entry.tick = _CANCELLED
        self._reset()
        return entries

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def last_tick(self) -> int:
        """A tick behind which there is no entry. O(ticks beyond one rotation)."""
        return max(self._horizon, *self._later) if self._later else self._horizon

    def next_due_tick(self) -> int | None:
        """Return the deadline of the next due entry, None if there is none. O(slots / word size)."""
        bits = self._bits
        if bits:
            start = (self.now + 1) & self._mask
            ahead = bits >> start
            if ahead:
                return self.now + (ahead & -ahead).bit_length()
            return self.now + self._slots - start + (bits & -bits).bit_length()
        return self._later_ticks[0] if self._later_ticks else None

    def load(self, tick: int) -> int:
        """Return the number of entries due at ``tick``. O(1)."""
        if tick <= self.now:
            tick = self.now + 1
        if tick <= self._horizon:
            index = tick & self._mask
            return len(self._near[index]) - self._bearable[index] + self._left[index]  # as _dead()
        return len(self._later.get(tick, ())) - self._later_dead.get(tick, 0)

    def at(self, tick: int) -> list[E]:
        """Return the entries due at ``tick``, which has not passed, each once. O(entries of that slot)."""
        if tick <= self._horizon:
            index = tick & self._mask
            return _living(self._near[index], tick, self._dead(index))
        return _living(self._later.get(tick, []), tick, self._later_dead.get(tick, 0))

    def occupancy(self) -> list[int]:
        """Return the number of entries of each slot, those of later rotations included. O(slots)."""
        counts = [len(slot) - self._dead(index) for index, slot in enumerate(self._near)]
        for tick, slot in self._later.items():
            counts[tick & self._mask] += len(slot) - self._later_dead.get(tick, 0)
        return counts

    def __len__(self) -> int:
        """Return the number of entries in the wheel. O(slots)."""
        return sum(self.occupancy())

    def __contains__(self, entry: object) -> bool:
        """Return whether ``entry`` is in the wheel. O(1)."""
        return isinstance(entry, WheelEntry) and entry.tick > self.now

    def __repr__(self) -> str:
        return f"<Wheel slots={self._slots} now={self.now} entries={len(self)}>"

    def _all(self) -> list[tuple[list[E], int, int]]:
        """Return every slot that is not empty, with its tick and the number of its dead entries, in order of ticks."""
        first = self.now + 1
        near = [(tick, tick & self._mask) for tick in range(first, first + self._slots)]
        slots = [(self._near[index], tick, self._dead(index)) for tick, index in near if self._near[index]]
        return slots + [(self._later[tick], tick, self._later_dead.get(tick, 0)) for tick in sorted(self._later)]

    def check(self) -> None:
        """Compare all derived data with an exhaustive search. For tests. O(n).

        Raises:
            AssertionError: They differ.
        """
        for index, slot in enumerate(self._near):
            if bool(slot) != bool(self._bits >> index & 1):
                raise AssertionError(f"the bit of slot {index} is wrong: {len(slot)} entries")
            if not slot and self._dead(index):
                raise AssertionError(f"{self._dead(index)} dead in slot {index}, which is empty")
            if bool(self._dead(index)) != bool(self._bearable[index]) or self._left[index] < 0:
                raise AssertionError(f"slot {index} bears {self._bearable[index]} dead, {self._left[index]} more")
        ticks = []
        for slot, tick, dead in self._all():
            alive = {id(entry) for entry in slot if entry.tick == tick}
            if not alive or len(alive) + dead != len(slot):
                raise AssertionError(f"tick {tick}: {len(alive)} alive and {dead} dead of {len(slot)}")
            if dead > _FEW and dead >= len(slot) - (len(slot) >> 3):
                raise AssertionError(f"tick {tick}: {dead} dead of {len(slot)} have not been thrown out")
            ticks.append(tick)
        if any(tick <= self._horizon for tick in self._later):
            raise AssertionError(f"ticks beyond the horizon of {self._horizon}: {sorted(self._later)}")
        if self.next_due_tick() != min(ticks, default=None):
            raise AssertionError(f"next_due_tick() is {self.next_due_tick()}, the first is {min(ticks, default=None)}")


def _living(slot: list[E], tick: int, dead: int) -> list[E]:
    """Return the entries of a slot that are not dead, in order, given the number of those that are."""
    living = [entry for entry in slot if entry.tick == tick]
    if len(living) + dead != len(slot):
        # Some were cancelled and scheduled again for the same tick, so each is found twice. The last one counts.
        living = list({id(entry): entry for entry in reversed(living)}.values())
        living.reverse()
    return living
