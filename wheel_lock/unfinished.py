"""Unfinished results of decorated functions: generators, context managers made of them, coroutines, and futures.

A decorated function holds its lock until it returns. A body that runs later runs without the lock, so it is refused: when
the function is decorated if that can be seen from the function, else when it returns.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any

from wheel_lock.locks.callbacks import called

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
