"""The capabilities of a server, found out on each new connection while the scripts are loaded.

Each feature is tried; nothing is concluded from the server's version. Runs on the thread that connects, and blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import redis
from redis.connection import AbstractConnection

from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply, error_text
from wheel_lock.protocol.server_errors import ServerError

PLAIN, FLAGGED, SHARDED = range(3)
"""Levels of a server: none of these features; scripts with #!lua flags; sharded pub/sub as well."""

_CODES: dict[type[Exception], str] = {  # of error replies, from which redis-py removes it
    redis.exceptions.ClusterCrossSlotError: "CROSSSLOT",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.NoScriptError: "NOSCRIPT",
}


class Capabilities(NamedTuple):
    """The capabilities of a server and of its user."""

    level: int = PLAIN
    keyed: bool = False  # script calls without keys are refused
    missing_rights: frozenset[str] = frozenset()  # the commands of scripts that the user may not call


def prepare(connection: AbstractConnection, known: Capabilities, *, in_cluster: bool) -> Capabilities:
    """Load the scripts on a new connection; return the server's capabilities.

    Args:
        known: The result for an earlier connection, which stays valid if the user may no longer call EVAL.
        in_cluster: True if the server is a node of a cluster.

    Raises:
        redis.exceptions.RedisError, OSError: The connection failed, or the server is busy with a script.
    """
    flagged, keyed = _knows_flags(connection, known)
    level = FLAGGED if flagged else PLAIN
    if flagged and in_cluster:
        reply = _asked(connection, "SPUBLISH", "wheel_lock:wake:probe", "0")
        if not isinstance(reply, ServerError) or reply.code == "MOVED":  # which shows support, too
            level = SHARDED
    if not flagged:
        try:
            send_and_skip(connection, [("PING",)])
        except redis.exceptions.ConnectionError:  # the server of fakeredis closes a connection after an error reply
            connection.disconnect()
            connection.connect()
    found = _load_scripts(connection, level, keyed)
    if isinstance(found, ServerError) and not keyed and found.wants_keys:
        keyed = True  # the probe, which touches no key, was accepted
        found = _load_scripts(connection, level, keyed)
    # Most errors are reported by the next request.
    return Capabilities(level, keyed, found.forbidden if isinstance(found, ServerError) else read_missing(found))


def send_and_skip(connection: AbstractConnection, commands: Sequence[tuple[str, ...]]) -> None:
    """Send commands in one round trip and skip their replies, errors such as missing rights included."""
    for command in commands:
        connection.send_command(*command)
    for _ in commands:
        _read(connection)


def read_missing(reply: Reply) -> frozenset[str]:
    """Return what RIGHTS replies: commands that the user may not call. Raises MalformedReply if it is not such a list."""
    if type(reply) is not list or not all(type(command) is bytes for command in reply):
        raise MalformedReply(f"a {type(reply).__name__} is not a list of commands")
    return frozenset(command.decode("ascii", "backslashreplace") for command in reply) & scripts.COMMANDS


def _read(connection: AbstractConnection) -> Reply:
    try:
        reply: Reply = connection.read_response()
    except redis.exceptions.ResponseError as error:
        code = _CODES.get(type(error))
        reply = ServerError(str(error) if code is None else f"{code} {error}")
    return reply


def _asked(connection: AbstractConnection, *command: str | bytes | int) -> Reply:
    connection.send_command(*command)
    return _read(connection)


def _knows_flags(connection: AbstractConnection, known: Capabilities) -> tuple[bool, bool]:
    """Return whether the server runs scripts with flags, and whether it refuses calls without keys."""
    reply = _asked(connection, "EVAL", scripts.FLAG_PROBE, 0)
    if not isinstance(reply, ServerError):
        return reply == 1, False
    if reply.code == "NOPERM":
        return known.level >= FLAGGED, known.keyed  # the reply says nothing about the server
    if reply.code == "BUSY":
        raise redis.exceptions.ConnectionError(error_text(reply))  # nor does this one: to be tried again later
    if not reply.wants_keys:
        return False, False
    return _asked(connection, "EVAL", scripts.KEYED_FLAG_PROBE, 1, "wheel_lock:probe") == 1, True


def _load_scripts(connection: AbstractConnection, level: int, keyed: bool) -> Reply:
    """Load the scripts; return the reply to RIGHTS."""
    call = scripts.rights_call(keyed=keyed)
    for script in scripts.ALL:
        connection.send_command("SCRIPT", "LOAD", script.form(level).source)
    connection.send_packed_command([call.encode(level, use_eval=False)])
    for _ in scripts.ALL:
        _read(connection)  # without the right to load them each call sends its script's text
    reply = _read(connection)
    if isinstance(reply, ServerError) and reply.code == "NOSCRIPT":
        connection.send_packed_command([call.encode(level, use_eval=True)])
        reply = _read(connection)
    return reply
