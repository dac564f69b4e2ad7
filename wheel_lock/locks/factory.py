"""The lock types and options of all locks beyond the plain one, for the methods of contexts that make them."""

from __future__ import annotations

from collections.abc import Mapping

from wheel_lock.lock_types import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT, Permit, semaphore
from wheel_lock.lock_types.base import LockType
from wheel_lock.options import LockOptions, LockTerms, OwnedTerms, SharedTerms, count, lock_name, lock_options

_ALLOWED: dict[str, type] = {
    "reentrant_lock": OwnedTerms,
    "rw_lock": OwnedTerms,
    "fair_lock": LockTerms,
    "semaphore": SharedTerms,
    "multi_lock": SharedTerms,
}
_TYPES: dict[str, tuple[LockType, LockType]] = {  # without and with fences
    "reentrant_lock": (REENTRANT, FENCED_REENTRANT),
    "fair_lock": (FAIR, FENCED_FAIR),
}


def allowed_options(method: str, timeout: float, terms: Mapping[str, object]) -> LockOptions:
    """Return the options. Raises TypeError, as Python itself would, for one that ``method`` does not take."""
    known: frozenset[str] = getattr(_ALLOWED[method], "__optional_keys__")  # noqa: B009  # mypy does not know it
    for name in terms:
        if name not in known:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")
    return lock_options(timeout, **terms)


def named_options(method: str, name: str | bytes, timeout: float, terms: Mapping[str, object]) -> LockOptions:
    """Return the options. Raises ValueError for an invalid name or option, TypeError for an unknown option."""
    lock_name(name)
    return allowed_options(method, timeout, terms)


def type_and_options(
    method: str, name: str | bytes, timeout: float, terms: Mapping[str, object]
) -> tuple[LockType, LockOptions]:
    """Return the lock type and the options of a reentrant or fair lock. Raises as :func:`named_options` does."""
    options = named_options(method, name, timeout, terms)
    return _TYPES[method][options.fencing], options


def semaphore_of(
    name: str | bytes, permits: int, timeout: float, terms: Mapping[str, object]
) -> tuple[Permit, LockOptions]:
    """Return the lock type and the options of a semaphore. Raises as :func:`named_options` does."""
    lock_name(name)
    lock_type = semaphore(count("permits", permits, least=1))
    return lock_type, allowed_options("semaphore", timeout, terms)
