"""The target of a command: one server, the master that Sentinels name, or a cluster, found behind one URL."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from redis.connection import parse_url
from redis.sentinel import Sentinel

from wheel_lock.cli import server
from wheel_lock.cli.arguments import Refusal
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.net.clients import ServerUrl
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.server_errors import REMEDIES

T = TypeVar("T")

_ASKED_AT_ONCE = 1_000
# RedisClusterException is not a RedisError; the last four are raised by redis-py for malformed replies.
FAILURES = (redis.RedisError, redis.RedisClusterException, OSError, ValueError, TypeError, LookupError, AttributeError)


class NoMaster(ServerTrouble):
    """Sentinels know the master, and it is not there at present, as during a failover."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server or servers of a command, and the clients of them."""

    client: redis.Redis | redis.RedisCluster  # which contexts are made of
    masters: tuple[redis.Redis, ...]  # a client for each
    address: str  # host and port, without credentials
    kind: str  # server, sentinel or cluster
    version: str | None  # None if the server does not report one

    def cpu_s(self) -> float | None:
        """Return the CPU seconds of all masters together; None if one does not report them."""
        used = [server.cpu_s(master) for master in self.masters]
        return None if None in used else sum(cpu_s for cpu_s in used if cpu_s is not None)

    def cpu_unknown(self) -> str:
        """Return why :meth:`cpu_s` returns None."""
        try:
            self.masters[0].info("cpu")
        except redis.exceptions.NoPermissionError:
            return "the user has no right to call INFO"
        except FAILURES:
            return "it did not answer INFO"
        return "INFO does not tell it"

    def values(self, names: Sequence[str | bytes]) -> list[Any]:
        """Return the values of keys."""
        if isinstance(self.client, redis.RedisCluster):
            found: list[Any] = self.client.mget_nonatomic(names)
        else:
            found = self.client.mget(names)
        return found

    def existing(self, names: Iterable[str]) -> int | None:
        """Return the number of ``names`` that are keys; None if the servers cannot be asked."""
        found = 0
        try:
            for portion in portions(names):
                pipeline: Any = self.client.pipeline(transaction=False)
                for name in portion:
                    pipeline.exists(name)
                found += sum(pipeline.execute())
        except FAILURES:
            return None
        return found

    def close(self) -> None:
        """Close all clients."""
        self.client.close()
        for master in self.masters:
            master.close()


def portions(things: Iterable[T]) -> Iterator[list[T]]:
    """Yield ``things`` in lists, each for one question to a server."""
    rest = iter(things)
    while portion := list(itertools.islice(rest, _ASKED_AT_ONCE)):
        yield portion


def find(url: str, parameter: str = "--redis") -> Target:
    """Return the target at ``url``: a server, the master that Sentinels name, or a cluster.

    The URL of a node stands for its cluster, and that of a Sentinel for its only master.

    Args:
        parameter: The name of the URL in messages.

    Raises:
        Refusal: The URL is malformed.
        ServerTrouble: There is no server, or none that can be used.
    """
    named = server.parsed(url, parameter)
    try:
        if named.topology == "sentinel":
            return _found(_named_master(named), "sentinel")
        return _behind(_first(named.urls), named)
    except server.MalformedUrl:
        raise server.bad_url(url, parameter) from None


def _behind(entrance: redis.Redis, named: ServerUrl) -> Target:
    """Return the target that a server is, or is a part of."""
    address = server.address(entrance)
    try:
        mode = _hello(entrance).get("mode")
        if mode == "sentinel":
            return _found(_only_master(named.urls[0], entrance), mode)
        if mode == "cluster":
            return _found(_cluster(named), mode, address)
        if named.topology == "cluster":
            raise ServerTrouble(f"the server {address} is not a node of a cluster: use redis://")
        return _found(entrance, "server")
    except FAILURES as error:
        entrance.close()
        raise server.trouble(address, error) from error
    except (Refusal, server.MalformedUrl):
        entrance.close()
        raise


def _found(client: redis.Redis | redis.RedisCluster, kind: str, address: str = "") -> Target:
    """Return the target that ``client`` is for; ``address`` is that of a cluster."""
    masters: tuple[redis.Redis, ...]
    if isinstance(client, redis.RedisCluster):
        masters = tuple(client.get_redis_connection(node) for node in client.get_primaries())
    else:
        masters = (client,)
    return Target(client, masters, address or server.address(masters[0]), kind, _hello(masters[0]).get("version"))


