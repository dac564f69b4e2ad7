"""Interruptions: exceptions that a signal's handler raises in the middle of other code (Ctrl-C, the time limit of a job).

CPython runs such a handler between two instructions of the main thread, but not between any two: at the start of a
function, when a call of something written in C has returned, and where a loop begins anew. The methods that must be
carried out whatever interrupts them rest on that: all that they do lies in a ``try`` that hands the work over to the
engine, and what comes behind the last call of it cannot be struck any more.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TypeVar

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., object])

_AFTER_AWAIT = 3
_RESUME_IS_KNOWN = sys.implementation.name == "cpython" and sys.version_info < (3, 15)


def uninterrupted_start(function: F) -> F:
    """Let no interruption strike ``function`` before its first statement, where no ``try`` of its own catches it.

    The interpreter looks for signals in the instruction RESUME, with which every function starts, but not where it says
    that a coroutine goes on after an ``await``. So this makes it say that. An interpreter of which this is not known runs
    the function as it is; then there is a gap of one instruction.

    To ``sys.settrace`` and ``sys.setprofile`` such a call looks like any other; ``sys.monitoring`` tells of PY_RESUME, not
    of PY_START, so what counts on the latter (coverage's "sysmon") misses the bodies of these functions.
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
    """Return a copy of somebody else's function that begins as :func:`uninterrupted_start` has it.

    Where it is not a function of Python's (any more), because something that traces calls has put an object of its own in
    its place, it is returned as it is.
    """
    if not isinstance(function, FunctionType):
        return function
    copied = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copied, function)
    return uninterrupted_start(copied)  # type: ignore[return-value]  # what is called as ``function`` is


@uninterrupted_start
def insist(work: Callable[[A], object], argument: A) -> None:
    """Do ``work(argument)`` for who was interrupted, a second time where that is interrupted, too.

    Args:
        work: A function or method written in Python; harmless to begin again where it was interrupted.
        argument: What it is called with.
    """
    try:
        work(argument)
    except BaseException:
        work(argument)
        raise
