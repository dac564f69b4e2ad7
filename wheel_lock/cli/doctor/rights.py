"""The check of a user's rights: each kind of lock is acquired, extended and released once, on a name of the check's own."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

import redis

from wheel_lock import LockContext, LockServerError, LockTimeout, LockUnavailable, WheelLockError
from wheel_lock.cli import server
from wheel_lock.cli.doctor.findings import Result, Severity, advice, commands_in, unknown, without_remedy
from wheel_lock.cli.target import FAILURES
from wheel_lock.errors import quoted
from wheel_lock.protocol.keys import wake_channel

OF_PATTERNS = "See the ACL SETUSER line of the check rights."
"""The advice where keys or channels are refused: the line is long, and the same for all kinds of lock."""

_ALL = "locks"  # the check of all kinds at once; checks of single kinds are skipped then
_TTL_S = 5.0
_COMPANIONS = ("fence", "permits", "queue", "alive")
_GROUPS = ("", "read:", "write:", "permit:", "fair:")
_CONNECTION = "eval evalsha script|load client|setname select ping publish subscribe unsubscribe"
_STRINGS = "set get del exists pexpire pttl time type strlen"
_HASHES = "hset hexists hlen hkeys hget hstrlen"
_SORTED_SETS = "zadd zcard zcount zrange zrangebyscore zrem zremrangebyscore zscore"
_OF_LOCK = re.compile(r" \(lock .*\)$", re.DOTALL)

_KINDS: dict[str, Callable[[LockContext, str], Any]] = {
    "lock": lambda context, name: context.lock(name, _TTL_S, blocking=False),
    "lock with fencing": lambda context, name: context.lock(name, _TTL_S, blocking=False, fencing=True),
    "reentrant lock": lambda context, name: context.reentrant_lock(name, _TTL_S, blocking=False),
    "fair lock": lambda context, name: context.fair_lock(name, _TTL_S, blocking=False),
    "read lock": lambda context, name: context.rw_lock(name, _TTL_S, blocking=False).read(),
    "write lock": lambda context, name: context.rw_lock(name, _TTL_S, blocking=False).write(),
    "semaphore": lambda context, name: context.semaphore(name, 2, _TTL_S, blocking=False),
    "multi-lock": lambda context, name: context.multi_lock([name], _TTL_S, blocking=False),
}


def escaped(prefix: str) -> str:
    """Return ``prefix`` for a pattern of the server, with a backslash before each special character.

    >>> escaped("a[b]*")
    'a\\\\[b\\\\]\\\\*'
    """
    return re.sub(r"([*?\[\]\\])", r"\\\1", prefix)


def grant(user: str, prefix: str, what: Iterable[str]) -> str:
    """Return the ACL SETUSER line that adds what every kind of lock needs on names that begin with ``prefix``.

    It takes no right away. docs/operations/rights.md has the least rights of a user who is to have no others.

    Args:
        user: The user's name.
        prefix: The prefix.
        what: Any of ``keys``, ``channels`` and ``commands``. The server refuses patterns for a user who has all keys,
            or all channels, already.

    >>> grant("app", "order:", ["channels"]).split()[:4]
    ['ACL', 'SETUSER', 'app', '&wheel_lock:wake:{order:*']
    """
    start = escaped(prefix)
    rules = {
        "keys": [f"~{start}*", "~wheel_lock:probe:*"]
        + [f"~wheel_lock:{companion}:{form}{start}*" for form in ("{", "=") for companion in _COMPANIONS],
        "channels": [f"&wheel_lock:wake:{group}{form}{start}*" for form in ("{", "=") for group in _GROUPS]
        + [f"&redisson_lock__channel:{{{start}*", f"&redisson_lock__channel:{start}*"],
        "commands": [f"+{command}" for command in f"{_CONNECTION} {_STRINGS} {_HASHES} {_SORTED_SETS}".split()],
    }
    return " ".join(["ACL", "SETUSER", user, *(rule for part in what for rule in rules[part])])


def results_of(client: redis.Redis | redis.RedisCluster, user: str, prefix: str) -> dict[str, Result]:
    """Return what the user's rights mean for each kind of lock, by check.

    Args:
        client: A client of the server, of its Sentinels, or of the cluster.
        user: The user's name, for the ACL SETUSER line.
        prefix: The prefix of the names in use; the check's own name begins with it.
    """
    found: dict[str, Result] = {}
    with server.context_of(client) as context:
        for kind, new_lock in _KINDS.items():
            name = f"{prefix}wheel-lock-doctor:{secrets.token_hex(8)}"
            check, result = _use(context, kind, functools.partial(new_lock, context, name), user)
            found[check] = result
            if check == _ALL:
                break
    refused = ["keys"] if any(advice == OF_PATTERNS for _, _, advice in found.values()) else []
    found["wake-ups"] = _wake_ups(client, user, prefix)
    if found["wake-ups"][2] == OF_PATTERNS:
        refused.append("channels")
    if refused:
        text = f"{quoted(user)} may not use all {' and '.join(refused)} that locks on {quoted(prefix + '*')} need"
        severity = Severity.PROBLEM if "keys" in refused else Severity.WARNING
        found["rights"] = severity, text, grant(user, prefix, [*refused, "commands"])
    return found


def _use(context: LockContext, kind: str, new_lock: Callable[[], Any], user: str) -> tuple[str, Result]:
    """Acquire, extend and release one lock of the check's own; return the check and its result."""
    try:
        lock = new_lock()
        with lock:
            if kind != "multi-lock":
                lock.extend(_TTL_S, replace_ttl=True)
    except WheelLockError as error:
        words, remedy = without_remedy(_OF_LOCK.sub("", server.one_line(error)).rstrip("."))
        if isinstance(error, LockServerError) and error.code == "NOPERM":
            return kind, (Severity.PROBLEM, f"the server refuses it: {words}", _grant_for(error, user))
        if remedy or isinstance(error, (LockUnavailable, LockTimeout)):
            return _ALL, (Severity.PROBLEM, f"no lock can be acquired: {words}", remedy)
        return kind, (Severity.PROBLEM, f"it does not work: {words}", "")
    return kind, (Severity.OK, "acquired, extended and released", "")


def _grant_for(error: Exception, user: str) -> str:
    """Return the ACL SETUSER line for the commands that an error names, or OF_PATTERNS if it is about keys or channels."""
    return advice(error, user) if commands_in(error) else OF_PATTERNS


def _wake_ups(client: redis.Redis | redis.RedisCluster, user: str, prefix: str) -> Result:
    """Subscribe and publish once: without these rights waiters poll."""
    channel = wake_channel(f"{prefix}wheel-lock-doctor:{secrets.token_hex(8)}".encode()).decode()
    subscribed: Any = client  # redis-py annotates pubsub() of both clients, but not its arguments
    pubsub = subscribed.pubsub()
    try:
        pubsub.subscribe(channel)
        pubsub.get_message(timeout=_TTL_S)
        client.publish(channel, b"")
    except redis.exceptions.NoPermissionError as error:
        reason = server.one_line(error)
        text = f"waiters poll, because wake-ups are refused: {reason}"
        return Severity.WARNING, text, _grant_for(error, user)
    except FAILURES as error:
        return unknown("SUBSCRIBE or PUBLISH", error, user)
    finally:
        pubsub.close()
    return Severity.OK, "a release wakes waiters", ""
