"""What is not done when a call returns: generators, coroutines, futures, and helpers that run a body later.

A decorated function holds its lock until it returns. A body that runs after that runs without the lock, so it is refused:
when the function is decorated where that can be seen, else when it returns such a thing.
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
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

_TOO_LATE = "its body runs when the lock has been released already"


def _of_helpers() -> Generator[None]:
    yield


async def _of_async_helpers() -> AsyncGenerator[None]:
    yield


# What contextlib's decorators make of a generator function has the code of these, and returns instances of these classes.
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
_PARTS = (tuple, type(iter(())))  # in which some of those keep what they pass on
_MOST = 1000  # of the parts of such an iterator that are looked at; it may pass on all of a program's data


def title_of(function: Any) -> str:
    """Return what a function is called in messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def _called(function: Any) -> Any:
    """Return the function that runs where ``function`` is called: behind partials, and of an object the ``__call__``."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, type)):
        return function
    return next((vars(base)["__call__"] for base in type(function).__mro__ if "__call__" in vars(base)), function)


def is_awaited(function: Any) -> bool:
    """Whether a call returns a coroutine, which is to be awaited under the lock."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_called(function))


def refuse_to_decorate(function: Callable[..., Any]) -> None:
    """Refuse a function whose body does not run when it is called.

    Raises:
        TypeError: It is one.
    """
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{title_of(function)} is a generator: {_TOO_LATE}; acquire the lock in the body")
    if getattr(called, "__code__", None) in _HELPER_CODES:
        raise TypeError(
            f"{title_of(function)} is a context manager made of a generator: {_TOO_LATE}; acquire the lock in the body"
        )


def refuse_to_return(result: Any, title: str, *, awaited: bool) -> None:
    """Refuse what a function has returned, where it is not done; it is closed, or cancelled.

    Args:
        result: What was returned.
        title: What the function is called.
        awaited: Whether it is a coroutine function.

    Raises:
        TypeError: It is not done.
    """
    if type(result) in _DONE:
        return
    found = _unfinished(result, awaited)
    if found is None:
        return
    what, instead = found
    if issubclass(type(result), Coroutine) and not awaited:
        title, instead = (
            f"{title} is no coroutine function, but",
            "decorate one (async def), and await this in its body",
        )
    raise TypeError(f"{title} returned {what}: it would run unlocked; {instead}")


_DONE = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset})  # nearly always


def _unfinished(result: Any, awaited: bool) -> tuple[str, str] | None:
    """Return what a result is, and what to do instead, having closed or cancelled it; None where it is done.

    What it is, its type says: to ask a lazy proxy for its class would have it do its work.
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
    if issubclass(kind, Awaitable) and not awaited:  # else its caller has got it as a value, such as a client or a pool
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
    """Close a coroutine or a generator, so that nobody warns of it. (An asynchronous generator needs its loop for that.)"""
    if isinstance(result, (Coroutine, Generator)):
        with contextlib.suppress(Exception):  # it has begun, and fails: what is wrong with it is told all the same
            result.close()


def _cancel(future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
    """Cancel what was returned: in the thread of its loop, where that is another one."""
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
        pass  # its loop is closed, so nothing of it will run


def _is_lazy(iterator: Any) -> bool:
    """Whether reading an iterator calls a function, or resumes a generator, that it was made of."""
    parts = [iterator]
    for part in parts:
        if issubclass(type(part), (*_CALLS_LATER, Generator)):
            return True
        if len(parts) < _MOST and issubclass(type(part), (*_PASSES_ON, *_PARTS)):
            parts += gc.get_referents(part)[:_MOST]
    return False
