"""Lock objects with a span for each acquire and release. Only locks of a context with a tracer become such objects."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from wheel_lock.runtime.interruptions import insist, uninterrupted_start

_classes: dict[type, type] = {}  # the traced class of each plain one


def trace(lock: Any) -> None:
    """Make ``lock``, whose engine has ``spans``, trace its acquires and releases."""
    plain = type(lock)
    lock.__class__ = _classes.get(plain) or _classes.setdefault(plain, _traced(plain))


def _start(lock: Any, operation: str) -> Any:
    names = lock.names if hasattr(lock, "names") else (lock.name,)
    return lock._engine.spans.start(operation, names, lock._kind)


@uninterrupted_start
def _fail_acquire(lock: Any, span: Any, error: BaseException, acquired: bool) -> None:
    """End the span of an acquire that has raised ``error``.

    Args:
        acquired: True if it was interrupted behind the grant. The lock is released then, and the trace says so: by the span
            itself, or by that of a release if it has ended as that of a granted lock.
    """
    spans = lock._engine.spans
    if acquired:
        insist(lock._let_go, None)
        if spans.has_ended(span):
            span, acquired = _start(lock, "release"), False
    spans.end(span, False if acquired else None, error)


@uninterrupted_start
def _fail_release(lock: Any, span: Any, error: BaseException, begun: bool) -> None:
    """End the span of a release that has raised ``error``; release the lock if the release had not begun."""
    if not begun:
        insist(lock._let_go, None)
    lock._engine.spans.end(span, error=error)


def _traced(plain: Any) -> type:
    """Return the subclass of a class of lock objects with spans; it has the same name."""
    methods = _of_tasks(plain) if inspect.iscoroutinefunction(plain.acquire) else _of_threads(plain)
    same = {"__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__}
    return type(plain.__name__, (plain,), {"__slots__": (), **same, **methods})


def _of_threads(plain: Any) -> dict[str, Any]:
    takes_token = "token" in inspect.signature(plain.acquire).parameters

    @functools.wraps(plain.acquire)
    def acquire(self: Any, blocking: Any = None, blocking_timeout: Any = None, token: Any = None) -> Any:
        if token is not None and not takes_token:
            raise TypeError("acquire() got an unexpected keyword argument 'token'")
        spans, span, acquired = self._engine.spans, _start(self, "acquire"), False
        try:
            # No arguments with a star: CPython 3.11 checks for signals at the end of such a call, before the assignment.
            if takes_token:
                acquired = plain.acquire(self, blocking, blocking_timeout, token)
            else:
                acquired = plain.acquire(self, blocking, blocking_timeout)
            spans.end(span, acquired)
            return acquired
        except BaseException as error:
            _fail_acquire(self, span, error, acquired)
            raise

    @functools.wraps(plain.release)
    @uninterrupted_start
    def release(self: Any) -> Any:
        begun, span = False, None
        try:
            spans = self._engine.spans
            span = _start(self, "release")
            begun = True
            released = plain.release(self)
            spans.end(span)
            return released
        except BaseException as error:
            _fail_release(self, span, error, begun)
            raise

    return {"acquire": acquire, "release": release}


def _of_tasks(plain: Any) -> dict[str, Any]:
    @functools.wraps(plain.acquire)
    async def acquire(self: Any, *arguments: Any, **keywords: Any) -> Any:
        spans, span, acquired = self._engine.spans, _start(self, "acquire"), False
        try:
            acquired = await plain.acquire(self, *arguments, **keywords)
            spans.end(span, acquired)
            return acquired
        except BaseException as error:
            _fail_acquire(self, span, error, acquired)
            raise

    def releasing(method: Any) -> Any:
        @functools.wraps(method)
        @uninterrupted_start
        async def release(self: Any, *arguments: Any) -> Any:
            begun, span = False, None
            try:
                spans = self._engine.spans
                span = _start(self, "release")
                begun = True
                released = await method(self, *arguments)
                spans.end(span)
                return released
            except BaseException as error:
                _fail_release(self, span, error, begun)
                raise

        return release

    methods = {"acquire": acquire, "release": releasing(plain.release)}
    if getattr(plain, "_leave_releases", False):
        methods["_leave"] = releasing(plain._leave)  # the end of a block, which does not call release()
    return methods
