"""What a client was configured with, and what may lead back to the client: the client's own methods, a closure over it.

A context that is shared is kept for as long as its client is there. So it must not keep the client: what leads back to that
is held weakly; the client holds it anyway.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

_MOST = 1000  # objects that are looked at, the nearest first: a way back is a few steps long, or there is none
_PLAIN = (type(None), bool, int, float, str, bytes)
_NO_WAY = (*_PLAIN, ModuleType, type)  # what is global is followed no further


class ClientGone(Exception):
    """The client that a shared context was made for is gone, and what was its own with it."""


class Tie:
    """A setting of a client.

    Args:
        value: What it is.
        made: Makes of it what is used.
    """

    __slots__ = ("_made", "_value", "_weak")

    def __init__(self, value: Any, made: Callable[[Any], Any] | None = None) -> None:
        self._value = value
        self._weak: weakref.ref[Any] | None = None
        self._made = made

    def __call__(self) -> Any:
        """Return what is used.

        Raises:
            ClientGone: It went with its client.
        """
        value = self._value if self._weak is None else self._weak()
        if value is None and self._weak is not None:
            raise ClientGone("the client that LockContext.shared() was asked for is gone, and its settings with it")
        return value if self._made is None else self._made(value)

    @property
    def loose(self) -> bool:
        """Whether it keeps nothing."""
        return self._weak is not None

    def loosen(self, owners: Iterable[object]) -> None:
        """Keep none of ``owners`` from being collected, who hold the value themselves."""
        if self._weak is None and _leads_to(self._value, owners):
            try:
                bound = type(self._value) is MethodType
                self._weak = weakref.WeakMethod(self._value) if bound else weakref.ref(self._value)
            except TypeError:
                return  # of a kind that cannot be held weakly
            self._value = None


def tied(settings: dict[str, Any]) -> dict[str, Tie]:
    """Take those of ``settings`` out that are objects, and return them."""
    return {name: Tie(settings.pop(name)) for name, value in list(settings.items()) if type(value) not in _PLAIN}


def _leads_to(start: object, owners: Iterable[object]) -> bool:
    """Whether one of ``owners`` is kept by what ``start`` refers to.

    What an object is, its type says: to ask a lazy proxy for its class would run a user's code, and a dead one raises.
    """
    wanted = {id(owner) for owner in owners}
    seen, found = {id(start)}, [start]
    for each in found:
        if id(each) in wanted:
            return True
        if len(found) < _MOST:
            for part in islice(_parts(each), _MOST):
                if id(part) not in seen and not issubclass(type(part), _NO_WAY):
                    seen.add(id(part))
                    found.append(part)
    return False


def _parts(one: object) -> Iterable[object]:
    if type(one) is FunctionType:  # all but its globals
        return one.__closure__ or (), one.__defaults__ or (), one.__kwdefaults__ or (), one.__dict__
    return gc.get_referents(one)
