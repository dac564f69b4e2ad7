"""The terms of lock objects, and their check, for contexts of threads and of tasks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypedDict, TypeVar, cast

from wheel_lock.engine.engine import Engine
from wheel_lock.lock_types import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT, semaphore
from wheel_lock.lock_types.base import LockType
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.callbacks import checked_callback
from wheel_lock.options import TERMS, LockOptions, count, lock_name

REENTRANT_TYPES = REENTRANT, FENCED_REENTRANT  # without and with fences
FAIR_TYPES = FAIR, FENCED_FAIR

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Any])
AnyLock = TypeVar("AnyLock")


class FewTerms(TypedDict, total=False):
    """The terms of all kinds of locks, beside the timeout; :meth:`wheel_lock.LockContext.lock` documents them."""

    blocking: bool
    blocking_timeout: float | None
    renew: bool
    renew_every: float | None
    max_renewals: int | None
    max_hold: float | None
    retry_every: float | None
    max_attempts: int | None
    on_lost: OnLost | None


class FencedTerms(FewTerms, total=False):
    """The terms of the kinds that always belong to their thread or task."""

    fencing: bool


class OwnedTerms(FewTerms, total=False):
    """The terms of the kinds without fences."""

    thread_local: bool


class LockTerms(FencedTerms, OwnedTerms, total=False):
    """All terms of a lock."""


_DEFAULTS: Mapping[str, Any] = {**TERMS, "on_lost": None, "cancel_on_lost": False}


def spelled_out(
    keywords: Any, defaults: Mapping[str, Any] = _DEFAULTS, *, closed: bool = True
) -> Callable[[AnyMethod], AnyMethod]:
    """Return a decorator for a method with ``**terms: Unpack[keywords]``, whose parameters only type checkers know.

    ``help()`` and ``inspect.signature()`` show those, with defaults. If they are ``closed`` the method raises TypeError
    for any other keyword; else that is left to what it calls.
    """

    def decorate(method: AnyMethod) -> AnyMethod:
        signature = inspect.signature(method)
        *own, _ = signature.parameters.values()
        unpacked = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults[name],
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in inspect.get_annotations(keywords).items()
        ]
        parameters = {parameter.name: parameter for parameter in (*own, *unpacked)}

        @functools.wraps(method)
        def checked(*arguments: Any, **given: Any) -> Any:
            if closed and not parameters.keys() >= given.keys():
                unexpected = next(name for name in given if name not in parameters)
                raise TypeError(f"{method.__qualname__}() got an unexpected keyword argument {unexpected!r}")
            return method(*arguments, **given)

        checked.__dict__["__signature__"] = signature.replace(parameters=[*parameters.values()])
        return cast("AnyMethod", checked)

    return decorate


def permit_types(permits: int) -> tuple[LockType]:
    """Return the lock type of a semaphore. Raises ValueError for a number that is out of range."""
    return (semaphore(count("permits", permits, least=1)),)


class LockFactory:
    """The base class of contexts that make locks, for threads or for tasks."""

    _engine: Engine
    _takes_coroutines: ClassVar[bool] = False
    """Whether ``on_lost`` may be a coroutine function."""

    def _checked(
        self, timeout: float | None, terms: Mapping[str, Any], *names: str | bytes
    ) -> tuple[LockOptions, OnLost | None]:
        """Return a lock's options and its callback. Raises ValueError for a name or term that is out of range."""
        options = self._engine.options
        for name in names:
            lock_name(name, options.prefix)
        return options.of_lock(timeout, terms), checked_callback(terms.get("on_lost"), awaited=self._takes_coroutines)

    def _new(
        self,
        lock_class: Callable[..., AnyLock],
        types: tuple[LockType, ...],
        name: str | bytes,
        timeout: float | None,
        terms: Mapping[str, Any],
    ) -> AnyLock:
        """Return a lock object, given its lock type without fences and, if there is one, with them."""
        options, callback = self._checked(timeout, terms, name)
        more = {"cancel_on_lost": terms["cancel_on_lost"]} if "cancel_on_lost" in terms else {}
        return lock_class(self._engine, types[options.fencing], name, options, callback, **more)
