"""Signals as bytes in a pipe, so that one loop waits for them, for the lock, for the end of the command, and for the clock.

No handler raises: an exception that strikes a finaliser is printed and dropped, and the signal with it.
"""

from __future__ import annotations

import math
import os
import select
import signal
from types import FrameType
from typing import Any, Self

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end ``wheel-lock`` while there is no command."""

FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""Signals that are sent on to the command."""

_WAKE = 0  # no signal has this number
_NOT_SENT_ON = (_WAKE, signal.SIGCHLD)
_LONGEST_S = 86_400.0  # longest sleep; conditions are checked again after it


class Signals:
    """Takes signals inside its ``with`` block. Those that the parent process has set to be ignored stay ignored."""

    def __init__(self) -> None:
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1
        self._reader, self._writer = -1, -1
        self._poll = select.poll()  # select() takes descriptors below 1,024 only

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._poll.register(self._reader, select.POLLIN)
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        # Also where it is ignored: the status of an ignored child is lost.
        self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._take)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._poll.unregister(self._reader)
        os.close(self._reader)
        writer, self._writer = self._writer, -1
        os.close(writer)

    def ignore(self, number: signal.Signals) -> None:
        """Ignore a signal until the end of the block."""
        self._before[number] = signal.signal(number, signal.SIG_IGN)

    def _take(self, number: int, frame: FrameType | None) -> None:
        pass  # the byte in the pipe is written by the interpreter itself

    def wake(self) -> None:
        """End the current or the next wait. May be called from any thread."""
        try:
            os.write(self._writer, bytes([_WAKE]))
        except OSError:
            pass  # full, and so it wakes up anyway, or closed

    def wait(self, timeout_s: float) -> list[signal.Signals]:
        """Wait for signals or a call of :meth:`wake`; return the signals for the command, in order.

        Args:
            timeout_s: The longest wait; not positive for none, infinite for no limit.
        """
        self._poll.poll(None if timeout_s == math.inf else math.ceil(min(max(timeout_s, 0.0), _LONGEST_S) * 1000))
        try:
            return [signal.Signals(number) for number in os.read(self._reader, 65536) if number not in _NOT_SENT_ON]
        except BlockingIOError:
            return []
