"""The target of a benchmark: one server, the master that a Sentinel names, or a cluster, found behind one URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from redis.connection import parse_url
from redis.sentinel import Sentinel

from wheel_lock.cli import server
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.protocol.resp import error_text

# RedisClusterException is no RedisError; the last four are raised by redis-py for malformed replies.
FAILURES = (redis.RedisError, redis.RedisClusterException, OSError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True, slots=True)
class Target:
    """The server or servers to measure, and the clients of them.

    Attributes:
        client: The client that contexts are made of.
        masters: A client for each master.
        address: Host and port, without credentials.
        kind: ``server``, ``sentinel`` or ``cluster``.
        version: The server's version; None if it does not report one.
        cpu_unknown: The reason why the CPU time of the masters cannot be had; None if it can.
    """

    client: redis.Redis | redis.RedisCluster
    masters: tuple[redis.Redis, ...]
    address: str
    kind: str
    version: str | None
    cpu_unknown: str | None

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of all masters together; None if one does not report them."""
        used = [server.cpu_s(master) for master in self.masters]
        return None if None in used else sum(cpu_s for cpu_s in used if cpu_s is not None)

    def close(self) -> None:
        """Close all clients."""
        self.client.close()
        for master in self.masters:
            master.close()


def find(url: str) -> Target:
    """Return the target at ``url``: the server itself, the only master of a Sentinel, or the cluster of a node.

    Raises:
        BadUrl: The URL is malformed.
        ServerTrouble: There is no server, or none that can be used.
    """
    entrance = server.connect(url, "URL")
    try:
        hello = _hello(entrance)
        kind = {"cluster": "cluster", "sentinel": "sentinel"}.get(hello.get("mode", ""), "server")
        client: redis.Redis | redis.RedisCluster = entrance
        masters: tuple[redis.Redis, ...] = (entrance,)
        address = server.address(entrance)
        if kind == "cluster":
            client = redis.RedisCluster.from_url(url, **server.TIME_LIMITS)
            masters = tuple(client.get_redis_connection(node) for node in client.get_primaries())
        elif kind == "sentinel":
            client, address = _master(url, entrance)
            client.ping()
            masters = (client,)
    except FAILURES as error:
        entrance.close()
        raise ServerTrouble(f"cannot use the server {server.address(entrance)}: {server.one_line(error)}") from error
    except ServerTrouble:
        entrance.close()
        raise
    if client is not entrance:
        entrance.close()
    version = error_text(hello["version"], 40) if "version" in hello else server.version(masters[0])
    return Target(client, masters, address, kind, version, _cpu_unknown(masters[0]))


def _hello(client: redis.Redis) -> dict[str, str]:
    """Return the reply to HELLO, which needs no rights; empty if the server does not know the command."""
    try:
        reply: Any = client.execute_command("HELLO")
    except redis.ResponseError:
        return {}
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): value.decode() for name, value in pairs if isinstance(value, bytes)}


def _master(url: str, sentinel: redis.Redis) -> tuple[redis.Redis, str]:
    """Return a client of the only master of a Sentinel, with the settings of ``url`` for both, and its address."""
    masters: Any = sentinel.sentinel_masters()
    if len(masters) != 1:
        known = ", ".join(f"{error_text(name)} at {state['ip']}:{state['port']}" for name, state in masters.items())
        raise ServerTrouble(f"{server.address(sentinel)} is a Sentinel: choose the URL of a master ({known or 'none'})")
    settings = {**server.TIME_LIMITS, **parse_url(url)}
    settings["ssl"] = issubclass(settings.pop("connection_class", redis.Connection), redis.SSLConnection)
    asked = settings.pop("host", "localhost"), settings.pop("port", 6379)
    for_sentinel = {name: value for name, value in settings.items() if name != "db"}
    sentinels = Sentinel([asked], sentinel_kwargs=for_sentinel, **settings)
    name = next(iter(masters))
    host, port = sentinels.discover_master(name)
    return sentinels.master_for(name), f"{error_text(host)}:{port}"


def _cpu_unknown(master: redis.Redis) -> str | None:
    try:
        if {"used_cpu_user", "used_cpu_sys"} <= master.info("cpu").keys():
            return None
    except redis.exceptions.NoPermissionError:
        return "the user has no right to call INFO"
    except FAILURES:
        pass
    return "INFO does not tell it"
