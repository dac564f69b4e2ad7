"""The result of a bulk acquire: a dict that makes each lock object when it is asked for."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from wheel_lock.engine.engine import Engine
from wheel_lock.exclusion import exclusively
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.locks import base
from wheel_lock.locks.base import BaseLock
from wheel_lock.runtime.interruptions import finaliser

Name = TypeVar("Name", bound=str | bytes)
AnyLock = TypeVar("AnyLock", bound=BaseLock)


def _when_filled(method: Callable[..., Any]) -> Any:
    """Return a method of dict that is called when all lock objects have been made."""

    @functools.wraps(method)
    def call(self: LazyLocks[Any, Any], *arguments: Any, **keywords: Any) -> Any:
        self._fill()
        return method(self, *arguments, **keywords)

    return call


def _is_kept(lease: Lease) -> bool:
    return lease.state <= EXTENDING and lease.group.alive


class LockValues(ValuesView[AnyLock | None]):
    """The lock objects of a bulk acquire, each made when it is come to."""

    __slots__ = ()

    _mapping: LazyLocks[Any, AnyLock]

    @property
    def mapping(self) -> Mapping[Any, AnyLock | None]:
        return MappingProxyType(self._mapping)

    def new_lock(self, name: str | bytes) -> AnyLock:
        """Return a lock object of that name that holds nothing."""
        return self._mapping._new_lock(name)

    def holders(self, engine: Engine) -> Iterator[AnyLock | Lease | None]:
        """Return what each lock can be released by, through ``engine``: its lease if there is no need of an object."""
        return self._mapping._holders(engine)

    def __reversed__(self) -> Iterator[AnyLock | None]:
        return (self._mapping[name] for name in reversed(self._mapping))

    def __repr__(self) -> str:
        return f"dict_values({list(self)!r})"


class _Items(ItemsView[Any, Any]):
    __slots__ = ()

    _mapping: LazyLocks[Any, Any]

    @property
    def mapping(self) -> Mapping[Any, Any]:
        return MappingProxyType(self._mapping)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        return ((name, self._mapping[name]) for name in reversed(self._mapping))

    def __repr__(self) -> str:
        return f"dict_items({list(self)!r})"


class LazyLocks(dict[Name, AnyLock | None], Generic[Name, AnyLock]):
    """The lock of each name, or None: a dict like any other, but for what it costs before a lock object is asked for.

    Until then it has the lease in the place of the lock object, and stops the renewal of the lease when it is collected,
    as the lock object would. Who reads one lock makes that one; who changes the dict, or compares it, makes all.

    Args:
        engine: The engine of the locks.
        new_lock: Returns the lock object of a name.
        anyones: True if any thread may release them.
    """

    __slots__ = ("_anyones", "_engine", "_made", "_new_lock")

    def __init__(self, engine: Engine, new_lock: Callable[[Name], AnyLock], anyones: bool) -> None:
        super().__init__()
        self._engine = engine
        self._new_lock = new_lock
        self._anyones = anyones
        self._made: dict[Name, AnyLock] | None = {}  # of those that were asked for; None if all are in their places

    def put(self, name: Name, lease: Lease | None) -> None:
        """Put in a lease whose lock object has not been made, or None."""
        super().__setitem__(name, cast("AnyLock | None", lease))

    def inside(self) -> ItemsView[Name, Lease | AnyLock | None]:
        """Return the items with what is in the dict by now."""
        return cast("ItemsView[Name, Lease | AnyLock | None]", super().items())

    # -- one lock ----------------------------------------------------------------------------------------------------

    def __getitem__(self, name: Name) -> AnyLock | None:
        made = self._made  # read first: when this is None all values are locks
        value: Any = super().__getitem__(name)
        return self._lock_of(value, made) if made is not None and isinstance(value, Lease) else value

    def get(self, name: Name, default: Any = None) -> Any:
        made = self._made
        value: Any = super().get(name, default)
        return self._lock_of(value, made) if made is not None and isinstance(value, Lease) else value

    def _lock_of(self, lease: Any, made: dict[Name, AnyLock]) -> AnyLock:
        """Return the one lock object of a lease. Threads, and the handlers of signals, may come here at any time."""
        lock = made.get(lease.name)
        if lock is None:
            lock = made.setdefault(lease.name, self._new_lock(lease.name))  # one step
        if lock._group is None:
            # Only now: a lock object that another one has forestalled is collected, which must not end the lease.
            lock._lease, lock._group = lease, lease.group
        return lock

    # -- all of them -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Name]:
        # Its being here has C code, of dict(...) or {**...}, ask for the values, too, instead of copying what is inside.
        return super().__iter__()

    def values(self) -> Any:
        return LockValues(self)

    def items(self) -> Any:
        return _Items(self)

    def _fill(self) -> None:
        """Put a lock object into each place."""
        made = self._made
        if made is not None:
            for name in list(self):
                self[name]
            exclusively(base._taking, self._settle, made)

    def _settle(self, made: dict[Name, AnyLock]) -> None:
        if self._made is not None:
            super().update(made)
            self._made = None  # a new beginning, and not made.clear(): another thread may be reading that

    def __reduce__(self) -> tuple[type, tuple[dict[Name, AnyLock | None]]]:
        return dict, (self.copy(),)

    # -- without lock objects ----------------------------------------------------------------------------------------

    def _holders(self, engine: Engine) -> Iterator[AnyLock | Lease | None]:
        """Return what each lock can be released by, through ``engine``: the lease if there is no need of a lock object."""
        made = self._made if self._anyones and engine is self._engine else None
        for name, value in self.inside():
            if made is not None and isinstance(value, Lease) and name not in made and _is_kept(value):
                yield value
            else:
                yield self[name]

    @finaliser
    def __del__(self) -> None:
        # As that of a lock object.
        try:
            made = self._made
        except AttributeError:
            return  # its making was interrupted
        if made is None or sys.is_finalizing():
            return
        for name, lease in self.inside():
            if isinstance(lease, Lease) and _is_kept(lease):
                lock = made.get(name)
                if lock is None or lock._group is None:
                    self._engine.post_if_open(partial(self._engine.abandon, lease))


for _name in (
    *("__delitem__", "__eq__", "__ior__", "__ne__", "__or__", "__repr__", "__ror__", "__setitem__"),
    *("clear", "copy", "pop", "popitem", "setdefault", "update"),
):
    setattr(LazyLocks, _name, _when_filled(getattr(dict, _name)))
