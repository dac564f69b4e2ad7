"""Interruptions at chosen places: an exception wherever the interpreter would run a signal's handler.

CPython runs those, and what was given to ``Py_AddPendingCall``, at the same places of the main thread's code. So a call
that is always pending is made at each of them, and can raise there what a signal's handler would.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import wheel_lock
from tests.support.draws import some_of

LIBRARY = str(Path(wheel_lock.__file__).parent)
_FINALISER = "__del__"
_NOWHERE = 1_000_000_000
MOST_PLACES = 20
"""A scene with more places is interrupted at some of them: evenly spread, and others in the next run."""

_kept: list[object] = []  # a pending call must not outlive what it is about
_pend = ctypes.pythonapi.Py_AddPendingCall
_pend.argtypes = [ctypes.c_void_p, ctypes.py_object]
_is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)  # -1 and an exception is what it may return


# From 3.13 on any check of the eval breaker while the calls are made clears the flag that has the rest made later. So each
# of ours, whose Python code makes such checks, is followed by one without any, which sets the flag by being made pending.
_FLAG_IS_CLEARED = sys.version_info >= (3, 13)


class _Follower:
    """What is made pending behind the calls of one interruption, again and again without running any Python code."""

    def __init__(self) -> None:
        self._kind: Any = type("Pending", (), {"__len__": staticmethod(int)})
        self._again = partial(_pend, _is_true, self._kind())
        _kept.append(self)

    def begin(self) -> None:
        self._kind.__len__ = staticmethod(self._again)
        self._again()

    def end(self) -> None:
        self._kind.__len__ = staticmethod(int)  # 0: it is not made pending again


class Interrupted(Exception):
    """What is raised: an ordinary exception, as the time limits of job queues are."""


class InterruptedTypeError(Interrupted, TypeError):
    """What is raised where a signal's handler takes the wrong number of arguments."""


class Interruption:
    """Raises `Interrupted` at the nth place that the main thread comes by in the library, once it has begun.

    Attributes:
        where: The places where it was raised, as function and line.
    """

    def __init__(
        self,
        nth: int,
        *,
        again_after: int | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        raises: bool = True,
        error: type[Interrupted] = Interrupted,
        in_finalisers: bool = False,
    ) -> None:
        """`again_after` so many further places it raises once more; None for once. With nth=-1 it is never raised.

        With `in_finalisers` only places in finalisers count, and else none of them.

        `meanwhile` is called right before: what happens elsewhere while the main thread is kept from running there. With
        `raises=False` that is all, as with most handlers of signals.
        """
        self.where: list[str] = []
        self._meanwhile = meanwhile
        self._raises = raises
        self._error = error
        self._in_finalisers = in_finalisers
        self._left = nth
        self._again_after = again_after
        self._last: object = None
        self._on = False
        self._follower = _Follower() if _FLAG_IS_CLEARED else None

    def begin(self) -> None:
        """From here on places count; once only, and not at all if it is never to be raised."""
        if self._left >= 0 and self not in _kept:
            _kept.append(self)
            self._on = True
            self._call_soon()
            if self._follower is not None:
                self._follower.begin()

    def end(self) -> None:
        self._on = False
        if self._follower is not None:
            self._follower.end()

    def _call_soon(self) -> None:
        _pend(_is_true, self)

    def __bool__(self) -> bool:
        if not self._on:
            return False
        frame = sys._getframe(1)
        place = id(frame), frame.f_lasti
        if place != self._last and _in_finaliser(frame) is self._in_finalisers:  # it is called many times at each place
            self._last = place
            self._left -= 1
            if self._left < 0:
                self.where.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                if self._again_after is None:
                    self.end()
                else:
                    self._left, self._again_after = self._again_after, None
                    if self._follower is not None and self._raises:
                        _pend(_is_true, ())  # so that the last of the calls that are made at once is again the follower
                    self._call_soon()
                self._meanwhile()
                if self._raises:
                    raise self._error(self.where[-1])
                return False
        self._call_soon()
        return False


def _in_finaliser(frame: FrameType | None) -> bool | None:
    """Whether it is a finaliser in which the library runs, where an exception is lost for everybody; None if others run."""
    if frame is None or not frame.f_code.co_filename.startswith(LIBRARY):
        return None
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARY):
        if frame.f_code.co_qualname.endswith(_FINALISER):
            return True
        frame = frame.f_back
    return False


def at_every_place(scene: Callable[[Interruption], object], **options: Any) -> Iterator[str]:
    """Play a scene, which begins an `Interruption` with options, without one, and then once for each place of it.

    Of many places it is some, see `MOST_PLACES`. Each is yielded when the scene was interrupted there.
    """

    def played(nth: int) -> Interruption:
        interruption = Interruption(nth, **options)
        try:
            scene(interruption)
        except Interrupted:
            pass
        finally:
            interruption.end()
        return interruption

    count = _NOWHERE - played(_NOWHERE)._left
    yield f"nowhere, after {count} places"
    for nth in some_of(count, MOST_PLACES):
        yield f"{' and '.join(played(nth).where) or 'nowhere'}, at place {nth} of {count}"
