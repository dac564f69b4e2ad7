"""Threads, locks, queue, selector and sockets of the system, also if gevent has replaced them.

The timer's thread must not be a greenlet: it has to run while another greenlet computes. So its building blocks are taken
here, when the package is imported: the originals that gevent keeps if it has patched them. (What eventlet has patched is
taken as it is, so that the timer's thread is a green thread.)
"""

from __future__ import annotations

import _thread
import ssl
import sys
from _socket import socket as SystemSocket
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wheel_lock.runtime.interruptions import uninterrupted_start

if TYPE_CHECKING:
    from _thread import RLock, allocate_lock, get_ident, start_new_thread
    from queue import SimpleQueue
    from selectors import DefaultSelector
    from socket import socket
    from threading import local
    from time import sleep

    epoll: Any
else:

    def _original(module: str, name: str) -> Any:
        monkey = sys.modules.get("gevent.monkey")
        return getattr(import_module(module), name) if monkey is None else monkey.get_original(module, name)

    try:
        epoll = _original("select", "epoll")
    except AttributeError:  # another system, or eventlet has removed it
        epoll = None

    RLock = _original("_thread", "RLock")
    allocate_lock = _original("_thread", "allocate_lock")
    get_ident = _original("_thread", "get_ident")
    start_new_thread = _original("_thread", "start_new_thread")
    SimpleQueue = _original("queue", "SimpleQueue")
    DefaultSelector = _original("selectors", "DefaultSelector")
    socket = _original("socket", "socket")
    local = _original("threading", "local")
    sleep = _original("time", "sleep")

__all__ = [
    "DefaultSelector", "RLock", "SimpleQueue", "SystemSocket", "allocate_lock", "begin", "epoll", "get_ident", "local",
    "sleep", "socket", "start_new_thread", "threads_are_patched", "without_hub",
]  # fmt: skip


@uninterrupted_start
def begin(body: Callable[..., object], *arguments: object) -> None:
    """Call ``body(*arguments)``: the first function of each thread that ``start_new_thread`` starts.

    An exception that was aimed at the thread which started this one does not end it. Until a new thread runs, CPython 3.11
    knows it by the number of that thread, and ``PyThreadState_SetAsyncExc`` may choose the wrong one. What it has set is
    raised behind the first call of a C function: here.
    """
    try:
        get_ident()
    except BaseException:
        pass  # it has missed its thread; others wait for what this one is to do
    body(*arguments)


def threads_are_patched() -> bool:
    """Return whether ``threading.Thread`` has been patched, so that it does not make threads of the system."""
    return _thread.start_new_thread is not start_new_thread


class _TlsConnection:
    """A TLS connection that gevent's socket has made, with the methods of a socket that the engine uses."""

    def __init__(self, raw: Any, tls: Any) -> None:
        self._tls = tls
        self.family = raw.family
        self.fileno = raw.fileno
        self.setblocking = raw.setblocking
        self.setsockopt = raw.setsockopt
        self.shutdown = raw.shutdown
        self.detach = raw.detach
        self.close = raw.close
        self.send = tls.write
        self.pending = tls.pending

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._tls.read(size)
        except ssl.SSLEOFError:
            return b""  # the peer has closed without a TLS shutdown, as Redis does
        return data


def without_hub(sock: Any) -> Any:
    """Return ``sock``, or, if it is gevent's, an equivalent that does not use a hub. On the thread that made ``sock``.

    gevent's sockets wait, and even close, through the hub of the thread that made them, which ends with that thread.
    """
    patched = sys.modules.get("gevent.socket")
    if patched is None or not isinstance(sock, patched.socket):
        return sock
    tls = getattr(sock, "_sslobj", None)
    if tls is None:
        return socket(sock.family, sock.type, sock.proto, fileno=sock.detach())
    # The connection's state stays tied to the system's socket that gevent's is made of, so that is kept.
    raw = sock._sock
    sock._drop_events_and_close(closefd=False)
    return _TlsConnection(raw, tls)
