"""The decorator: a function, or a coroutine function, that runs while it holds a lock named after its arguments."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

from wheel_lock.asyncio import Lock as AsyncLock
from wheel_lock.options import lock_name
from wheel_lock.threads import Lock

P = ParamSpec("P")
R = TypeVar("R")


class Locked:
    """Wraps functions; made by :meth:`wheel_lock.LockContext.locked`.

    Args:
        template: The lock's name, with the function's parameters in braces.
        new_lock: Makes the lock for a function, given its name.
        new_async_lock: Makes the lock for a coroutine function.
    """

    def __init__(
        self, template: str, new_lock: Callable[[str], Lock], new_async_lock: Callable[[str], AsyncLock]
    ) -> None:
        if not isinstance(template, str):
            raise ValueError(f"the name of a decorator's lock must be str, not {type(template).__name__}")
        self._template = template
        self._fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
        self._new_lock = new_lock
        self._new_async_lock = new_async_lock
        if not self._fields:
            lock_name(template.format())
        new_lock("terms")  # what is wrong with the terms is said here, not at the first call

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Callable[P, R]: ...

    def __call__(self, function: Callable[P, Any]) -> Callable[P, Any]:
        """Return ``function``, wrapped."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is a generator: its body runs when the lock has been released already; "
                "acquire the lock in the body"
            )
        signature = inspect.signature(function)
        for field in self._fields:
            name = field.partition(".")[0].partition("[")[0]
            if name not in signature.parameters:
                raise ValueError(f"{{{field}}} in {self._template!r} is no parameter of {function.__qualname__}")

        def filled(*arguments: P.args, **named: P.kwargs) -> str:
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            return self._template.format(**bound.arguments)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def with_async_lock(*arguments: P.args, **named: P.kwargs) -> Any:
                async with self._new_async_lock(filled(*arguments, **named)):
                    return await function(*arguments, **named)

            return with_async_lock

        @functools.wraps(function)
        def with_lock(*arguments: P.args, **named: P.kwargs) -> Any:
            with self._new_lock(filled(*arguments, **named)):
                return function(*arguments, **named)

        return with_lock
