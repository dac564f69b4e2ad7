"""System calls that keep the GIL, because they do not block: send and recv of a socket, and the write to an eventfd.

(One of them blocks, for 100 us at most: see net/brief_wait.py.)

CPython releases the GIL around each of them, because it might block. A thread that computes takes it meanwhile and keeps it
for up to ``sys.getswitchinterval()``, 5 ms; beside several such threads the way back takes 5 to 15 ms. Here none of them
blocks: with MSG_DONTWAIT, or on an eventfd with EFD_NONBLOCK, it returns in about a microsecond. So they are made through
``ctypes.PyDLL``, which keeps the GIL. Whatever is unusual - an error, a socket that would block, much data, a socket of
another kind, another system - is left to the plain methods, which also raise the right exceptions.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from wheel_lock.runtime.native import SystemSocket

_MOST_BYTES = 1 << 16  # limit of one call with the GIL held
_LONGEST_WAIT_NS = 100_000

_send: Any = None
_recv: Any = None
_eventfd_write: Any = None
_ppoll: Any = None
if sys.platform == "linux":
    try:
        import ctypes

        _library = ctypes.PyDLL(None)
        _send, _recv, _eventfd_write = _library.send, _library.recv, _library.eventfd_write
        _ppoll = _library.ppoll
    except Exception:  # built without ctypes, or linked without these names, or an audit hook forbids it
        _send = None
    else:
        # No ``argtypes``, which would cost as much as the rest of the call: each argument has its C type already.
        _send.restype = _recv.restype = ctypes.c_ssize_t
        _FLAGS = ctypes.c_int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def sender(sock: socket.socket) -> Callable[[bytes], int]:
    """Return ``sock.send`` for bytes, such that it keeps the GIL if possible."""
    plain, fileno = sock.send, sock.fileno
    if not _is_plain(sock):
        return plain
    as_size = ctypes.c_size_t

    def send(data: bytes) -> int:
        count = len(data)
        if count <= _MOST_BYTES:
            sent: int = _send(fileno(), data, as_size(count), _FLAGS)
            if sent >= 0:
                return sent
        return plain(data)

    return send


def receiver(sock: socket.socket, most: int) -> Callable[[], bytes]:
    """Return a function that reads up to ``most`` bytes, none at the end of the stream; it keeps the GIL if possible."""
    plain, fileno = sock.recv, sock.fileno
    if not _is_plain(sock) or most > _MOST_BYTES:
        return lambda: plain(most)
    buffer: Any = ctypes.create_string_buffer(most)
    place, size = ctypes.byref(buffer), ctypes.c_size_t(most)

    def receive() -> bytes:
        count: int = _recv(fileno(), place, size, _FLAGS)
        data: bytes = buffer[:count] if count >= 0 else plain(most)
        return data

    return receive


def reply_waiter(sock: socket.socket) -> Callable[[], bool] | None:
    """Return a function that waits 100 us at most for data, and returns whether there is some; None if that is impossible.

    Other threads of Python wait meanwhile, so it must be called only where that costs less than to release the GIL.
    """
    if not _is_plain(sock):
        return None
    fileno, descriptor = sock.fileno, struct.Struct("ihh")
    poll_fd: Any = ctypes.create_string_buffer(descriptor.size)
    limit = (ctypes.c_long * 2)(0, _LONGEST_WAIT_NS)
    place, count, limit_place = ctypes.byref(poll_fd), ctypes.c_ulong(1), ctypes.byref(limit)

    def wait() -> bool:
        descriptor.pack_into(poll_fd, 0, fileno(), select.POLLIN, 0)
        ready: int = _ppoll(place, count, limit_place, None)
        return ready > 0

    return wait


def event_writer(fd: int) -> Callable[[], object]:
    """Return a function that makes an eventfd readable. It is written in C, so no signal handler runs before the write."""
    if _send is None:
        return partial(os.eventfd_write, fd, 1)
    return partial(_eventfd_write, ctypes.c_int(fd), ctypes.c_uint64(1))


def _is_plain(sock: Any) -> bool:
    """Return whether ``sock`` is a stream of the system whose methods nothing, such as TLS, has replaced."""
    kind = type(sock)
    return (
        _send is not None
        and issubclass(kind, SystemSocket)
        and kind.send is SystemSocket.send
        and kind.recv is SystemSocket.recv
    )