def _first(urls: Sequence[str]) -> redis.Redis:
    """Return a client of the first server that answers. Raises the refusal of the last one if none does."""
    for url in urls[:-1]:
        with suppress(ServerTrouble):
            return server.connect(url)
    return server.connect(urls[-1])


def _hello(client: redis.Redis) -> dict[str, str]:
    """Return the reply to HELLO, which needs no rights; before Redis 6, mode and version as INFO has them."""
    try:
        reply: Any = client.execute_command("HELLO")
    except redis.ResponseError:
        info = server.info(client, "server")
        known = {"mode": info.get("redis_mode"), "version": info.get("redis_version")}
        return {name: error_text(value, 40) for name, value in known.items() if value is not None}
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): error_text(value.decode(), 40) for name, value in pairs if isinstance(value, bytes)}


def _cluster(named: ServerUrl) -> redis.RedisCluster:
    settings = {**server.SETTINGS, "require_full_coverage": False}  # the server says which slots it does not serve
    client: redis.Redis | redis.RedisCluster
    try:
        if named.topology == "cluster":
            client = named.client(**settings)
        else:
            client = redis.RedisCluster.from_url(named.urls[0], **settings)
    except IndexError:  # redis-py takes the first node that has slots
        raise ServerTrouble(f"no server of the cluster has slots: {REMEDIES['CLUSTERDOWN']}") from None
    assert isinstance(client, redis.RedisCluster)
    if client.encoder.decode_responses:
        client.close()
        raise server.MalformedUrl  # tokens are compared as bytes
    return client


def _named_master(named: ServerUrl) -> redis.Redis:
    """Return a client of the master that the Sentinels in the URL name."""
    client = named.client(**server.PROMPT)
    assert isinstance(client, redis.Redis)
    pool = client.connection_pool
    pool.connection_kwargs["decode_responses"] = False
    assert isinstance(pool, redis.sentinel.SentinelConnectionPool)
    manager = pool.sentinel_manager
    try:
        place = server.place(*manager.discover_master(named.service))
    except (*FAILURES, UnicodeError) as error:
        raise _of_sentinels(manager.sentinels, named.service) from error
    return server.greeted(client, place, "master", silence=NoMaster)


def _of_sentinels(sentinels: Sequence[redis.Redis], service: str) -> ServerTrouble:
    """Return the sentence for a master that no Sentinel names: preferably what a Sentinel has answered."""
    sentence, known = "", False
    for sentinel in sentinels:
        place = server.address(sentinel)
        try:
            if sentinel.sentinel_get_master_addr_by_name(service) is None:
                return ServerTrouble(f"the Sentinel {place} knows no master {error_text(service)!r}")
            known = True
        except FAILURES as failure:
            answered = isinstance(failure, (redis.AuthenticationError, redis.ResponseError))
            if answered or not sentence:
                sentence = server.refusal(sentinel, failure, place, "Sentinel")
        finally:
            sentinel.close()
    if known:
        return NoMaster(f"no Sentinel names a master {error_text(service)!r} that is up")
    return ServerTrouble(sentence)


def _only_master(url: str, sentinel: redis.Redis) -> redis.Redis:
    """Return a client of the only master of a Sentinel, with the settings of ``url`` for both."""
    masters: Any = sentinel.sentinel_masters()
    if len(masters) != 1:
        known = ", ".join(f"{error_text(name)} at {state['ip']}:{state['port']}" for name, state in masters.items())
        raise ServerTrouble(f"{server.address(sentinel)} is a Sentinel: choose the URL of a master ({known or 'none'})")
    settings = {**server.PROMPT, **parse_url(url), "decode_responses": False}  # tokens are compared as bytes
    settings["ssl"] = issubclass(settings.pop("connection_class", redis.Connection), redis.SSLConnection)
    asked = settings.pop("host", "localhost"), settings.pop("port", 6379)
    for_sentinel = {name: value for name, value in settings.items() if name != "db"}
    sentinels = Sentinel([asked], sentinel_kwargs=for_sentinel, **settings)
    [name] = masters
    place = server.place(*sentinels.discover_master(name))
    sentinel.close()
    return server.greeted(sentinels.master_for(name), place, "master", silence=NoMaster)
