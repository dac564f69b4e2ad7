"""The decorator: a function, or a coroutine function, that holds a lock named after its arguments while it runs.

Each call has its own lock object. A recursive call, direct or not, would wait without end for the lock of its caller; so
the locks of running calls are registered by owner, and a recursive call raises LockAlreadyHeld.

A function holds its lock until it returns. A body that runs later (of a generator, a context manager made of one, a
coroutine, or a future) runs without the lock, so it is refused: when the function is decorated if that can be seen from the
function, else when it returns.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import string
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from wheel_lock.aio import call as aio_call
from wheel_lock.aio.lock import Lock as AsyncLock
from wheel_lock.engine.engine import Engine
from wheel_lock.errors import LockAlreadyHeld, quoted
from wheel_lock.lease import Owner
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.context import LockTerms, called, is_awaited, spelled_out
from wheel_lock.sync import call as sync_call
from wheel_lock.sync.lock import Lock

P = ParamSpec("P")
R = TypeVar("R")

# The locks of running calls, by their owners. Weak: a lock is collected with its call, also if that is interrupted.
_calls: weakref.WeakValueDictionary[tuple[Owner, Engine, str | bytes], BaseLock] = weakref.WeakValueDictionary()


def _call_of(lock: BaseLock, owner: Owner) -> tuple[Owner, Engine, str | bytes]:
    """Return the key of a call that acquires ``lock``. Raises LockAlreadyHeld if a call of the same owner holds it."""
    call = owner, lock._engine, lock.name
    outer = _calls.get(call)
    if outer is not None and outer.is_held:
        raise LockAlreadyHeld(
            f"The lock {quoted(lock.name)} is held by a call that this one is part of, and is not reentrant", lock.name
        )
    return call


class Locked:
    """The decorator object; made by :meth:`wheel_lock.LockContext.locked`.

    Args:
        template: The lock's name, with the function's parameters in braces.
        new_lock: Returns the lock of a given name, for a call of a function.
        new_async_lock: The same for a coroutine function.

    Raises:
        ValueError: The template is not a str, or not a valid name, or a parameter of the lock is out of range.
    """

    def __init__(
        self, template: str, new_lock: Callable[[str], Lock], new_async_lock: Callable[[str], AsyncLock]
    ) -> None:
        if not isinstance(template, str):
            raise ValueError(f"the name of a decorator's lock must be str, not {type(template).__name__}")
        self._template = template
        self._fields = list(_fields(template))
        self._new_lock = new_lock
        self._new_async_lock = new_async_lock
        self._sample = "name" if self._fields else template.format()
        new_async_lock(self._sample)  # raises here for invalid parameters of the lock, not at the first call

    if not TYPE_CHECKING:  # where types are checked this is an object like any other

        def __bool__(self) -> bool:
            raise TypeError(
                f"context.locked({self._template!r}) makes a decorator; context.lock({self._template!r}).locked() asks "
                "whether a lock is held"
            )

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...

    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        """Return ``function``, wrapped. Raises TypeError or ValueError if it cannot be."""
        title = title_of(function)
        if isinstance(function, (staticmethod, classmethod)):
            raise TypeError(f"{title}: @{type(function).__name__} belongs above the decorator that locks, not below it")
        refuse_to_decorate(function)
        signature = inspect.signature(function)
        for field in self._fields:
            name = field.partition(".")[0].partition("[")[0]
            if name not in signature.parameters:
                raise ValueError(f"{{{field}}} in {self._template!r} is not a parameter of {title}")

        def filled(*arguments: P.args, **named: P.kwargs) -> str:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            return self._template.format(**bound.arguments)

        if is_awaited(function):

            @functools.wraps(function)
            async def with_async_lock(*arguments: P.args, **named: P.kwargs) -> Any:
                lock = self._new_async_lock(filled(*arguments, **named))
                call = _call_of(lock, aio_call.current_owner())
                async with lock:
                    _calls[call] = lock
                    result = await function(*arguments, **named)
                    refuse_to_return(result, title, awaited=True)
                    return result

            return with_async_lock

        self._new_lock(self._sample)  # raises here for a callback that only tasks can await

        @functools.wraps(function)
        def with_lock(*arguments: P.args, **named: P.kwargs) -> Any:
            lock = self._new_lock(filled(*arguments, **named))
            call = _call_of(lock, sync_call.current_owner())
            with lock:
                _calls[call] = lock
                result = function(*arguments, **named)
                refuse_to_return(result, title, awaited=False)
                return result

        return with_lock


class Decorates:
    """A context for threads whose locks decorate functions."""

    lock: Callable[..., Lock]
    asyncio: Any

    @spelled_out(LockTerms)
    def locked(self, name: str, timeout: float | None = None, **terms: Unpack[LockTerms]) -> Locked:
        """Return a decorator: the function, or coroutine function, runs while it holds a lock.

        The lock is not reentrant: a recursive call that needs the same name, in the same thread or task, raises
        LockAlreadyHeld instead of waiting for ever.

        The lock is released when the function returns, so an unfinished result is refused: generators and context managers
        made of them, coroutines, and futures and tasks that are not done. A function that is not a coroutine function may
        not return any other awaitable either. The result is closed or cancelled if possible, and the call raises
        TypeError. Other lazy results (``map``, ``zip``) are returned as they are: what they call runs without the lock.
        The other parameters are those of :meth:`lock`.

        Args:
            name: The lock's name; ``{user_id}`` stands for the argument of that name, ``{order.id}`` for its attribute.

        Raises:
            ValueError: A value is out of range, or a field of the name is not a parameter.
            TypeError: The function is a generator, or a context manager made of one, whose body would run without the lock.

        Example:
            >>> from wheel_lock.testing import fake_context
            >>> with fake_context() as context:
            ...     @context.locked("report:{user_id}", timeout=30.0)
            ...     def write_report(user_id: int) -> str:
            ...         return context.held()[0].name
            ...     write_report(7)
            'report:7'
        """
        return Locked(
            name,
            lambda filled: self.lock(filled, timeout=timeout, **terms),
            lambda filled: self.asyncio.lock(filled, timeout=timeout, **terms),
        )


def _fields(template: str) -> Iterator[str]:
    """Yield the fields in braces, including those in format specifications."""
    for _, field, form, _ in string.Formatter().parse(template):
        if field is not None:
            yield field
            yield from _fields(form or "")


_TOO_LATE = "its body runs when the lock has been released already"

# contextlib's decorators return functions with these codes, which return instances of these classes.
_MANAGERS: tuple[Any, ...] = contextlib.contextmanager, contextlib.asynccontextmanager
_MANAGER_CODES = tuple(manager(iter).__code__ for manager in _MANAGERS)
_MANAGER_CLASSES = contextlib._GeneratorContextManager, contextlib._AsyncGeneratorContextManager

_DONE = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset})  # the common case


def title_of(function: Any) -> str:
    """Return the qualified name of a function, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def refuse_to_decorate(function: Callable[..., Any]) -> None:
    """Raise TypeError for a generator, or a context manager made of one: a call does not run the body."""
    body = called(function)
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise TypeError(f"{title_of(function)} is a generator: {_TOO_LATE}; acquire the lock in the body")
    if getattr(body, "__code__", None) in _MANAGER_CODES:
        raise TypeError(
            f"{title_of(function)} is a context manager made of a generator: {_TOO_LATE}; acquire the lock in the body"
        )


