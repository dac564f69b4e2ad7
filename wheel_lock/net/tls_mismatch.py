"""Finding out that only one of client and server speaks TLS.

Neither side reports it. A server that expects TLS closes the connection; another takes the client's hello for the beginning
of a command. So after a failed attempt to connect the port is probed the other way. Blocks.
"""

from __future__ import annotations

import socket
import ssl

from wheel_lock.net.handshake import HungUp

_STEP_S = 0.5


def may_disagree(error: Exception, encrypted: bool) -> bool:
    """Return whether ``error`` of redis-py may mean that only one side speaks TLS: the client if ``encrypted``."""
    cause = error.__cause__ or error.__context__
    if encrypted:
        return isinstance(cause, (TimeoutError, ssl.SSLError))
    return isinstance(error, HungUp) or isinstance(cause, (ConnectionResetError, BrokenPipeError))


def disagreement(server: tuple[str, int], encrypted: bool) -> str | None:
    """Return an explanation if only one side speaks TLS, else None. Blocks for up to 0.5 s for each step."""
    if encrypted and _answers_in_plain_text(server):
        return "the client speaks TLS (rediss://), and the server does not at this port"
    if not encrypted and _shakes_hands(server):
        return "the server speaks TLS at this port, and the client does not (see rediss://)"
    return None


def _answers_in_plain_text(server: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(server, timeout=_STEP_S) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _shakes_hands(server: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing secret is sent
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(server, timeout=_STEP_S) as sock, context.wrap_socket(sock):
            return True
    except OSError:
        return False
