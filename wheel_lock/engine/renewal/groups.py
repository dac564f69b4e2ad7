"""The groups of leases, by what their leases have in common. A group lives as long as its leases, and lock objects."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from wheel_lock.lease import Group
from wheel_lock.runtime.weak_registry import WeakRegistry

G = TypeVar("G", bound=Group)


class Groups(Generic[G]):
    """The groups of one node, or of a quorum. From any thread: two may make a group of one key, and both are good."""

    def __init__(self) -> None:
        self._by_key: WeakValueDictionary[Hashable, G] = WeakValueDictionary()
        self._all: WeakRegistry[G] = WeakRegistry()

    def get(self, key: Hashable) -> G | None:
        """Return the group of ``key``, or None."""
        return self._by_key.get(key)

    def add(self, key: Hashable, group: G) -> G:
        """Add ``group``, and return it."""
        self._all.add(group)
        self._by_key[key] = group
        return group

    def end(self) -> None:
        """In a forked child: mark all groups as not alive, for their leases are the parent's, and forget them."""
        for group in self._all:
            group.alive = False
        self._by_key = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._all)
