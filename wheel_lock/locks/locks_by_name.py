"""The result of a bulk acquire: a dict whose lock objects are made when they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from functools import partial, wraps
from typing import Any, Generic, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.exclusion import exclusively
from wheel_lock.locks.base import BaseLock, taking
from wheel_lock.rows import Rows
from wheel_lock.runtime.interruptions import finaliser

Name = TypeVar("Name", bound=str | bytes)
AnyLock = TypeVar("AnyLock", bound=BaseLock)


class LocksByName(dict[Name, AnyLock | None], Generic[Name, AnyLock]):
    """The lock of each name, or None.

    In place of locks that were not asked for, and that any caller may release, it has their rows. A look at one lock makes
    those of its rows, each once; what compares or changes values makes all first. One that is collected abandons the locks
    that it has not made, as each of them would.

    Args:
        engine: The engine of the locks.
        new_lock: Returns the lock object of a name.
    """

    __slots__ = ("_engine", "_left", "_new_lock")

    def __init__(self, engine: Engine, new_lock: Callable[[Any], AnyLock]) -> None:
        super().__init__()
        self._engine = engine
        self._new_lock = new_lock
        # The rows in it, each with its locks while they are made.
        self._left: dict[Rows, dict[bool, list[AnyLock]]] = {}

    def put(self, name: Any, lock: AnyLock | None) -> None:
        """Add a lock that is made, or None."""
        super().__setitem__(name, lock)

    def put_rows(self, rows: Rows) -> None:
        """Add the locks of rows, without making them."""
        self._left[rows] = {}
        names: dict[Any, Any] = dict.fromkeys(rows.names, rows)
        super().update(names)

    def __getitem__(self, name: Name) -> Any:
        found: Any = super().__getitem__(name)
        if type(found) is Rows:
            exclusively(taking(), self._make, found)
            found = super().__getitem__(name)
        return found

    def get(self, name: Name, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __iter__(self) -> Iterator[Name]:  # C code that copies a dict asks for each value then
        return super().__iter__()

    def _make(self, rows: Rows) -> None:
        """Make the locks of rows, each once, whatever interrupts this or does the same in between."""
        made = self._left.get(rows)
        if made is None:
            return
        locks = made.get(True) or made.setdefault(True, [self._new_lock(name) for name in rows.names])
        for lock, lease in zip(locks, rows.leases, strict=True):
            if lock._lease is None:
                lock._lease = lease
        update: Callable[[Any], object] = super().update
        pairs = zip(rows.names, locks, strict=True)
        if rows in self._left:  # else a handler has made them in between, and may have changed what is here
            update(pairs)
            self._left.pop(rows, None)

    def values(self) -> Any:
        return _Locks(self)

    def items(self) -> Any:
        return _Items(self)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def make(self, which: Callable[[Rows], bool] = lambda rows: True) -> None:
        """Make all locks, or those of rows of which ``which`` returns True."""
        for rows in filter(which, list(self._left)):
            exclusively(taking(), self._make, rows)

    def as_they_are(self) -> Iterable[Any]:
        """Return the locks, and each of the rows of which no lock and no lease is made."""
        self.make(lambda rows: rows.made or not rows.group.alive)
        values: Any = list(super().values())
        rows = dict.fromkeys(value for value in values if isinstance(value, Rows))
        return [*rows, *(value for value in values if not isinstance(value, Rows))]

    @finaliser
    def __del__(self) -> None:
        left = list(getattr(self, "_left", ()))  # without it, its making was interrupted
        held = [rows for rows in left if rows.left and rows.group.alive]
        if held and not sys.is_finalizing():
            self._engine.post_if_open(partial(self._engine.abandon_all, held))


class _Locks(ValuesView[Any]):
    """The locks of a bulk acquire: those that are looked at are made."""

    _mapping: LocksByName[Any, Any]

    def __reversed__(self) -> Iterator[Any]:
        return (self._mapping[name] for name in reversed(self._mapping))


class _Items(ItemsView[Any, Any]):
    """The names and locks of a bulk acquire, as above."""

    _mapping: LocksByName[Any, Any]

    def __reversed__(self) -> Iterator[Any]:
        return ((name, self._mapping[name]) for name in reversed(self._mapping))


def as_they_are(engine: Engine, locks: Iterable[Any]) -> Iterable[Any]:
    """Return ``locks``, or of the values of a bulk acquire by this engine rows in place of locks that are not made."""
    of_bulk = locks._mapping if isinstance(locks, _Locks) else None
    return locks if of_bulk is None or of_bulk._engine is not engine else of_bulk.as_they_are()


def _behind_all(name: str) -> Any:
    method = getattr(dict, name)

    @wraps(method)
    def changed(self: LocksByName[Any, Any], *arguments: Any, **keywords: Any) -> Any:
        self.make()
        return method(self, *arguments, **keywords)

    return changed


for _name in (
    *("__delitem__", "__eq__", "__ior__", "__ne__", "__or__", "__repr__", "__ror__", "__setitem__", "clear", "copy"),
    *("pop", "popitem", "setdefault", "update"),
):
    setattr(LocksByName, _name, _behind_all(_name))
