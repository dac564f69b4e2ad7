"""Results whose work is still to come: generators, coroutines, futures, and helpers that run a body later.

A decorated function holds its lock until it returns. A body that runs after that runs without the lock, so it is refused:
when the function is decorated if it is recognised there, else when the function returns it.
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
_PARTS = (tuple, type(iter(())))  # in which some of those keep their iterators
_DEPTH = 8  # of iterators over iterators


def title_of(function: Any) -> str:
    """Return the name of a function for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None)
    return name if isinstance(name, str) else type(function).__qualname__


def _called(function: Any) -> Any:
    """Return the function that a call of ``function`` runs: behind partials, or the ``__call__`` of an object."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, type)):
        return function
    return next((vars(base)["__call__"] for base in type(function).__mro__ if "__call__" in vars(base)), function)


def is_awaited(function: Any) -> bool:
    """Whether a call returns a coroutine, which is awaited under the lock."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_called(function))


def refuse_to_decorate(function: Callable[..., Any]) -> None:
    """Refuse a function whose body does not run when it is called.

    Raises:
        TypeError: Its body runs later.
    """
    called = _called(function)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise TypeError(f"{title_of(function)} is a generator: {_TOO_LATE}; acquire the lock in the body")
    if getattr(called, "__code__", None) in _HELPER_CODES:
        raise TypeError(
            f"{title_of(function)} is a context manager made of a generator: {_TOO_LATE}; acquire the lock in the body"
        )


def refuse_to_return(result: Any, title: str, *, awaited: bool) -> None:
    """Refuse a result whose work is still to come; it is closed, or cancelled.

    Args:
        result: The result of the function.
        title: The name of the function.
        awaited: Whether it is a coroutine function.

    Raises:
        TypeError: Its work is still to come.
    """
    if type(result) in _DONE:
        return
    found = _unfinished(result)
    if found is None:
        return
    what, instead = found
    if isinstance(result, Coroutine) and not awaited:
        title, instead = (
            f"{title} is no coroutine function, but",
            "decorate one (async def), and await this in its body",
        )
    raise TypeError(f"{title} returned {what}: it would run unlocked; {instead}")


_DONE = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set, frozenset})  # nearly always


def _unfinished(result: Any) -> tuple[str, str] | None:
    """Close or cancel an unfinished result; return what it is, and what to do instead. None if it is finished."""
    what = type(result).__name__
    if isinstance(result, Coroutine):
        _close(result)
        return "a coroutine", "await it in the body"
    if asyncio.isfuture(result) or isinstance(result, concurrent.futures.Future):
        if result.done():
            return None
        _cancel(result)
        return f"a {what} that is not done", "wait for its result in the body"
    if isinstance(result, Awaitable):
        return f"an awaitable {what}", "await it in the body of a coroutine function"
    if isinstance(result, _HELPER_CLASSES):
        _close(getattr(result, "gen", None))
        return "a context manager made of a generator", "acquire the lock in its body"
    if isinstance(result, (Generator, AsyncGenerator)):
        _close(result)
        return "a generator", "acquire the lock in its body, or return a list"
    if isinstance(result, _PASSES_ON + _CALLS_LATER) and _is_lazy(result, _DEPTH):
        return f"an iterator ({what}) that runs a body when it is read", "return a list"
    return None


def _close(result: Any) -> None:
    """Close a coroutine or a generator, to avoid a warning. (An asynchronous generator needs its loop for that.)"""
    if isinstance(result, (Coroutine, Generator)):
        with contextlib.suppress(Exception):  # it had begun, and fails: the result is refused all the same
            result.close()


def _cancel(future: asyncio.Future[Any] | concurrent.futures.Future[Any]) -> None:
    """Cancel a future, in the thread of its loop."""
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


def _is_lazy(iterator: Any, depth: int) -> bool:
    """Whether reading an iterator calls a function, or resumes a generator."""
    if isinstance(iterator, (*_CALLS_LATER, Generator)):
        return True
    if depth and isinstance(iterator, (*_PASSES_ON, *_PARTS)):
        return any(_is_lazy(part, depth - 1) for part in gc.get_referents(iterator))
    return False
