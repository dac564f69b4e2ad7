"""Options of the lock objects beyond the plain one, checked against what each of them takes."""

from __future__ import annotations

from wheel_lock.lock_types import Permit, semaphore
from wheel_lock.options import LockOptions, SharedTerms, count, lock_name, lock_options


def allowed_options(maker: str, allowed: type, timeout: float, terms: dict[str, object]) -> LockOptions:
    """Return the options, or raise TypeError where one does not fit this kind of lock, as Python itself would."""
    known: frozenset[str] = getattr(allowed, "__optional_keys__")  # noqa: B009  # mypy does not know it
    for name in terms:
        if name not in known:
            raise TypeError(f"{maker}() got an unexpected keyword argument {name!r}")
    return lock_options(timeout, **terms)


def semaphore_of(
    name: str | bytes, permits: int, timeout: float, terms: dict[str, object]
) -> tuple[Permit, LockOptions]:
    """Return the type and the options of a semaphore, or raise ValueError or TypeError."""
    lock_name(name)
    lock_type = semaphore(count("permits", permits, least=1))
    return lock_type, allowed_options("semaphore", SharedTerms, timeout, terms)
