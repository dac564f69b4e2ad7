"""Limits of time and bytes for all steps of one attempt to connect together.

redis-py limits each step, and within a step each read, separately. A server that always sends the next piece just in time
could block an attempt for ever. So all waits for the server are subtracted from one allowance. It is several times the
limit of a step, because an attempt takes a dozen round trips. Time that is spent elsewhere, such as in the user's
credential provider, does not count.
"""

from __future__ import annotations

import time
from typing import Any

import redis
from redis.connection import AbstractConnection

from wheel_lock.protocol.resp import error_text

# The largest legitimate answer is the slot map of a cluster in which each slot is a range of its own, with a dozen nodes.
_MOST_BYTES = 32 << 20
_STEPS = 4  # total time, as a multiple of the limit of one step
_PARSER_ERRORS = (ValueError, TypeError, LookupError, AttributeError, MemoryError, RecursionError)


class Allowance:
    """The remaining time and bytes of one attempt to connect. ``step_s`` limits one step, four times that all waits."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.left_s: float = step_s * _STEPS
        self._left_bytes = _MOST_BYTES

    def limit(self, step_s: float | None) -> float:
        """Return ``step_s``, or the time that is left if that is less. Raises TimeoutError if none is left."""
        if self.left_s <= 0.0:
            raise TimeoutError("the server has taken too long in all")
        return self.left_s if step_s is None else min(step_s, self.left_s)

    def spend(self, began: float) -> None:
        """Subtract the time since ``began``, a value of ``time.monotonic()``."""
        self.left_s -= time.monotonic() - began

    def take(self, size: int) -> None:
        """Subtract the number of received bytes. Raises OSError if it exceeds the limit."""
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise OSError(f"the server has sent more than {_MOST_BYTES} bytes")


class LimitedSocket:
    """A connected socket, ``sock``, whose waits and received bytes are taken from an allowance."""

    def __init__(self, sock: Any, allowance: Allowance) -> None:
        self.sock = sock
        self._allowance = allowance
        self._step_s: float | None = sock.gettimeout()

    def settimeout(self, step_s: float | None) -> None:
        self._step_s = step_s

    def _wait(self, call: Any, *arguments: Any) -> Any:
        self.sock.settimeout(self._allowance.limit(self._step_s))
        began = time.monotonic()
        try:
            return call(*arguments)
        finally:
            self._allowance.spend(began)

    def recv(self, *arguments: Any) -> bytes:
        data: bytes = self._wait(self.sock.recv, *arguments)
        self._allowance.take(len(data))
        return data

    def recv_into(self, *arguments: Any) -> int:
        size: int = self._wait(self.sock.recv_into, *arguments)
        self._allowance.take(size)
        return size

    def sendall(self, *arguments: Any) -> None:
        self._wait(self.sock.sendall, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class _Limited(AbstractConnection):
    """The mix-in that limits a connection class."""

    def __init__(self, *, wheel_lock_allowance: Allowance, **settings: Any) -> None:
        self._wheel_lock_allowance = wheel_lock_allowance
        self._wheel_lock_began = 0.0
        super().__init__(**settings)

    def _connect(self) -> Any:
        self._wheel_lock_began = time.monotonic()
        sock = super()._connect()  # type: ignore[safe-super, no-untyped-call]
        self._wheel_lock_spend()
        return LimitedSocket(sock, self._wheel_lock_allowance)

    def _wrap_socket_with_ssl(self, sock: Any) -> Any:
        self._wheel_lock_spend()
        sock.settimeout(self._wheel_lock_allowance.limit(sock.gettimeout()))
        return super()._wrap_socket_with_ssl(sock)  # type: ignore[misc]  # classes for TLS have it

    def _wheel_lock_spend(self) -> None:
        """Subtract the time since the last call, without that of silent addresses.

        A host name may have several addresses, which are tried one after the other, each for the whole limit of a step.
        """
        allowance, now = self._wheel_lock_allowance, time.monotonic()
        address_s: float = getattr(self, "socket_connect_timeout", None) or allowance.step_s
        allowance.left_s -= (now - self._wheel_lock_began) % address_s
        self._wheel_lock_began = now

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)
        except _PARSER_ERRORS as error:  # raised while redis-py parses it: a MOVED without a port, for example
            text = f"the server's answer is malformed: {error_text(error)}"
        raise redis.exceptions.InvalidResponse(text)


def limited(connection_class: type[AbstractConnection]) -> type[AbstractConnection]:
    """Return a subclass of ``connection_class`` with the additional argument ``wheel_lock_allowance``."""
    return type(connection_class.__name__, (_Limited, connection_class), {"__module__": connection_class.__module__})
