"""The lock types and options of all locks beyond the plain one, for the methods of contexts that make them.

They get the ``locals()`` of these methods; see :meth:`wheel_lock.options.ContextOptions.of_lock`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wheel_lock.lock_types import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT, Permit, semaphore
from wheel_lock.lock_types.base import LockType
from wheel_lock.options import TERMS, ContextOptions, LockOptions, count, lock_name

_TYPES: dict[str, tuple[LockType, LockType]] = {  # without and with fences
    "reentrant_lock": (REENTRANT, FENCED_REENTRANT),
    "fair_lock": (FAIR, FENCED_FAIR),
}


def terms_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those that are parameters of a lock: the timeout, and the other terms."""
    return {term: value for term, value in given.items() if term in TERMS or term == "timeout"}


def named_options(context: ContextOptions, given: Mapping[str, Any]) -> LockOptions:
    """Return the options of a lock. Raises ValueError for an invalid name or option."""
    lock_name(given["name"], context.prefix)
    return context.of_lock(given)


def type_and_options(context: ContextOptions, method: str, given: Mapping[str, Any]) -> tuple[LockType, LockOptions]:
    """Return the lock type and the options of a reentrant or fair lock. Raises as :func:`named_options` does."""
    options = named_options(context, given)
    return _TYPES[method][options.fencing], options


def semaphore_of(context: ContextOptions, given: Mapping[str, Any]) -> tuple[Permit, LockOptions]:
    """Return the lock type and the options of a semaphore. Raises as :func:`named_options` does."""
    lock_name(given["name"], context.prefix)
    return semaphore(count("permits", given["permits"], least=1)), context.of_lock(given)
