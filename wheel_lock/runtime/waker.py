"""Wakers: let any thread end the sleep of a selector. An eventfd if the system has it, else a socket pair.

An eventfd costs about a third of a socket pair, and each round trip of a caller uses the waker twice.
"""

from __future__ import annotations

import _socket
import os
from collections.abc import Callable

from wheel_lock.runtime.held_calls import event_writer


class SocketWaker:
    """A waker for systems without eventfd; see :class:`EventWaker`."""

    def __init__(self) -> None:
        self._reader, self._writer = _socket.socketpair()  # below what gevent patches
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:
            pass

    def clear(self) -> None:
        try:
            self._reader.recv(4096)
        except OSError:
            pass

    def __del__(self) -> None:
        self.close()  # see EventWaker

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class EventWaker:
    """A waker on an eventfd.

    Attributes:
        wake: Makes the descriptor readable. From any thread; does nothing if it is readable already.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wake: Callable[[], object] = event_writer(self._fd)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._fd

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.eventfd_read(self._fd)
        except OSError:
            pass

    def __del__(self) -> None:
        # Not earlier: a thread that holds a reference may still call wake(), and the number may be reused by then.
        self.close()

    def close(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


def new_waker() -> EventWaker | SocketWaker:
    """Return the fastest waker that this system supports."""
    return EventWaker() if hasattr(os, "eventfd") else SocketWaker()
