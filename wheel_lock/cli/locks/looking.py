"""Queries of a target about locks: one name, many names, all names that match a pattern; the forced release.

All of them raise ServerTrouble if a server does not answer, or the user has no right to the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from wheel_lock.cli import server
from wheel_lock.cli.arguments import checked
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.cli.target import FAILURES, Target
from wheel_lock.lock_types.holders import (
    MAX_HOLDERS,
    LockState,
    force_release_arguments,
    look_arguments,
    parse_force_release,
    parse_look,
)
from wheel_lock.options import RESERVED, lock_name
from wheel_lock.protocol.resp import MalformedReply, error_text
from wheel_lock.protocol.scripts import FORCE_RELEASE, LOOK, ScriptForm
from wheel_lock.protocol.server_errors import ServerError

_BATCH = 500  # names per SCAN, and per pipeline
_ELSEWHERE = (redis.exceptions.MovedError, redis.exceptions.AskError, redis.exceptions.TryAgainError)
# redis-py has removed the code from the text. The server does not keep a script whose call it refuses.
_ALONE = (*_ELSEWHERE, redis.exceptions.NoScriptError)


class Found(NamedTuple):
    """A name and what the server has under it."""

    name: bytes
    state: LockState


def key_of(name: str) -> bytes:
    """Return the key of a lock's name on the command line. Raises Refusal if it is none."""
    with checked():
        return lock_name(name.encode("utf-8", "surrogateescape"), b"")


def look_at(target: Target, name: bytes, *, most: int = MAX_HOLDERS) -> LockState:
    """Return what the target has under one name, with what accompanies the lock as far as the user may read it."""
    state = _look_alone(target, name, companions=True, most=most)
    if state.kind == "unreadable":
        # The user may have no right to the companion keys only.
        state = _look_alone(target, name, companions=False, most=most)
    return state


def look_for(target: Target, pattern: str, advance: Callable[[float], object]) -> Iterator[Found]:
    """Yield each name that matches ``pattern`` and what is under it, companion keys left out. Uses SCAN, never KEYS.

    SCAN may return a key more than once, and so may this.

    Args:
        target: The server to query; of a cluster every master.
        pattern: As for SCAN.
        advance: Called with the share of the keys that have been seen, an estimate.
    """
    for number, master in enumerate(target.masters):
        size, scanned, cursor = _size(master), 0, 0
        while True:
            with _troubles(target):
                cursor, keys = cast("tuple[int, list[bytes]]", master.scan(cursor, match=pattern, count=_BATCH))
                found = _look_at_many(target, master, [key for key in keys if not key.startswith(RESERVED.encode())])
            yield from found
            scanned += _BATCH
            advance((number + min(scanned / max(size, 1), 1.0)) / len(target.masters))
            if cursor == 0:
                break


def force_release(target: Target, name: bytes, state: LockState) -> int | None:
    """Release the lock for exactly the holders in ``state``, and wake the waiters.

    Returns:
        The number of holders that were removed, 0 if there is none, or None if they are others meanwhile.
    """
    keys, others = force_release_arguments(name, state.key_type, state.values)
    call = ("EVAL", _wakes(target).source, len(keys), *keys, *others)
    with _troubles(target):
        try:
            return parse_force_release(_once(target, name, call))
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            sentence = f"{server.trouble(target.address, error).sentence}; it is not known whether the lock is released"
            raise ServerTrouble(sentence) from error


def _once(target: Target, name: bytes, call: Sequence[Any]) -> Any:
    """Return the reply to a command that is never sent again: without its reply it may have been executed or not."""
    client: Any = target.client
    if isinstance(client, redis.RedisCluster):
        # With a node given, the client follows redirections and sends the command again for no other reason.
        return client.execute_command(*call, target_nodes=client.get_node_from_key(name))
    with client.client() as alone:  # has a connection of its own
        alone.connection.retry = Retry(NoBackoff(), 0)
        return alone.execute_command(*call)


def _wakes(target: Target) -> ScriptForm:
    """Return the form of FORCE_RELEASE that publishes where waiters listen: on a cluster of Redis 7 by SPUBLISH."""
    major = (target.version or "").partition(".")[0]
    sharded = target.kind == "cluster" and major.isdigit() and int(major) >= 7
    return FORCE_RELEASE.sharded if sharded else FORCE_RELEASE.plain


def _size(master: redis.Redis) -> int:
    try:
        return int(master.dbsize())
    except FAILURES:
        return 0  # without the right to ask only the display of progress suffers


def _look_at_many(target: Target, master: redis.Redis, names: Sequence[bytes]) -> list[Found]:
    """Return what is under each of ``names``, which belong to ``master``: kind, holders and times only."""
    if not names:
        return []
    pipeline = master.pipeline(transaction=False)
    for position, name in enumerate(names):
        keys, others = look_arguments(name, companions=False)
        # The first call has the text, which the server keeps for the others.
        call = ("EVALSHA", LOOK.plain.sha1) if position else ("EVAL", LOOK.plain.source)
        pipeline.execute_command(*call, len(keys), *keys, *others)
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    return [
        Found(name, _look_alone(target, name) if isinstance(reply, _ALONE) else _state(reply))
        for name, reply in zip(names, replies, strict=True)
    ]


def _look_alone(target: Target, name: bytes, *, companions: bool = False, most: int = MAX_HOLDERS) -> LockState:
    keys, others = look_arguments(name, companions=companions, most=most)
    client: Any = target.client  # a cluster's client finds the node by the declared keys
    with _troubles(target):
        try:
            reply = client.execute_command("EVAL", LOOK.plain.source, len(keys), *keys, *others)
        except redis.exceptions.NoPermissionError as error:
            reply = error
        return _state(reply)


def _state(reply: object) -> LockState:
    """Return the state that a reply stands for; a refusal of the key is one, too. Raises other errors."""
    if isinstance(reply, redis.exceptions.NoPermissionError) and not ServerError(str(reply)).forbidden:
        return LockState("unreadable", "", problem=error_text(reply))
    if isinstance(reply, Exception):
        raise reply
    return parse_look(reply)


@contextmanager
def _troubles(target: Target) -> Iterator[None]:
    """Turn failures of the server inside the ``with`` block into ServerTrouble."""
    try:
        yield
    except (*FAILURES, MalformedReply) as error:
        raise server.trouble(target.address, error) from error
