"""Threads, locks, queue, selector and sockets of the system, also where gevent has put greenlets in their place.

gevent runs all greenlets of a thread by turns. The one thread must not be one of them: it has to go on while another
one computes. So what it is made of is taken here, when the package is imported: as it is or, where gevent has patched
it before, as gevent has kept it. (What eventlet has patched is taken as it is: there the engine is a green thread.)
"""

from __future__ import annotations

import _thread
import ssl
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _thread import RLock, allocate_lock, get_ident, start_new_thread
    from queue import SimpleQueue
    from selectors import DefaultSelector
    from socket import socket
    from threading import local
    from time import sleep
else:

    def _original(module: str, name: str) -> Any:
        monkey = sys.modules.get("gevent.monkey")
        return getattr(import_module(module), name) if monkey is None else monkey.get_original(module, name)

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
    "DefaultSelector",
    "RLock",
    "SimpleQueue",
    "allocate_lock",
    "get_ident",
    "local",
    "sleep",
    "start_new_thread",
    "threads_are_patched",
    "without_hub",
]


def threads_are_patched() -> bool:
    """Whether ``threading.Thread`` makes something else than threads of the system, by now."""
    return _thread.start_new_thread is not start_new_thread


class _TlsConnection:
    """A TLS connection that a socket of gevent's has made, and no more of that socket than the engine needs."""

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
            return b""  # the peer has hung up without a word, as Redis does
        return data


def without_hub(sock: Any) -> Any:
    """Return what the engine uses of a connected socket: itself, or its connection alone where it is one of gevent's.

    Those wait, and even close, through the hub of the thread that has made them, which ends with that thread. To be
    called there.
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
