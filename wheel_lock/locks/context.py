"""The base class of contexts, and the terms of their lock objects with the check of users' callbacks."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Generator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, ClassVar, NoReturn, TypedDict, TypeVar, cast

from wheel_lock.diagnostics.debug_socket import SERVER_OF, serve_debug
from wheel_lock.diagnostics.dump import TextFile, dump
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future, noop
from wheel_lock.errors import ContextClosed
from wheel_lock.lock_types import FAIR, FENCED_FAIR, FENCED_REENTRANT, REENTRANT, semaphore
from wheel_lock.lock_types.base import LockType
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.callers import Side
from wheel_lock.locks.operations import ask
from wheel_lock.observe import ContextStats, Health, HeldLock
from wheel_lock.options import TERMS, LockOptions, count, lock_name, seconds
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.timer_threads import MustNotWait

REENTRANT_TYPES = REENTRANT, FENCED_REENTRANT  # without and with fences
FAIR_TYPES = FAIR, FENCED_FAIR

AnyMethod = TypeVar("AnyMethod", bound=Callable[..., Any])
AnyLock = TypeVar("AnyLock")
AnyCallback = TypeVar("AnyCallback")


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


def called(function: Any) -> Any:
    """Return the function that a call of ``function`` runs: that of a partial, or the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, type)):
        return function
    return next((vars(base)["__call__"] for base in type(function).__mro__ if "__call__" in vars(base)), function)


def is_awaited(function: Any) -> bool:
    """Return True if ``function`` is a coroutine function, of which the result has to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called(function))


def checked_callback(callback: AnyCallback, parameter: str = "on_lost", *, awaited: bool = False) -> AnyCallback:
    """Return ``callback``, which may be None.

    Raises:
        ValueError: It is not callable; or it is a coroutine function, and what it returns is not ``awaited``.
    """
    if callback is not None:
        if not callable(callback):
            raise ValueError(f"{parameter} must be callable, not {callback!r}")
        if not awaited and is_awaited(callback):
            raise ValueError(f"{parameter} must be a plain function, not {callback!r}: its result would not be awaited")
    return callback


class BaseContext(Side):
    """An engine, for threads or for tasks, and the making of its lock objects."""

    _takes_coroutines: ClassVar[bool] = False
    """Whether ``on_lost`` may be a coroutine function."""

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. O(1) in the number of locks."""
        return self._engine.stats()

    def held(self) -> list[HeldLock]:
        """Return the locks that are held now, in order of acquisition. O(n)."""
        return self._engine.held_locks()

    def health(self) -> Health:
        """Return whether locks can be acquired and are kept alive, for readiness probes. Does not wait.

        No server is asked: the report says what the connections, the renewals and the timer's thread have shown so far. If
        there is no connection to a node, the attempt to make one begins, so that a later call has more to say; a context
        that has not been used yet is ``ok``, and not connected.
        """
        return self._engine.health()

    def dump(self, file: TextFile | None = None) -> None:
        """Write what is held and waited for, the nodes and the counters as text, for a person to read. O(n).

        Tokens are shown as their ids. No server is asked, so it works during an outage, too.

        Args:
            file: A text file; ``sys.stderr`` by default.

        Raises:
            TypeError: ``file`` cannot be written to.
        """
        dump(self._engine, file)

    def serve_debug(self, path: str | os.PathLike[str] | None = None) -> str:
        """Open a unix socket at which ``wheel-lock top`` shows this context; return its path.

        Only this user, and root, can connect. It is removed when the context is closed or the process ends; a socket that
        an ended process has left at ``path`` is replaced. A forked child does not serve it. A second call returns the path
        of the first.

        Args:
            path: Where, at most 107 bytes; by default ``<pid>.sock`` in a directory that only this user can read.

        Raises:
            ValueError: The path is too long, or the context is shown at another path already.
            TypeError: ``path`` is not a path.
            OSError: The socket cannot be made, or another process serves one at ``path``.
            ContextClosed: The context has been closed.
        """
        if self._engine.over:
            raise ContextClosed("The context has been closed")
        return serve_debug(self._engine, path)

    @property
    def timer(self) -> HashedWheelTimer:
        """The timer that renews the locks; its ``new_timeout`` may be used for other purposes, too."""
        return self._engine.timer

    @property
    def closed(self) -> bool:
        """True if the context has been closed."""
        return self._engine.closed

    @property
    def _state(self) -> str:
        """The state as shown by ``repr()``."""
        return "closed" if self._engine.closed else f"{self._engine.held_count} held"

    @property
    def _under(self) -> str:
        """The prefix as shown by ``repr()``."""
        prefix = self._engine.options.prefix
        return f" {prefix.decode()!r}" if prefix else ""

    def __reduce__(self) -> NoReturn:
        # Not even a shallow copy: the first of the two to be collected would close the connections of both.
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: use the same one everywhere in a process, and make "
            "another in each other process; a held lock is handed over with export() and adopt()"
        )

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

    def _close(self, timeout: float | None) -> Generator[Any, None, None]:
        """Close the context; on the thread of a timer without waiting."""
        engine = self._engine
        limit_s = engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout, above=0.0)
        if (server := SERVER_OF.get(engine)) is not None:
            server.close()
        if engine.over:
            return
        try:
            yield from ask(self, partial(engine.close, limit_s), limit_s)
        except MustNotWait:
            close_later(engine, limit_s)


def close_later(engine: Engine, limit_s: float | None = None) -> None:
    """Close ``engine`` within ``limit_s`` seconds, by default its ``close_timeout``, without waiting."""
    limit_s = engine.options.close_timeout_s if limit_s is None else limit_s
    engine.post_if_running(partial(engine.close, limit_s, Future(noop)))
