"""Interruptions: exceptions that a signal's handler raises in the middle of other code (Ctrl-C, the time limit of a job).

CPython (3.11 to 3.15) runs such a handler in the main thread at the start of a function, after a call of a C function, and
at the start of a loop's iteration, and not between any other two instructions. Methods that must complete although they are
interrupted rely on that: their whole body is a ``try`` that hands the work over to the engine, and the statements behind
its last call cannot be interrupted.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TypeVar, cast

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., object])

_AFTER_AWAIT = 3
_TRIES = 10
_RESUME_IS_KNOWN = sys.implementation.name == "cpython" and sys.version_info < (3, 16)


def uninterrupted_start(function: F) -> F:
    """Return ``function`` changed such that no signal's handler runs before its first statement, outside of any ``try``.

    The interpreter checks for signals in the instruction RESUME, with which every function starts, unless its argument
    says that a coroutine resumes after an ``await``. This sets that argument. On other interpreters the function is
    unchanged, and a gap of one instruction remains.

    ``sys.settrace`` and ``sys.setprofile`` see such a call like any other; ``sys.monitoring`` reports PY_RESUME instead of
    PY_START, so tools that rely on the latter (coverage's "sysmon") miss the bodies of these functions.
    """
    if isinstance(function, FunctionType) and _RESUME_IS_KNOWN:
        code = function.__code__
        start = next((step for step in dis.get_instructions(code) if step.opname == "RESUME"), None)
        if start is not None and start.arg == 0:
            changed = bytearray(code.co_code)
            changed[start.offset + 1] = _AFTER_AWAIT
            function.__code__ = code.replace(co_code=bytes(changed))
    return function


def uninterrupted_copy(function: F) -> F:
    """Return a copy of another package's function, changed as by :func:`uninterrupted_start`.

    An object that is not a Python function, such as one that a tracing tool has put in its place, is returned unchanged.
    """
    if not isinstance(function, FunctionType):
        return function
    copied = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function)
    return cast("F", uninterrupted_start(copied))  # it is called as ``function`` is


@uninterrupted_start
def insist(work: Callable[[A], object], argument: A, tries: int = _TRIES) -> None:
    """Call ``work(argument)``, and again whenever that is interrupted; raise the first interruption at the end.

    Args:
        work: A function or method written in Python that may be repeated after an interruption.
        argument: Its argument.
        tries: The most calls: it may fail for another reason each time.
    """
    try:
        work(argument)
    except BaseException:
        if tries > 1:
            insist(work, argument, tries - 1)
        raise


def finaliser(work: Callable[[A], object]) -> Callable[[A], None]:
    """Return a ``__del__`` that does ``work``, which may be repeated, also if it is interrupted.

    The interpreter prints an exception of a finaliser and goes on: nothing else would do what is left. Where ``work``
    returns without a call, no handler runs, so that its exception is not swallowed.
    """
    work = uninterrupted_start(work)

    @uninterrupted_start
    def __del__(self: A) -> None:
        insist(work, self)

    return __del__
