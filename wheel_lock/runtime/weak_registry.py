"""Things that are held weakly and looked at from any thread, in finalisers, and in a forked child."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """A set of weak references that may change while it is gone through.

    (A ``weakref.WeakSet`` raises RuntimeError when another thread, or a finaliser, adds to it meanwhile.)
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}

    def add(self, item: T) -> None:
        """Add ``item``, which goes by itself when nobody else holds it any more."""
        key, references = id(item), self._references
        references[key] = weakref.ref(item, lambda reference: references.pop(key, None))

    def __iter__(self) -> Iterator[T]:
        for reference in self._references.copy().values():  # copied in one step of the interpreter
            item = reference()
            if item is not None:
                yield item

    def __len__(self) -> int:
        return len(self._references)
