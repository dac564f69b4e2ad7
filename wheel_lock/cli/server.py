"""The server of a run: its URL, the connection, and queries beside the locks.

All texts about the server for messages are made here, so that they contain no credentials.
"""

from __future__ import annotations

import math
import re
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from wheel_lock import LockContext
from wheel_lock.cli.arguments import URL, USAGE, Refusal, checked, redacted
from wheel_lock.net.clients import ServerUrl, UnknownOption, parse
from wheel_lock.net.tls import disagreement
from wheel_lock.protocol.resp import LONG_TEXT, error_text
from wheel_lock.protocol.server_errors import code_of, remedy_for

_NONSENSE = (ValueError, TypeError, LookupError, AttributeError)  # what redis-py raises for malformed replies
SETTINGS: dict[str, Any] = {"socket_connect_timeout": 3.0, "socket_timeout": 5.0, "protocol": 2}
"""Settings of all clients of the command line: time limits in seconds, and RESP2, which Redis 5 speaks, too."""

PROMPT: dict[str, Any] = {**SETTINGS, "retry": Retry(NoBackoff(), 1, (redis.ConnectionError,))}
"""The same for clients of one server: one more attempt after a connection broke, without pauses; none after a timeout."""


class ServerTrouble(Refusal):
    """The server cannot be reached, or refuses the connection or a command."""


class MalformedUrl(Exception):
    """redis-py does not accept an option in the URL.

    Its message, and that of urllib, may quote a part of the password: this error has no text, cause or context.
    """


def parsed(url: str, parameter: str = "--redis") -> ServerUrl:
    """Return what ``url`` names; ``parameter`` names the URL in messages. Raises Refusal if it is malformed."""
    try:
        return parse(url)
    except UnknownOption as error:
        raise Refusal(f"{parameter}: {error}", USAGE) from None
    except ValueError:
        raise bad_url(url, parameter) from None


def bad_url(url: str, parameter: str) -> Refusal:
    """Return the error for a malformed URL. It shows the scheme at most."""
    shown = redacted(url) if URL.match(url) else "***" if url else ""
    return Refusal(
        f"{parameter} must be a URL such as redis://host:6379/0, rediss://host:6379/0, unix:///path, "
        f"redis+sentinel://host:26379,host:26379/MASTER/0 or redis+cluster://host:7000, not {shown!r}",
        USAGE,
    )


def connect(url: str) -> redis.Redis:
    """Return a client of one server that answers; ``url`` is as redis-py writes it. Raises what :func:`greeted` raises."""
    client = redis.Redis.from_url(url, **PROMPT)
    client.connection_pool.connection_kwargs["decode_responses"] = False  # tokens are compared as bytes
    return greeted(client)


def greeted(
    client: redis.Redis, at: str = "", what: str = "server", silence: type[ServerTrouble] = ServerTrouble
) -> redis.Redis:
    """Connect, have the server answer, and return the client; it is closed if that fails.

    A refusal of the PING alone, as by a full disk or a missing right, is an answer.

    Args:
        at, what: As for :func:`refusal`.
        silence: The error if there is no server, or it does not answer.

    Raises:
        MalformedUrl: An option in the URL is malformed.
        ServerTrouble: The server does not answer, or refuses the connection.
    """
    pool: Any = client.connection_pool  # redis-py annotates get_connection() of a pool in some versions only
    try:
        pool.release(pool.get_connection())
        try:
            client.ping()
        except redis.AuthenticationError:
            raise
        except (redis.ResponseError, redis.exceptions.BusyLoadingError):
            pass
        return client
    except (redis.RedisError, OSError) as error:
        client.close()
        answered = isinstance(error, (redis.AuthenticationError, redis.ResponseError))
        raise (ServerTrouble if answered else silence)(refusal(client, error, at, what)) from error
    except (ValueError, TypeError):  # redis-py evaluates options of the URL when it connects
        client.close()
    raise MalformedUrl


def context_of(client: redis.Redis | redis.RedisCluster, **settings: Any) -> LockContext:
    """Return a context for the locks of a command. Raises Refusal if WHEEL_LOCK_KEEPER is not possible."""
    with checked():
        return LockContext(client, **settings)


def refusal(client: redis.Redis, error: Exception, at: str = "", what: str = "server") -> str:
    """Return the sentence for a connection that could not be made.

    Args:
        at: Its address, where the client does not have it.
        what: The role of the server.
    """
    at = at or address(client)
    if isinstance(error, redis.AuthenticationError):
        reason = one_line(error)
        if "already authenticated" in reason or "Authentication required" in reason:
            reason = "there is none in the URL"
        return f"the {what} {at} refuses the user or the password: {reason}"
    if re.match("unknown command ['`]HELLO", str(error)) is not None:  # the quotes depend on the version
        return (
            f"the {what} {at} does not know HELLO, which came with Redis 6 "
            "(without ?protocol=3 in the URL it is not needed)"
        )
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    if "path" not in settings and not isinstance(error, redis.ResponseError):
        encrypted = issubclass(client.connection_pool.connection_class, redis.SSLConnection)
        host, _, port = at.rpartition(":")
        mismatch = disagreement((host.strip("[]"), int(port)), encrypted)
        if mismatch is not None:
            return f"cannot reach the {what} {at}: {mismatch}"
    return f"cannot reach the {what} {at}: {with_remedy(one_line(error), error)}"


def address(client: redis.Redis) -> str:
    """Return host and port, or the path of the socket, without credentials."""
    settings: dict[str, Any] = client.connection_pool.connection_kwargs
    if "path" in settings:
        return error_text(settings["path"])
    of_sentinels: tuple[str, int] | None = getattr(client.connection_pool, "master_address", None)
    host, port = of_sentinels or (settings.get("host", "localhost"), settings.get("port", 6379))
    return place(host, port)


def place(host: object, port: object) -> str:
    """Return host and port as one text."""
    text = error_text(host)
    return f"{f'[{text}]' if ':' in text else text}:{port}"


def one_line(error: BaseException) -> str:
    """Return the text of an error as one line without a full stop."""
    return " ".join(error_text(error, LONG_TEXT).split()).rstrip(".") or type(error).__name__


def with_remedy(reason: str, error: BaseException) -> str:
    """Return the reason of a failure and what to do about the error, if that is known."""
    remedy = remedy_for(error)
    return reason if remedy is None else f"{reason}: {remedy}"


def trouble(at: str, error: BaseException) -> ServerTrouble:
    """Return the refusal for a command that the server at the address ``at`` has failed to carry out."""
    reason = one_line(error).partition(" script: ")[0]  # what follows is the script's SHA-1
    if code_of(error) == "NOPERM" or isinstance(error, redis.exceptions.NoPermissionError):
        return ServerTrouble(f"the server {at} refuses the command to this user: {reason}")
    return ServerTrouble(f"cannot use the server {at}: {with_remedy(reason, error)}")


def info(client: redis.Redis, section: str) -> dict[str, Any]:
    """Return a section of INFO; empty if the server does not report it."""
    try:
        found: Any = client.info(section)
    except (redis.RedisError, OSError, *_NONSENSE):
        return {}
    return found if isinstance(found, dict) else {}


def cpu_s(client: redis.Redis) -> float | None:
    """Return the CPU seconds of the server's process; None if it does not report them, as fakeredis."""
    usage = info(client, "cpu")
    try:
        used = float(usage["used_cpu_user"]) + float(usage["used_cpu_sys"])
    except _NONSENSE:
        return None
    return used if math.isfinite(used) else None
