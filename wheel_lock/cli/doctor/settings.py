"""Checks of what a server reports of itself: memory, persistence, replication, version, the state of its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis

from wheel_lock.cli import server
from wheel_lock.cli.doctor.findings import Finding, Master, Severity
from wheel_lock.cli.doctor.refusals import is_silence, unknown
from wheel_lock.cli.target import FAILURES
from wheel_lock.protocol.keys import SLOTS
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.server_errors import REMEDIES, code_of

CONNECTION = "connection"
"""The check that a server does not pass with which no other one is made."""

_NEARLY_FULL = 0.9
_FLAGS_PROBE = "#!lua flags=no-writes\nreturn 1"


def findings_of(master: Master, min_replicas: int) -> Iterator[Finding]:
    """Yield what the settings of one master mean for locks; only that it is silent, if it is.

    Args:
        master: The master.
        min_replicas: The number of replicas that acquires wait for, as the contexts in use are set.
    """
    try:
        info: dict[str, Any] = master.client.info()
    except FAILURES as error:
        if is_silence(error):
            yield Finding(CONNECTION, Severity.PROBLEM, f"the server does not answer: {server.one_line(error)}")
            return
        yield unknown("settings", "INFO", error, master.user)
        info = {}
    else:
        yield _role(info)
        yield _eviction(info)
        yield _persistence(info, master)
        yield _replicas(info, min_replicas)
        if info.get("cluster_enabled"):
            yield _cluster(master)
    yield _scripts(master, info.get("redis_version") or master.version)


def _role(info: dict[str, Any]) -> Finding:
    if info.get("loading"):
        return Finding("role", Severity.PROBLEM, "the server does not serve requests yet", REMEDIES["LOADING"])
    if info.get("role", "master") == "master":
        return Finding("role", Severity.OK, "the server is a master")
    return Finding(
        "role",
        Severity.PROBLEM,
        "the server is a replica: it refuses every write",
        "Use the master, or the URL of its Sentinels or cluster, which finds the master after a failover, too.",
    )


def _eviction(info: dict[str, Any]) -> Finding:
    limit, policy = info.get("maxmemory"), info.get("maxmemory_policy")
    if limit is None or policy is None:
        return Finding("eviction", Severity.UNKNOWN, "INFO does not report maxmemory and eviction policy")
    if policy == "noeviction":
        counted = info.get("used_memory", 0) - info.get("mem_not_counted_for_evict", 0)
        if limit and counted > _NEARLY_FULL * limit:
            full = counted > limit
            text = f"memory is {'' if full else 'nearly '}full: {counted:,} of {limit:,} bytes; no key is evicted"
            if full:
                return Finding("eviction", Severity.PROBLEM, f"{text}, and acquires are refused", REMEDIES["OOM"])
            then = "and acquires will be refused"
            return Finding("eviction", Severity.WARNING, f"{text}, {then}", "Free memory, or raise maxmemory.")
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


def _persistence(info: dict[str, Any], master: Master) -> Finding:
    wait = "After a crash start the server again only when the longest timeout of a lock has passed"
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failed:
        return Finding(
            "persistence",
            Severity.PROBLEM,
            f"{' and '.join(failed)}: the server cannot write to its disk, and refuses writes where it is set to do so",
            REMEDIES["MISCONF"],
        )
    if "aof_enabled" not in info:
        return Finding("persistence", Severity.UNKNOWN, "INFO does not report the persistence")
    if not info["aof_enabled"]:
        return Finding(
            "persistence",
            Severity.WARNING,
            "there is no append-only file: a restart forgets locks, and others get them while their holders still work",
            f"CONFIG SET appendonly yes. {wait}, or use fencing, or a quorum of servers.",
        )
    try:
        sync = master.client.config_get("appendfsync").get("appendfsync")
    except FAILURES as error:
        return unknown("persistence", "CONFIG GET appendfsync", error, master.user)
    if sync == "always":
        return Finding("persistence", Severity.OK, "a restart forgets no lock: each write is on disk before its reply")
    if sync == "no":
        return Finding(
            "persistence",
            Severity.WARNING,
            "appendfsync is no: a crash of the machine forgets up to half a minute of locks",
            f"CONFIG SET appendfsync everysec (or always). {wait}.",
        )
    known = f"appendfsync is {sync}: a crash of the machine forgets at most the last second"
    return Finding("persistence", Severity.OK, known, f"{wait}.")


def _replicas(info: dict[str, Any], min_replicas: int) -> Finding:
    replicas = info.get("connected_slaves")
    if not isinstance(replicas, int):
        return Finding("replicas", Severity.UNKNOWN, "INFO does not report the replicas")
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


def _cluster(master: Master) -> Finding:
    """Return what a node thinks of its cluster. One slot without a master makes it refuse all keys by default."""
    try:
        state: Any = master.client.execute_command("CLUSTER INFO")
        missing = SLOTS - int(state["cluster_slots_ok"])
    except FAILURES as error:
        return unknown("cluster", "CLUSTER INFO", error, master.user)
    if not missing and state.get("cluster_state") == "ok":
        return Finding("cluster", Severity.OK, f"each of the {SLOTS:,} slots has a master")
    text = f"{missing:,} of {SLOTS:,} slots have no master that answers; cluster_state is {state.get('cluster_state')}"
    return Finding("cluster", Severity.PROBLEM, text, REMEDIES["CLUSTERDOWN"])


def _scripts(master: Master, version: str | None) -> Finding:
    name = f"version {error_text(version, 40)}" if version else "a version that is not reported"
    try:
        master.client.eval(_FLAGS_PROBE, 0)
    except FAILURES as error:
        if type(error) is not redis.ResponseError or code_of(error) != "ERR":  # no error of the compiler
            return unknown("version", f"{name}; EVAL", error, master.user)
        return Finding(
            "version",
            Severity.WARNING,
            f"{name}, which knows no script flags: renewals are refused, and locks lost, while memory is full",
            "Use Redis 7 or newer, or Valkey.",
        )
    return Finding("version", Severity.OK, f"{name}; renewals go on when memory is full")
