"""Users' callbacks: whether a function can be called where its result is not awaited."""

from __future__ import annotations

import functools
import inspect
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypeVar

AnyCallback = TypeVar("AnyCallback")


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
