"""References to settings of a client that may refer to the client itself, such as its methods and closures over it.

A shared context exists as long as its client, so the context must not keep the client alive. It has only weak references
to objects that lead to the client; the client keeps these objects alive.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MOST_OBJECTS = 1000  # limit of a breadth-first search: real settings lead back within a few steps
_PLAIN = (type(None), bool, int, float, str, bytes)
_NOT_FOLLOWED = (*_PLAIN, ModuleType, type)  # globals are not searched


class Tie:
    """A reference to a setting of a client. ``convert``, if given, converts the object for use.

    Attributes:
        loose: True if the reference is weak.
    """

    __slots__ = ("_convert", "_get", "loose")

    def __init__(self, value: Any, convert: Callable[[Any], Any] | None = None) -> None:
        self._get: Callable[[], Any] = lambda: value
        self._convert = convert
        self.loose: bool = False

    def __call__(self) -> Any:
        """Return the object, converted for use. Raises ConnectionError if it has been collected with its client."""
        value = self._get()
        if value is None and self.loose:
            raise ConnectionError(
                "the client that LockContext.shared() was asked for is gone, and its settings with it"
            )
        return value if self._convert is None else self._convert(value)

    def loosen(self, owners: Iterable[object]) -> None:
        """Make the reference weak if the object leads to one of ``owners``, which keep it alive themselves."""
        value = self._get()
        if not self.loose and _leads_to(value, owners):
            with suppress(TypeError):  # its type has no weak references
                self._get = weakref.WeakMethod(value) if type(value) is MethodType else weakref.ref(value)
                self.loose = True


def tied(settings: dict[str, Any]) -> dict[str, Tie]:
    """Remove the values of ``settings`` that are objects, and return a tie for each."""
    return {name: Tie(settings.pop(name)) for name, value in list(settings.items()) if type(value) not in _PLAIN}


def _leads_to(start: object, owners: Iterable[object]) -> bool:
    """Return whether ``start`` refers to one of ``owners``, directly or through other objects.

    Reads the type, not ``__class__``, for which a lazy proxy would run a user's code and a dead one would raise.
    """
    wanted = {id(owner) for owner in owners}
    seen, found = {id(start)}, [start]
    for each in found:
        if id(each) in wanted:
            return True
        if len(found) < _MOST_OBJECTS:
            for part in islice(_parts(each), _MOST_OBJECTS):
                if id(part) not in seen and not issubclass(type(part), _NOT_FOLLOWED):
                    seen.add(id(part))
                    found.append(part)
    return False


def _parts(value: object) -> Iterable[object]:
    if type(value) is FunctionType:  # all but its globals
        return value.__closure__ or (), value.__defaults__ or (), value.__kwdefaults__ or (), value.__dict__
    return gc.get_referents(value)
