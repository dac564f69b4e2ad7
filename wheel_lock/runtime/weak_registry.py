"""A registry of weak references that is safe in any thread, in finalisers, and in a forked child."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class WeakRegistry(Generic[T]):
    """A set of weak references that may change during an iteration.

    (A ``weakref.WeakSet`` raises RuntimeError when another thread, or a finaliser, adds to it meanwhile.)
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}

    def add(self, item: T) -> None:
        """Add ``item``, which is removed when it is collected."""
        key, references = id(item), self._references
        # A callback without Python code, which no signal's handler can interrupt.
        references[key] = weakref.ref(item, partial(references.pop, key))

    def __iter__(self) -> Iterator[T]:
        # Atomic. copy() is not: a collection in the middle of it, whose callbacks remove items, leaves a broken copy.
        for reference in list(self._references.values()):
            item = reference()
            if item is not None:
                yield item

    def __len__(self) -> int:
        return len(self._references)
