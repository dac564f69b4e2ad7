"""An error of the library's own, anywhere in what the timer's thread does."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tests.support.draws import some_of
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.loop import Loop

_TURNS = (guarded.__code__, Loop.turn.__code__)
_NONE = 1_000_000
_MOST = 40


def _in_a_turn(frame: FrameType | None) -> bool:
    """Whether it is the timer's thread that calls, and not the test."""
    while frame is not None and frame.f_code not in _TURNS:
        frame = frame.f_back
    return frame is not None


class FailingCall:
    """Raises MemoryError in the nth call of a function of some files in a turn while it is installed.

    Of calls of one function from one line three count.
    """

    def __init__(self, nth: int, files: tuple[str, ...]) -> None:
        self._left = nth
        self._files = files
        self._calls: Counter[tuple[object, ...]] = Counter()
        self.where = ""

    def __enter__(self) -> FailingCall:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.where and event == "call" and frame.f_code.co_filename.endswith(self._files) and _in_a_turn(frame):
            caller = frame.f_back
            place = (frame.f_code, caller and (caller.f_code, caller.f_lineno))
            self._calls[place] += 1
            self._left -= self._calls[place] <= 3
            if self._left < 0:
                self.where = frame.f_code.co_qualname
                sys.settrace(None)
                raise MemoryError(f"raised in {self.where}")


def failing_calls(files: tuple[str, ...]) -> Iterator[FailingCall]:
    """Yield one that raises nothing, for a scene that is the same each time; then some that raise in one of its calls."""
    none = FailingCall(_NONE, files)
    yield none
    count = _NONE - none._left
    assert count > 20
    for nth in some_of(count, _MOST):
        yield FailingCall(nth, files)
