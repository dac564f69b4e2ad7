"""Checks of what a server reports of itself: memory, persistence, replication, version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis

from wheel_lock.cli import server
from wheel_lock.cli.doctor.findings import Finding, Severity
from wheel_lock.cli.target import FAILURES

_FLAGS_PROBE = "#!lua flags=no-writes\nreturn 1"


def findings_of(master: redis.Redis, min_replicas: int) -> Iterator[Finding]:
    """Yield what the settings of one master mean for locks.

    Args:
        master: A client of the master.
        min_replicas: The number of replicas that acquires wait for, as the contexts in use are set.
    """
    try:
        info: dict[str, Any] = master.info()
    except FAILURES as error:
        yield Finding(
            "settings",
            Severity.UNKNOWN,
            f"INFO cannot be read: {server.one_line(error)}",
            "Run this as a user with the rights +info and +config|get to have memory, persistence and replicas checked.",
        )
        info = {}
    checks = (_role, _eviction, _persistence, _replicas)
    for check in checks if info else ():
        yield check(master, info, min_replicas)
    yield _scripts(master, info)


def _config(master: redis.Redis, name: str) -> str | None:
    """Return a setting of the server; None if it may not be read."""
    try:
        value = master.config_get(name).get(name)
    except FAILURES:
        return None
    return None if value is None else str(value)


def _role(master: redis.Redis, info: dict[str, Any], min_replicas: int) -> Finding:
    if info.get("role", "master") == "master":
        return Finding("role", Severity.OK, "the server is a master")
    return Finding(
        "role",
        Severity.PROBLEM,
        "the server is a replica: it refuses every write",
        "Use the master, or the URL of its Sentinels or cluster, which finds the master after a failover, too.",
    )


def _eviction(master: redis.Redis, info: dict[str, Any], min_replicas: int) -> Finding:
    limit, policy = info.get("maxmemory"), info.get("maxmemory_policy")
    if limit is None or policy is None:
        return Finding("eviction", Severity.UNKNOWN, "the server does not report its maxmemory and eviction policy")
    if policy == "noeviction":
        kept = "no key is evicted; when memory is full acquires fail with an error"
        return Finding("eviction", Severity.OK, kept if limit else "memory has no limit and no key is evicted")
    if not limit:
        return Finding(
            "eviction",
            Severity.WARNING,
            f"maxmemory-policy is {policy}, which evicts locks as soon as maxmemory is set",
            "CONFIG SET maxmemory-policy noeviction",
        )
    return Finding(
        "eviction",
        Severity.PROBLEM,
        f"maxmemory-policy is {policy}: when memory is full the server deletes locks that are held",
        "CONFIG SET maxmemory-policy noeviction, or keep locks on a server without the cache.",
    )


def _persistence(master: redis.Redis, info: dict[str, Any], min_replicas: int) -> Finding:
    wait = "After a crash start the server again only when the longest timeout of a lock has passed"
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failed:
        return Finding(
            "persistence",
            Severity.PROBLEM,
            f"{' and '.join(failed)}: the server cannot write to its disk, and refuses writes where it is set to do so",
            "Look at the server's log and at the free space of its disk.",
        )
    if "aof_enabled" not in info:
        return Finding("persistence", Severity.UNKNOWN, "the server does not report its persistence")
    if not info["aof_enabled"]:
        return Finding(
            "persistence",
            Severity.WARNING,
            "there is no append-only file: a restart forgets locks, and others get them while their holders still work",
            f"CONFIG SET appendonly yes. {wait}, or use fencing, or a quorum of servers.",
        )
    sync = _config(master, "appendfsync")
    if sync == "always":
        return Finding("persistence", Severity.OK, "a restart forgets no lock: each write is on disk before its reply")
    if sync == "no":
        return Finding(
            "persistence",
            Severity.WARNING,
            "appendfsync is no: a crash of the machine forgets up to half a minute of locks",
            f"CONFIG SET appendfsync everysec (or always). {wait}.",
        )
    known = "appendfsync is everysec" if sync else "there is an append-only file (appendfsync may not be read)"
    return Finding(
        "persistence", Severity.OK, f"{known}: a crash of the machine forgets at most the last second", f"{wait}."
    )


def _replicas(master: redis.Redis, info: dict[str, Any], min_replicas: int) -> Finding:
    replicas = info.get("connected_slaves")
    if not isinstance(replicas, int):
        return Finding("replicas", Severity.UNKNOWN, "the server does not report its replicas")
    counted = f"{replicas} replica{'s' * (replicas != 1)}"
    if replicas < min_replicas:
        return Finding(
            "replicas",
            Severity.PROBLEM,
            f"min_replicas is {min_replicas}, and {counted} are connected: every acquire is refused",
            "Connect the replicas, or lower min_replicas.",
        )
    if min_replicas:
        return Finding("replicas", Severity.OK, f"{counted}; a grant waits for {min_replicas} of them")
    if replicas:
        return Finding(
            "replicas",
            Severity.WARNING,
            f"{counted} and no min_replicas: a failover forgets locks that were not replicated yet",
            "LockContext(client, min_replicas=1), with fencing where the protected resource can check fences.",
        )
    return Finding("replicas", Severity.OK, "there is no replica: no failover that could forget locks")


def _scripts(master: redis.Redis, info: dict[str, Any]) -> Finding:
    version = server.version(master) if info else None
    name = f"version {version}" if version else "a version that is not reported"
    try:
        master.eval(_FLAGS_PROBE, 0)
    except redis.exceptions.NoPermissionError:
        return Finding(
            "version", Severity.UNKNOWN, f"{name}; whether scripts can have flags is not known without +eval"
        )
    except FAILURES:
        return Finding(
            "version",
            Severity.WARNING,
            f"{name}, which knows no script flags: renewals are refused, and locks lost, while memory is full",
            "Use Redis 7 or newer, or Valkey.",
        )
    return Finding("version", Severity.OK, f"{name}; renewals go on when memory is full")
