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
    if flagged and in_cluster and _has_sharded_pubsub(connection):
        level = SHARDED
    if not flagged:
        try:
            send_and_skip(connection, [("PING",)])
        except redis.exceptions.ConnectionError:  # the server of fakeredis closes a connection after an error reply
            connection.disconnect()
            connection.connect()
    refusal, missing = _load_scripts(connection, level, keyed)
    if refusal is not None and not keyed and refusal.wants_keys:
        keyed = True  # the probe, which touches no key, was accepted
        refusal, missing = _load_scripts(connection, level, keyed)
    return Capabilities(level, keyed, missing if refusal is None else refusal.forbidden)


def send_and_skip(connection: AbstractConnection, commands: Sequence[tuple[str, ...]]) -> None:
    """Send commands in one round trip and skip their replies, errors such as missing rights included."""
    for command in commands:
        connection.send_command(*command)
    _skip_replies(connection, len(commands))


def _skip_replies(connection: AbstractConnection, count: int) -> None:
    for _ in range(count):
        try:
            connection.read_response()
        except redis.exceptions.ResponseError:
            pass


def read_missing(reply: Reply) -> frozenset[str]:
    """Return what RIGHTS replies: commands that the user may not call. Raises MalformedReply if it is not such a list."""
    if type(reply) is not list or not all(type(command) is bytes for command in reply):
        raise MalformedReply(f"a {type(reply).__name__} is not a list of commands")
    return frozenset(command.decode("ascii", "backslashreplace") for command in reply) & scripts.COMMANDS


def _knows_flags(connection: AbstractConnection, known: Capabilities) -> tuple[bool, bool]:
    """Return whether the server runs scripts with flags, and whether it refuses calls without keys."""
    try:
        return _runs(connection, scripts.FLAG_PROBE, 0), False
    except redis.exceptions.NoPermissionError:
        return known.level >= FLAGGED, known.keyed  # the reply says nothing about the server
    except redis.exceptions.ResponseError as error:
        refusal = _as_server_error(error)
    if refusal.code == "BUSY":
        raise redis.exceptions.ConnectionError(error_text(refusal))  # nor does this one: to be tried again later
    if not refusal.wants_keys:
        return False, False
    try:
        return _runs(connection, scripts.KEYED_FLAG_PROBE, 1, "wheel_lock:probe"), True
    except redis.exceptions.ResponseError:
        return False, True


def _runs(connection: AbstractConnection, probe: bytes, *arguments: str | int) -> bool:
    connection.send_command("EVAL", probe, *arguments)
    return bool(connection.read_response() == 1)


def _has_sharded_pubsub(connection: AbstractConnection) -> bool:
    """Return whether a node of a cluster supports SPUBLISH; a MOVED reply to it shows that, too."""
    connection.send_command("SPUBLISH", "wheel_lock:wake:probe", "0")
    try:
        connection.read_response()
    except redis.exceptions.ResponseError as error:
        return isinstance(error, redis.exceptions.MovedError)
    return True


def _load_scripts(connection: AbstractConnection, level: int, keyed: bool) -> tuple[ServerError | None, frozenset[str]]:
    """Load the scripts and call RIGHTS; return its error reply, or None, and the commands that the user may not call."""
    form, (keys, words) = scripts.RIGHTS.form(level), scripts.rights_arguments(keyed=keyed)
    for script in scripts.ALL:
        connection.send_command("SCRIPT", "LOAD", script.form(level).source)
    connection.send_command("EVALSHA", form.sha1, keys, *words)
    _skip_replies(connection, len(scripts.ALL))  # without the right to load them each call sends its script's text
    try:
        try:
            missing = connection.read_response()
        except redis.exceptions.NoScriptError:
            connection.send_command("EVAL", form.source, keys, *words)
            missing = connection.read_response()
    except redis.exceptions.ResponseError as error:
        return _as_server_error(error), frozenset()  # most errors are reported by the next request
    return None, read_missing(missing)


def _as_server_error(error: redis.exceptions.ResponseError) -> ServerError:
    """Return the error reply that redis-py has raised as ``error``, with the code CROSSSLOT, which redis-py removes."""
    crosses = isinstance(error, redis.exceptions.ClusterCrossSlotError)
    return ServerError(f"CROSSSLOT {error}" if crosses else str(error))
