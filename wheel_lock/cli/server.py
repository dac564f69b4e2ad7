"""The server of a run: its URL, the connection, and queries beside the locks.

All texts about the server for messages are made here, so that they contain no credentials.
"""

from __future__ import annotations

import math
import re
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from wheel_lock.net.clients import client_at
from wheel_lock.protocol.resp import LONG_TEXT, error_text

_NONSENSE = (ValueError, TypeError, LookupError, AttributeError)  # raised by redis-py for malformed replies
_CONNECT_TIMEOUT_S = 3.0
_REPLY_TIMEOUT_S = 10.0

_SCHEME = re.compile(r"(https?|rediss?|unix)://")


class BadUrl(ValueError):
    """The URL is not that of a server."""


class ServerTrouble(Exception):
    """The server cannot be reached, or refuses the connection."""


def redacted(url: str) -> str:
    """Return ``url`` without parts that may be secret.

    >>> redacted("redis://user:pass/word@host:6379/0?password=x")
    'redis://***@host:6379/0?***'
    """
    scheme = _SCHEME.match(url)
    begin = scheme[0] if scheme is not None else ""
    _, at, place = url[len(begin) :].rpartition("@")
    place, question, _ = place.partition("?")
    return begin + ("***@" if at else "") + place + ("?***" if question else "")


def connect(url: str) -> redis.Redis:
    """Return a client of the server at ``url``, after a successful PING.

    Raises:
        BadUrl: The URL is malformed.
        ServerTrouble: The server does not answer, or refuses the connection.
    """
    client: redis.Redis | None = None
    try:
        parts = urlsplit(url)
        # redis-py ignores a database that is not a number, and uses another one.
        if parts.scheme == "unix" or re.fullmatch(r"(/\d*)?", parts.path):
            retry, limits = Retry(NoBackoff(), 1), (_CONNECT_TIMEOUT_S, _REPLY_TIMEOUT_S)
            client = client_at(url, retry=retry, socket_connect_timeout=limits[0], socket_timeout=limits[1])
            client.connection_pool.connection_kwargs["decode_responses"] = False  # tokens are compared as bytes
            client.ping()
            return client
    except (redis.RedisError, OSError) as error:
        if client is not None:
            client.close()
            raise ServerTrouble(f"cannot reach the server {address(client)}: {one_line(error)}") from error
    except (ValueError, TypeError):  # also raised by the ping: redis-py evaluates options of the URL when it connects
        if client is not None:
            client.close()
    # Messages of urllib and redis-py about a malformed URL may quote a part of the password: no text, cause or context.
    raise BadUrl(
        "--redis must be a URL such as redis://host:6379/0, rediss://host:6379/0 or unix:///path, "
        f"not {redacted(url)!r}"
    )


def address(client: redis.Redis) -> str:
    """Return host and port, or the path of the socket, without credentials."""
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    if "path" in settings:
        return error_text(settings["path"])
    host = error_text(settings.get("host", "localhost"))
    return f"{f'[{host}]' if ':' in host else host}:{settings.get('port', 6379)}"


def one_line(error: BaseException) -> str:
    """Return the text of an error as one line without a full stop."""
    return " ".join(error_text(error, LONG_TEXT).split()).rstrip(".") or type(error).__name__


def cpu_s(client: redis.Redis) -> float | None:
    """Return the CPU seconds of the server's process; None if it does not report them, as fakeredis."""
    try:
        usage = client.info("cpu")
        used = float(usage["used_cpu_user"]) + float(usage["used_cpu_sys"])
    except (redis.RedisError, OSError, *_NONSENSE):
        return None
    return used if math.isfinite(used) else None


def version(client: redis.Redis) -> str | None:
    """Return the server's version; None if it does not report one."""
    try:
        return error_text(client.info("server")["redis_version"], 40)
    except (redis.RedisError, OSError, *_NONSENSE):
        return None
