"""Pollers: which sockets are ready, and wakers, by which any thread ends a poll.

A poller is an epoll where there is one, else a selector. A waker is an eventfd, else a socket pair, which costs three times
as much; each round trip of a caller uses it twice.

The loop polls twice for each message and its reply. On an epoll a poll is one call and a dictionary; a selector makes
lists of named tuples. Its events have no mode for a waker that is never read, which saves a system call for each wake-up.
"""

from __future__ import annotations

import _socket
import os
import select
import selectors
import socket
from collections.abc import Callable, Mapping

from wheel_lock.runtime import native
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.held_calls import event_writer
from wheel_lock.runtime.interruptions import finaliser


class SocketWaker:
    """A waker for systems without eventfd; see :class:`EventWaker`."""

    def __init__(self) -> None:
        # Below what gevent patches; Windows has the upper one only.
        pair: Callable[[], tuple[_socket.socket, _socket.socket]] = getattr(_socket, "socketpair", socket.socketpair)
        self._reader, self._writer = pair()
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

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    @finaliser  # see EventWaker
    def __del__(self) -> None:
        self.close()


class EventWaker:
    """A waker on an eventfd."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.wake: Callable[[], object] = event_writer(self._fd)  # from any thread; it may be readable already

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        return self._fd

    def clear(self) -> None:
        """Make the descriptor unreadable again."""
        try:
            os.eventfd_read(self._fd)
        except OSError:
            pass

    def close(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    @finaliser  # not earlier: a thread that holds a reference may still call wake(), and the number may be reused by then
    def __del__(self) -> None:
        self.close()


def new_waker() -> EventWaker | SocketWaker:
    """Return the fastest waker that this system supports."""
    return EventWaker() if hasattr(os, "eventfd") else SocketWaker()


Watch = tuple[Callable[[int], object], FailureDomain | None]
"""The handler of a socket, called with its events as in :mod:`selectors`, and the failure domain of that call."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
BOTH = _READ | _WRITE
_EPOLLIN, _EPOLLOUT, _EPOLLET = 1, 4, 1 << 31  # as in Linux; other systems have no such names


class SelectorPoller:
    """A poller on the system's selector, with a waker that ends a poll."""

    meanings: Mapping[int, int] = {_READ: _READ, _WRITE: _WRITE}
    """The events that a number reported by :meth:`poll` stands for; all of them, if it is missing."""

    def __init__(self, waker: EventWaker | SocketWaker) -> None:
        self.watched: dict[int, Watch] = {}  # by descriptor; a new watch whenever the socket is watched anew
        self._waker = waker
        self._selector: selectors.BaseSelector = native.DefaultSelector()
        self._selector.register(waker, _READ)
        self._system: selectors.BaseSelector | select.epoll = self._selector

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Wait for events, at most ``timeout_s`` seconds; return the descriptors that are ready, and their events."""
        ready = [(key.fd, events) for key, events in self._selector.select(timeout_s)]
        waker = self._waker.fileno()
        if any(fd == waker for fd, _ in ready):
            self._waker.clear()
        return ready

    def watch(self, sock: socket.socket, events: int, watch: Watch) -> None:
        """Report the ``events`` of a socket, as in :mod:`selectors`; a second call replaces the first."""
        fd = sock.fileno()
        if fd in self.watched:
            self._system.modify(fd, events)
        else:
            self._system.register(fd, events)
        self.watched[fd] = watch

    def unwatch(self, sock: socket.socket) -> None:
        """Stop reporting ``sock``. No effect if it is not watched."""
        fd = sock.fileno()
        if self.watched.pop(fd, None) is not None:
            try:
                self._system.unregister(fd)
            except OSError:
                pass  # another one with this number has been closed meanwhile, as a selector also supposes

    def close(self) -> None:
        """Close the poller, but none of the sockets."""
        self._system.close()


class EpollPoller(SelectorPoller):
    """A poller on an epoll, for an :class:`EventWaker`.

    The waker is *edge-triggered*: each use of it is reported once, so it is never read.
    """

    meanings: Mapping[int, int] = {_EPOLLIN: _READ, _EPOLLOUT: _WRITE}  # an error, or a hang-up, means both

    def __init__(self, waker: EventWaker) -> None:
        self.watched: dict[int, Watch] = {}
        self._system = self._epoll = native.epoll()
        self._epoll.register(waker, _EPOLLIN | _EPOLLET)

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        ready: list[tuple[int, int]] = self._epoll.poll(timeout_s, len(self.watched) + 1)
        return ready

    def watch(self, sock: socket.socket, events: int, watch: Watch) -> None:
        super().watch(sock, (events & _READ and _EPOLLIN) | (events & _WRITE and _EPOLLOUT), watch)


Poller = SelectorPoller


def new_poller(waker: EventWaker | SocketWaker) -> Poller:
    """Return the fastest poller that this system supports."""
    return EpollPoller(waker) if native.epoll is not None and isinstance(waker, EventWaker) else SelectorPoller(waker)