def refuse_to_return(result: Any, title: str, *, awaited: bool) -> None:
    """Raise TypeError for an unfinished ``result`` of the function ``title``, after it has been closed or cancelled.

    ``awaited`` is True for a coroutine function, whose result has been awaited.
    """
    if type(result) in _DONE:
        return
    found = _unfinished(result, awaited)
    if found is None:
        return
    what, instead = found
    if issubclass(type(result), Coroutine) and not awaited:
        title = f"{title} is no coroutine function, but"
        instead = "decorate one (async def), and await this in its body"
    raise TypeError(f"{title} returned {what}: it would run unlocked; {instead}")


def _unfinished(result: Any, awaited: bool) -> tuple[str, str] | None:
    """Close or cancel an unfinished result; return a description of it, and a remedy. None if it is finished.

    The type is checked, not ``__class__``, which would evaluate a lazy proxy.
    """
    kind = type(result)
    if issubclass(kind, Coroutine):
        _close(result)
        return "a coroutine", "await it in the body"
    if hasattr(kind, "_asyncio_future_blocking") or issubclass(kind, concurrent.futures.Future):
        if result.done():
            return None
        _cancel(result)
        return f"a {kind.__name__} that is not done", "wait for its result in the body"
    if issubclass(kind, Awaitable) and not awaited:  # may be the value of a coroutine, such as a client
        return f"an awaitable {kind.__name__}", "await it in the body of a coroutine function"
    if issubclass(kind, _MANAGER_CLASSES):
        _close(getattr(result, "gen", None))
        return "a context manager made of a generator", "acquire the lock in its body"
    if issubclass(kind, (Generator, AsyncGenerator)):
        _close(result)
        return "a generator", "acquire the lock in its body, or return a list"
    return None


def _close(result: Any) -> None:
    """Close a coroutine or a generator, to avoid a warning. (An asynchronous generator needs its loop for that.)"""
    if isinstance(result, (Coroutine, Generator)):
        with contextlib.suppress(Exception):  # its body had begun, and fails: the result is refused nevertheless
            result.close()


def _cancel(future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
    """Cancel a future; one of asyncio on the thread of its loop."""
    if isinstance(future, concurrent.futures.Future):
        future.cancel()
        return
    loop = future.get_loop()
    with contextlib.suppress(RuntimeError):  # its loop is closed, so it will not run
        if asyncio._get_running_loop() is loop or not loop.is_running():
            future.cancel()
        else:
            loop.call_soon_threadsafe(future.cancel)
