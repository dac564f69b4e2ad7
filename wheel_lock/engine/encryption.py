"""Client and server that do not agree about TLS: what an attempt to connect that fails for this reason looks like.

Neither side says so. A server that expects TLS closes the connection; one that does not waits for the rest of what it takes
for a command. So the port is asked in the other way, once, by whoever has failed to connect; on that thread it may block.
"""

from __future__ import annotations

import socket
import ssl

from wheel_lock.engine.handshakes import HungUp

_PATIENCE_S = 0.5


def may_disagree(error: Exception, encrypted: bool) -> bool:
    """Whether an attempt to connect may have failed because only one side speaks TLS.

    Args:
        error: What redis-py has raised.
        encrypted: Whether the client does.
    """
    cause = error.__cause__ or error.__context__
    if encrypted:
        return isinstance(cause, (TimeoutError, ssl.SSLError))
    return isinstance(error, HungUp) or isinstance(cause, (ConnectionResetError, BrokenPipeError))


def disagreement(server: tuple[str, int], encrypted: bool) -> str | None:
    """Return what client and server do not agree about; None where it is something else. Blocks for a moment.

    Args:
        server: Host and port.
        encrypted: Whether the client speaks TLS.
    """
    if encrypted and _answers_in_plain_text(server):
        return "the client speaks TLS (rediss://), and the server does not at this port"
    if not encrypted and _shakes_hands(server):
        return "the server speaks TLS at this port, and the client does not (see rediss://)"
    return None


def _answers_in_plain_text(server: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(server, timeout=_PATIENCE_S) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _shakes_hands(server: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing is said here that would have to be kept secret
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(server, timeout=_PATIENCE_S) as sock, context.wrap_socket(sock):
            return True
    except OSError:
        return False
