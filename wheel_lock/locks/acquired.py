"""The result of a bulk acquire: a dict whose lock objects are made when they are first read.

A lock object is as dear as its lease: to allocate, to keep, and for the garbage collector, which walks both in every full
collection, on whichever thread that starts. Until a lock is read its lease stands in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from wheel_lock.engine.engine import Engine
from wheel_lock.lease import EXTENDING, NOBODY, Lease
from wheel_lock.locks.base import BaseLock, taking

Name = TypeVar("Name", bound=str | bytes)
AnyLock = TypeVar("AnyLock", bound=BaseLock)


class AcquiredLocks(dict[Name, AnyLock | None], Generic[Name, AnyLock]):
    """The lock of each name, or None. Each lock is made when it is read, and is the same from then on.

    All methods that read or change values are overridden, ``__iter__`` included, because of which CPython's own functions
    (``dict(locks)``, ``{**locks}``, ``f(**locks)``) read by these methods, too. Copies are plain dicts. Locks that were
    never read are abandoned with this object, as those that were are with the lock object.

    Args:
        engine: The engine of the locks.
        new_lock: Returns the lock object of a name, without a lease.

    Attributes:
        kept: True if its leases are abandoned with it: the acquire has succeeded.
    """

    __slots__ = ("_engine", "_new_lock", "kept")

    def __init__(self, engine: Engine, new_lock: Callable[[Name], AnyLock]) -> None:
        super().__init__()
        self._engine = engine
        self._new_lock = new_lock
        self.kept = False

    # -- as it is stored: leases in the place of locks that have not been read ---------------------------------------

    put: ClassVar[Callable[[Any, Any, Any], None]] = dict.__setitem__
    """Store anything under a name; what was stored there is not abandoned. As quick as a dict's own."""

    def stored(self) -> Iterable[tuple[Name, Any]]:
        """Return all names, and what is stored under them."""
        return super().items()

    def stored_values(self) -> Iterable[Any]:
        """Return what is stored under all names."""
        return super().values()

    def _made(self, stored: Any) -> AnyLock | None:
        """Return the lock, or None, that a caller reads where ``stored`` was found."""
        if type(stored) is not Lease:
            return cast("AnyLock | None", stored)
        name = cast("Name", stored.name)
        lock = self._new_lock(name)
        with taking():
            now = super().get(name)
            if cast("object", now) is not stored:
                return now  # made by another thread meanwhile
            try:
                lock._lease = stored  # first: from here on the lease has a holder
                self.put(name, lock)
            except BaseException:
                if super().get(name) is not lock:
                    lock._lease = None  # it is still held by this object
                raise
        return lock

    def __del__(self) -> None:
        # Like that of a lock object. May run anywhere: takes no lock.
        if not getattr(self, "kept", False) or sys.is_finalizing():
            return
        engine = self._engine
        leases = [
            lease
            for lease in self.stored_values()
            if type(lease) is Lease and lease.state <= EXTENDING and lease.group.alive
        ]
        if leases:
            engine.post_if_open(lambda: engine.abandon_many(leases))

    # -- a dict ------------------------------------------------------------------------------------------------------

    def __getitem__(self, name: Name) -> AnyLock | None:
        return self._made(super().__getitem__(name))

    def get(self, name: Any, default: Any = None) -> Any:
        return self._made(super().get(name, default))

    def __iter__(self) -> Iterator[Name]:
        return super().__iter__()

    if TYPE_CHECKING:

        def values(self) -> AcquiredValues[AnyLock]:  # type: ignore[override]
            ...

    def items(self) -> AcquiredItems[Name, AnyLock]:  # type: ignore[override]
        return AcquiredItems(self)

    def _read(self, names: Iterable[Any]) -> None:
        """Make the locks of ``names``, which are about to be removed: each is abandoned by itself if it is dropped."""
        for name in names:
            self.get(name)

    def __setitem__(self, name: Name, lock: AnyLock | None) -> None:
        self.get(name)
        super().__setitem__(name, lock)

    def __delitem__(self, name: Name) -> None:
        self.get(name)
        super().__delitem__(name)

    def pop(self, name: Any, *default: Any) -> Any:
        self.get(name)
        return super().pop(name, *default)

    def popitem(self) -> tuple[Name, AnyLock | None]:
        name, stored = super().popitem()
        self.put(name, stored)
        lock = self._made(stored)
        super().__delitem__(name)
        return name, lock

    def setdefault(self, name: Name, default: Any = None) -> Any:
        self.get(name)
        return super().setdefault(name, default)

    def clear(self) -> None:
        self._read(list(self))
        super().clear()

    def update(self, *others: Any, **more: Any) -> None:
        for name, lock in dict[Any, Any](*others, **more).items():
            self[name] = lock

    def copy(self) -> dict[Name, AnyLock | None]:
        return {name: self._made(stored) for name, stored in super().items()}

    fromkeys = dict.fromkeys  # which returns a plain dict

    def __or__(self, other: Any) -> Any:
        return self.copy() | other

    def __ror__(self, other: Any) -> Any:
        return other | self.copy()

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __eq__(self, other: object) -> Any:
        if self is other:
            return True
        if not isinstance(other, dict) or len(self) != len(other):
            return NotImplemented if not isinstance(other, dict) else False
        return self.copy() == (other.copy() if isinstance(other, AcquiredLocks) else other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.copy())

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)  # a copy is a plain dict; locks refuse to be pickled

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()


class AcquiredValues(ValuesView[AnyLock | None], Generic[AnyLock]):
    """The view of the values. ``release_many`` releases what it shows without making lock objects for that."""

    __slots__ = ()

    _mapping: AcquiredLocks[Any, AnyLock]

    def __iter__(self) -> Iterator[AnyLock | None]:
        return map(self._mapping._made, self._mapping.stored_values())

    def __reversed__(self) -> Iterator[AnyLock | None]:
        return map(self._mapping.__getitem__, reversed(self._mapping))

    def __repr__(self) -> str:
        return f"dict_values({list(self)!r})"

    @property
    def mapping(self) -> Mapping[Any, AnyLock | None]:
        return MappingProxyType(self._mapping)


class AcquiredItems(ItemsView[Name, AnyLock | None], Generic[Name, AnyLock]):
    """The view of the items."""

    __slots__ = ()

    _mapping: AcquiredLocks[Name, AnyLock]

    def __iter__(self) -> Iterator[tuple[Name, AnyLock | None]]:
        return ((name, self._mapping._made(stored)) for name, stored in self._mapping.stored())

    def __reversed__(self) -> Iterator[tuple[Name, AnyLock | None]]:
        return ((name, self._mapping[name]) for name in reversed(self._mapping))

    def __repr__(self) -> str:
        return f"dict_items({list(self)!r})"

    @property
    def mapping(self) -> Mapping[Name, AnyLock | None]:
        return MappingProxyType(self._mapping)


# Without a function in Python, because ``release_many(locks.values())`` is to begin whatever interrupts it.
AcquiredLocks.values = property(partial(partial, AcquiredValues))  # type: ignore[method-assign,assignment]


def releasable(stored: Any) -> bool:
    """Return whether ``stored`` is a held lease that any caller may release, so that it needs no lock object for that."""
    return type(stored) is Lease and stored.state <= EXTENDING and stored.group.alive and stored.owner is NOBODY
