"""Rows: leases of a bulk acquire that are not made yet. Pure, as leases are.

A million locks that are held and left alone are a few thousand rows for the memory and for the garbage collector. Rows are
a sequence of leases. What works on them as a whole - their acquire, their grant, their renewals as a block - asks for no
lease. Whatever looks at one makes all of theirs, and from then on they are leases like any other:

* Whoever makes them, on any thread, the first ones that are stored are those that everybody gets.
* While they are not made they are PENDING, or HELD in a block of exactly them. Each other change makes them first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, overload

from wheel_lock.lease import Extras, Group, Lease, Owner, Together, grant_all
from wheel_lock.observe.events import HeldLock
from wheel_lock.protocol.resp import each_lease_args


@dataclass(eq=False, repr=False, slots=True)
class Rows(Sequence[Lease]):
    """Leases of one call: their names, their encoded arguments in one piece, and what all of them have in common.

    Args:
        names: The names, as the caller gave them.
        body: Name and token of each, encoded, one behind the other.
        group, owner, extras: As those of a lease.

    Attributes:
        block: The block that they are, from the grant on.
        own_deadline, acquired_at, recorded: As those of a lease.
        left: The number of leases that are held, from the grant on.
    """

    limits: ClassVar[None] = None
    in_blocks: ClassVar[bool] = True

    names: tuple[str | bytes, ...]
    body: bytes
    group: Group
    owner: Owner
    extras: Extras
    block: Together | None = None
    own_deadline: float = 0.0
    acquired_at: float = math.inf
    left: int = 0
    recorded: object = None
    _made: dict[bool, list[Lease]] = field(default_factory=dict)  # the leases, once they are made

    @property
    def made(self) -> bool:
        """True if the leases are made."""
        return bool(self._made)

    @property
    def leases(self) -> list[Lease]:
        """The leases. They are made if they are not yet."""
        leases = self._made.get(True)
        if leases is None:
            owner = self.owner
            leases = self._made.setdefault(True, self._new_leases())
            if self.owner is not owner:
                self.belong_to(self.owner)
        return leases

    def belong_to(self, owner: Owner) -> None:
        """Have another owner. From any thread, also while another one makes the leases."""
        self.owner = owner
        if self.block is not None:
            self.block.owner = owner
        for lease in self._made.get(True, ()):
            lease.owner = owner

    def _new_leases(self) -> list[Lease]:
        group, owner, extras, recorded = self.group, self.owner, self.extras, self.recorded
        block, acquired_at, granted = self.block, self.acquired_at, bool(self.left)
        leases: list[Lease] = []
        for name, args in zip(self.names, each_lease_args(self.body), strict=True):
            lease = Lease(name, args, group, owner)
            lease.extras = extras
            lease.recorded = recorded
            if granted:
                lease.block = block
                lease.rows = self
            leases.append(lease)
        if granted:
            grant_all(leases, acquired_at, group.timeout_s, None)
        return leases

    def granted(self, sent_at: float, deadline: float) -> None:
        """Note the grant of all of them, before they are held, and become a block."""
        self.left = len(self.names)
        self.acquired_at = sent_at
        self.own_deadline = deadline

    @property
    def name(self) -> str | bytes:
        """The name of the first one."""
        return self.names[0]

    @property
    def held(self) -> list[Lease]:
        """The leases that are held."""
        return [lease for lease in self.leases if lease.rows is self]

    def held_locks(self, now: float) -> list[HeldLock]:
        """Return a snapshot of each lease at ``now``. They must be in a block, and not made."""
        block = self.block
        if block is None or not self.group.alive or now >= block.own_deadline:
            return []
        timeout_s, age_s, left_s = self.group.timeout_s, now - self.acquired_at, block.own_deadline - now
        return [HeldLock(name, timeout_s, age_s, left_s, block.renewals, False) for name in self.names]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Lease: ...
    @overload
    def __getitem__(self, index: slice) -> list[Lease]: ...
    def __getitem__(self, index: int | slice) -> Lease | list[Lease]:
        return self.leases[index]

    def __iter__(self) -> Iterator[Lease]:
        return iter(self.leases)


def like(leases: Sequence[Lease]) -> Lease | Rows:
    """Return what has the common attributes of ``leases``, which are of one call: the rows, or the first lease."""
    # By the type, here and in unmade(): isinstance() takes several calls for an abstract base class.
    return leases if type(leases) is Rows and not leases.made else leases[0]


def unmade(leases: Sequence[Lease]) -> bool:
    """Return whether ``leases`` are rows whose leases are not made."""
    return type(leases) is Rows and not leases.made


def encoded(leases: Sequence[Lease]) -> bytes:
    """Return the arguments of all leases, encoded."""
    return leases.body if type(leases) is Rows else b"".join([lease.lease_args for lease in leases])
