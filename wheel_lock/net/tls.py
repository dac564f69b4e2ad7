"""TLS: the description of a connection for the keeper, and finding out that only one of client and server speaks it.

By the description the keeper of a process that has died makes another connection; one without TLS is passed as it is (see
keeper/). It is all that redis-py uses to connect with TLS, in values that JSON has. The other side is keeper/tls.py.

That only one side speaks TLS is reported by neither. A server that expects TLS closes the connection; another takes the
client's hello for the beginning of a command. So after a failed attempt to connect the port is probed the other way.
"""

from __future__ import annotations

import os
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from typing import Any

from wheel_lock.net.handshake import HungUp

_MOST_CA_BYTES = 1 << 16  # it goes in one message
_PROBE_STEP_S = 0.5
_DESCRIBED = (
    *("ssl_keyfile", "ssl_certfile", "ssl_password", "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_cert_reqs"),
    *("ssl_check_hostname", "ssl_include_verify_flags", "ssl_exclude_verify_flags", "ssl_min_version", "ssl_ciphers"),
)


def obstacle(settings: Mapping[str, Any], own_class: str | None) -> str | None:
    """Return why connections with TLS cannot be described, and what to do instead; None if they can.

    Args:
        settings: The arguments of the connection class.
        own_class: The name of the class, if it is a user's own.
    """
    others = [
        name
        for name, value in settings.items()
        if name.startswith("ssl_") and name not in _DESCRIBED and value is not None and value is not False
    ]
    ca_data = settings.get("ssl_ca_data")
    if own_class is not None:
        why = f"{own_class} is a class of your own: use redis.SSLConnection, with files for the certificates"
    elif settings.get("redis_connect_func") is not None:
        why = "redis_connect_func is a function of your own: use a client without it"
    elif others:
        why = f"{others[0]} means nothing to it: leave that to a proxy, to which this process connects without TLS"
    elif not isinstance(settings.get("ssl_password"), (str, type(None))):
        why = "ssl_password is no text: give it as a str"
    elif ca_data is not None and len(ca_data) > _MOST_CA_BYTES:
        has = f"ssl_ca_data has {len(ca_data):,} bytes, of {_MOST_CA_BYTES:,} that it may have"
        why = f"{has}: put it into a file, and give the path as ssl_ca_certs"
    else:
        return None
    return f"with TLS the keeper connects by itself, and {why}; or switch it off"


def described(connection: Any, login: Iterable[str | bytes]) -> dict[str, object]:
    """Return the description of a connection.

    Args:
        connection: A ``redis.SSLConnection``.
        login: The arguments of AUTH that it has sent, if any.
    """
    ca_data = connection.ca_data
    return {
        "host": connection.host,
        "port": int(connection.port),
        "database": int(connection.db or 0),
        "login": [connection.encoder.encode(word).decode("latin-1") for word in login],
        "verify": int(connection.cert_reqs),
        "check_host": bool(connection.check_hostname),
        "flags": reduce(or_, connection.ssl_include_verify_flags or (), 0),
        "not_flags": reduce(or_, connection.ssl_exclude_verify_flags or (), 0),
        "ca_file": _path(connection.ca_certs),
        "ca_path": _path(connection.ca_path),
        "ca_data": ca_data if ca_data is None or isinstance(ca_data, str) else b64encode(ca_data).decode(),
        "ca_is_der": not isinstance(ca_data, (str, type(None))),
        "certificate": _path(connection.certfile),
        "key": _path(connection.keyfile),
        "key_password": connection.certificate_password,
        "least_version": None if connection.ssl_min_version is None else int(connection.ssl_min_version),
        "ciphers": connection.ssl_ciphers,
    }


def _path(path: str | bytes | os.PathLike[str] | None) -> str | None:
    """Return a path that means the same in another process, which has a working directory of its own."""
    return None if path is None else os.path.abspath(os.fsdecode(path))


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
        with socket.create_connection(server, timeout=_PROBE_STEP_S) as sock:
            sock.sendall(b"PING\r\n")
            return sock.recv(1) in (b"+", b"-")
    except OSError:
        return False


def _shakes_hands(server: tuple[str, int]) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # nothing secret is sent
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(server, timeout=_PROBE_STEP_S) as sock, context.wrap_socket(sock):
            return True
    except OSError:
        return False
