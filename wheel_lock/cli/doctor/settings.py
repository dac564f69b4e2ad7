"""Checks of what a server reports of itself: memory, persistence, replication, version, the state of its cluster."""

from __future__ import annotations

from typing import Any

import redis

from wheel_lock.cli import server
from wheel_lock.cli.doctor.findings import Result, Severity, is_silence, unknown, user_of
from wheel_lock.cli.target import FAILURES
from wheel_lock.protocol.keys import SLOTS
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.server_errors import REMEDIES, code_of

CONNECTION = "connection"
"""The check that a server does not pass with which no other one is made."""

_NEARLY_FULL = 0.9
_FLAGS_PROBE = "#!lua flags=no-writes\nreturn 1"


def results_of(master: redis.Redis, version: str | None, min_replicas: int) -> dict[str, Result]:
    """Return what the settings of one master mean for locks, by check; only that it is silent, if it is.

    Args:
        master: A client of the master.
        version: Its version; None if the connection does not know it.
        min_replicas: The number of replicas that acquires wait for, as the contexts in use are set.
    """
    found: dict[str, Result] = {}
    info: dict[str, Any] = {}
    try:
        info = master.info()
    except FAILURES as error:
        if is_silence(error):
            return {CONNECTION: (Severity.PROBLEM, f"the server does not answer: {server.one_line(error)}", "")}
        found["settings"] = unknown("INFO", error, user_of(master))
    else:
        found["role"] = _role(info)
        found["eviction"] = _eviction(info)
        found["persistence"] = _persistence(info, master)
        found["replicas"] = _replicas(info, min_replicas)
        if info.get("cluster_enabled"):
            found["cluster"] = _cluster(master)
    found["version"] = _scripts(master, info.get("redis_version") or version)
    return found


def _role(info: dict[str, Any]) -> Result:
    if info.get("loading"):
        return Severity.PROBLEM, "the server does not serve requests yet", REMEDIES["LOADING"]
    if info.get("role", "master") == "master":
        return Severity.OK, "the server is a master", ""
    advice = "Use the master, or the URL of its Sentinels or cluster, which finds the master after a failover, too."
    return Severity.PROBLEM, "the server is a replica: it refuses every write", advice


def _eviction(info: dict[str, Any]) -> Result:
    limit, policy = info.get("maxmemory"), info.get("maxmemory_policy")
    if limit is None or policy is None:
        return Severity.UNKNOWN, "INFO does not report maxmemory and eviction policy", ""
    if policy != "noeviction":
        if not limit:
            text = f"maxmemory-policy is {policy}, which evicts locks as soon as maxmemory is set"
            return Severity.WARNING, text, "CONFIG SET maxmemory-policy noeviction"
        text = f"maxmemory-policy is {policy}: when memory is full the server deletes locks that are held"
        advice = "CONFIG SET maxmemory-policy noeviction, or keep locks on a server without the cache."
        return Severity.PROBLEM, text, advice
    if not limit:
        return Severity.OK, "memory has no limit and no key is evicted", ""
    counted = info.get("used_memory", 0) - info.get("mem_not_counted_for_evict", 0)
    full = f"full: {counted:,} of {limit:,} bytes; no key is evicted, and acquires"
    if counted > limit:
        return Severity.PROBLEM, f"memory is {full} are refused", REMEDIES["OOM"]
    if counted > _NEARLY_FULL * limit:
        return Severity.WARNING, f"memory is nearly {full} will be refused", "Free memory, or raise maxmemory."
    return Severity.OK, "no key is evicted; when memory is full acquires fail with an error", ""


def _persistence(info: dict[str, Any], master: redis.Redis) -> Result:
    wait = "After a crash start the server again only when the longest timeout of a lock has passed"
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failed:
        text = (
            f"{' and '.join(failed)}: the server cannot write to its disk, and refuses writes where it is set to do so"
        )
        return Severity.PROBLEM, text, REMEDIES["MISCONF"]
    if "aof_enabled" not in info:
        return Severity.UNKNOWN, "INFO does not report the persistence", ""
    if not info["aof_enabled"]:
        text = (
            "there is no append-only file: a restart forgets locks, and others get them while their holders still work"
        )
        return Severity.WARNING, text, f"CONFIG SET appendonly yes. {wait}, or use fencing, or a quorum of servers."
    try:
        sync = master.config_get("appendfsync").get("appendfsync")
    except FAILURES as error:
        return unknown("CONFIG GET appendfsync", error, user_of(master))
    if sync == "always":
        return Severity.OK, "a restart forgets no lock: each write is on disk before its reply", ""
    if sync == "no":
        text = "appendfsync is no: a crash of the machine forgets up to half a minute of locks"
        return Severity.WARNING, text, f"CONFIG SET appendfsync everysec (or always). {wait}."
    return Severity.OK, f"appendfsync is {sync}: a crash of the machine forgets at most the last second", f"{wait}."


def _replicas(info: dict[str, Any], min_replicas: int) -> Result:
    replicas = info.get("connected_slaves")
    if not isinstance(replicas, int):
        return Severity.UNKNOWN, "INFO does not report the replicas", ""
    counted = f"{replicas} replica{'s' * (replicas != 1)}"
    if replicas < min_replicas:
        text = f"min_replicas is {min_replicas}, and {counted} are connected: every acquire is refused"
        return Severity.PROBLEM, text, "Connect the replicas, or lower min_replicas."
    if min_replicas:
        return Severity.OK, f"{counted}; a grant waits for {min_replicas} of them", ""
    if replicas:
        text = f"{counted} and no min_replicas: a failover forgets locks that were not replicated yet"
        advice = "LockContext(client, min_replicas=1), with fencing where the protected resource can check fences."
        return Severity.WARNING, text, advice
    return Severity.OK, "there is no replica: no failover that could forget locks", ""


def _cluster(master: redis.Redis) -> Result:
    """Return what a node thinks of its cluster. One slot without a master makes it refuse all keys by default."""
    try:
        state: Any = master.execute_command("CLUSTER INFO")
        missing = SLOTS - int(state["cluster_slots_ok"])
    except FAILURES as error:
        return unknown("CLUSTER INFO", error, user_of(master))
    if not missing and state.get("cluster_state") == "ok":
        return Severity.OK, f"each of the {SLOTS:,} slots has a master", ""
    text = f"{missing:,} of {SLOTS:,} slots have no master that answers; cluster_state is {state.get('cluster_state')}"
    return Severity.PROBLEM, text, REMEDIES["CLUSTERDOWN"]


def _scripts(master: redis.Redis, version: str | None) -> Result:
    name = f"version {error_text(version, 40)}" if version else "a version that is not reported"
    try:
        master.eval(_FLAGS_PROBE, 0)
    except FAILURES as error:
        if type(error) is not redis.ResponseError or code_of(error) != "ERR":  # no error of the compiler
            return unknown(f"{name}; EVAL", error, user_of(master))
        text = f"{name}, which knows no script flags: renewals are refused, and locks lost, while memory is full"
        return Severity.WARNING, text, "Use Redis 7 or newer, or Valkey."
    return Severity.OK, f"{name}; renewals go on when memory is full", ""
