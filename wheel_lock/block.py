"""Blocks: leases that are renewed together, by a constant number of steps. Pure, as leases are.

On the wheel and in the flow of renewals a block stands in the place of its leases. The rules:

* A block is made of leases that one call has granted or confirmed, with one deadline. None joins later: at a joint tick
  small blocks end, and the next confirmation makes a larger one.
* Its state is HELD (on the wheel) or RENEWING (in an unanswered call), by the table of leases.
* What happens to one of its leases - a release, a loss, an extension, an export, a move, a check - takes that one out
  first (:meth:`Block.leave`): then it is a lease like any other. Its bytes are never sent again.
* What happens to its call, but the confirmation of all, takes out all of them (:meth:`Block.split`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import ClassVar

from wheel_lock.lease import HELD, RENEWING, TRANSITIONS, Event, Group, Lease, Owner, State, local_deadline
from wheel_lock.rows import Rows, encoded, like
from wheel_lock.wheel import WheelEntry

_LEAST = 8  # leases of a block: below that, leases on their own cost less


class Owners(Owner):
    """The owners of the leases of a block."""

    __slots__ = ("_each",)

    def __init__(self, each: Iterable[Owner]) -> None:
        super().__init__()
        self._each = tuple(each)

    @property
    def ended(self) -> bool:
        """True if one of them has ended."""
        return any(owner.ended for owner in self._each)


class Block(WheelEntry):
    """Leases of one group with one tick, one deadline and one encoded call. Timer's thread only.

    Args:
        leases: Leases that are HELD and not on the wheel, without limits and with equal deadlines.

    Attributes:
        state: HELD on the wheel, RENEWING in an unanswered call, by the table of leases.
        own_deadline: The local deadline of its leases.
        renewals: The number of its confirmed renewals.
        size: The number of its leases.
        owner: Has ended if the owner of one of them has.
    """

    limits: ClassVar[None] = None

    __slots__ = ("_body", "_leases", "group", "own_deadline", "owner", "renewals", "size", "state")

    def __init__(self, leases: Sequence[Lease]) -> None:
        first = like(leases)
        self.tick = -1
        self.group: Group = first.group
        self.state: State = HELD
        self.own_deadline: float = first.own_deadline
        self.renewals: int = 0
        self.size: int = len(leases)
        self.owner: Owner = first.owner
        self._leases = leases
        self._body: bytes | None = None
        if isinstance(first, Rows):
            first.block = self
            return
        owners = {lease.owner for lease in leases}
        if len(owners) > 1:
            self.owner = Owners(owners)
        for lease in leases:
            lease.tick = -1
            lease.block = self

    @property
    def leases(self) -> Sequence[Lease]:
        """Its leases, in the order of its call."""
        if len(self._leases) != self.size:
            self._leases = [lease for lease in self._leases if lease.block is self]
        return self._leases

    def encoded(self) -> bytes:
        """Return the arguments of all leases, encoded; made again if one has left."""
        if self._body is None:
            self._body = encoded(self.leases)
        return self._body

    def move(self, event: Event) -> None:
        """Change the state as the table says."""
        self.state = TRANSITIONS[self.state, event]

    def confirm(self, sent_at: float, now: float, timeout_s: float) -> float | None:
        """Apply the server's confirmation, as :func:`confirm_all` does for leases.

        Returns:
            The time that was left until the deadline, in seconds; None, with nothing changed, if it has passed.
        """
        before = self.own_deadline
        if now >= before:
            return None
        self.own_deadline = max(before, local_deadline(sent_at, timeout_s))
        self.renewals += 1
        self.move(Event.CONFIRMED)
        return before - now

    def leave(self, lease: Lease) -> None:
        """Make ``lease``, one of its own, a lease like any other: not on the wheel, or in the call as the others."""
        lease.own_deadline = self.own_deadline
        lease.own_renewals += self.renewals
        lease.block = None  # behind its deadline, which other threads read
        self.size -= 1
        self._body = None
        if len(self._leases) > 2 * self.size:
            self._leases = self.leases  # so those that have left are not kept for an interval
        if self.state is RENEWING:
            lease.tick = self.tick
            lease.transition(Event.RENEWAL_SENT)

    def split(self) -> Sequence[Lease]:
        """Make all of them leases like any other, due at the tick of this block, which has passed; return them."""
        leases = self.leases
        for lease in leases:
            self.leave(lease)
            lease.tick = self.tick
        return leases


def belong_together(leases: Sequence[Lease]) -> bool:
    """Return whether leases of one call, just granted or confirmed, in order of their ticks, are to be a block."""
    first = leases[0]
    if len(leases) < _LEAST or not first.in_blocks or first.limits is not None or first.tick != leases[-1].tick:
        return False
    return all(lease.own_deadline == first.own_deadline for lease in leases)


def parts_of(entries: Sequence[Lease | Block], most: int) -> tuple[list[Block], list[Lease]]:
    """Sort due entries of one group into blocks that are renewed as they are, and leases of which blocks are made.

    Blocks of at most half of ``most`` leases are merged, with one another and with leases that are in none.
    """
    blocks: list[Block] = []
    merged: list[Lease | Block] = []
    for entry in entries:
        if isinstance(entry, Block) and most < 2 * entry.size <= 2 * most:
            blocks.append(entry)
        else:
            merged.append(entry)
    match merged:
        case [Block() as only] if only.size <= most:
            return [*blocks, only], []
    return blocks, in_order(merged)


def in_order(entries: Iterable[Lease | Block]) -> list[Lease]:
    """Return the leases of all entries. The blocks end."""
    leases: list[Lease] = []
    for entry in entries:
        if isinstance(entry, Block):
            leases.extend(entry.split())
        else:
            leases.append(entry)
    return leases


def all_plain(entries: Iterable[Lease | Block], now: float) -> bool:
    """Return whether all are HELD, valid, without limits, and of owners that have not ended. Runs for every renewal."""
    held = HELD
    for entry in entries:
        if entry.state is not held or entry.own_deadline <= now or entry.limits is not None or entry.owner.ended:
            return False
    return True


block_of: Callable[[Lease | Rows], Block | None] = attrgetter("block")
