"""Unfinished results of decorated functions: generators, coroutines, futures, and wrappers that run a body later.

A decorated function holds its lock until it returns. A body that runs later runs without the lock, so it is refused: when
the function is decorated if that can be seen from the function, else when it returns.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import inspect
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any

from wheel_lock.locks.callbacks import called

_TOO_LATE = "its body runs when the lock has been released already"


def _of_helpers() -> Generator[None]:
    yield


async def _of_async_helpers() -> AsyncGenerator[None]:
    yield


# contextlib's decorators return functions with the code of these, which return instances of these classes.
_HELPERS: tuple[Any, ...] = contextlib.contextmanager(_of_helpers), contextlib.asynccontextmanager(_of_async_helpers)
_HELPER_CODES = tuple(helper.__code__ for helper in _HELPERS)
_HELPER_CLASSES = tuple(type(helper()) for helper in _HELPERS)

_CALLS_LATER = (
    *(map, filter, type(iter(int, 1)), itertools.starmap, itertools.accumulate, itertools.filterfalse),
    *(itertools.takewhile, itertools.dropwhile, itertools.groupby),
)
_PASSES_ON = (
    *(zip, enumerate, itertools.chain, itertools.compress, itertools.cycle, itertools.islice, itertools.pairwise),
    *(itertools.zip_longest, getattr(itertools, "batched", zip)),  # new in Python 3.12
)
_PARTS = (tuple, type(iter(())))  # containers in which some of those keep their iterators
_MOST = 1000  # the most parts of an iterator that are searched: it may refer to all data of a program


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
    if getattr(body, "__code__", None) in _HELPER_CODES:
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


_DONE = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset})  # the fast path


def _unfinished(result: Any, awaited: bool) -> tuple[str, str] | None:
    """Close or cancel an unfinished result; return a description of it, and a remedy. None if it is finished.

    The type is checked, not ``__class__``, which would evaluate a lazy proxy.
    """
    kind = type(result)
    what = kind.__name__
    if issubclass(kind, Coroutine):
        _close(result)
        return "a coroutine", "await it in the body"
    if hasattr(kind, "_asyncio_future_blocking") or issubclass(kind, concurrent.futures.Future):
        if result.done():
            return None
        _cancel(result)
        return f"a {what} that is not done", "wait for its result in the body"
    if issubclass(kind, Awaitable) and not awaited:  # may be the value of a coroutine, such as a client
        return f"an awaitable {what}", "await it in the body of a coroutine function"
    if issubclass(kind, _HELPER_CLASSES):
        _close(getattr(result, "gen", None))
        return "a context manager made of a generator", "acquire the lock in its body"
    if issubclass(kind, (Generator, AsyncGenerator)):
        _close(result)
        return "a generator", "acquire the lock in its body, or return a list"
    if issubclass(kind, _PASSES_ON + _CALLS_LATER) and _is_lazy(result):
        return f"an iterator ({what}) that runs a body when it is read", "return a list"
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
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = not loop.is_running()
    try:
        if here:
            future.cancel()
        else:
            loop.call_soon_threadsafe(future.cancel)
    except RuntimeError:
        pass  # its loop is closed, so it will not run


def _is_lazy(iterator: Any) -> bool:
    """Return True if reading ``iterator`` calls a function, or resumes a generator."""
    parts = [iterator]
    for part in parts:
        if issubclass(type(part), (*_CALLS_LATER, Generator)):
            return True
        if len(parts) < _MOST and issubclass(type(part), (*_PASSES_ON, *_PARTS)):
            parts += gc.get_referents(part)[:_MOST]
    return False
