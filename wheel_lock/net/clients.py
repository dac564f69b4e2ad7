"""The client for a URL, and the connector for a client of one server, of Sentinels, or of a cluster."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode

import redis
import redis.asyncio
from redis.connection import URL_QUERY_ARGUMENT_PARSERS, parse_url
from redis.sentinel import Sentinel

from wheel_lock import valkey_clients
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.net.sentinel import SentinelConnector

if TYPE_CHECKING:
    import valkey
    import valkey.asyncio

    AnyClient = (
        redis.Redis
        | redis.asyncio.Redis
        | redis.RedisCluster
        | redis.asyncio.RedisCluster
        | valkey.Valkey
        | valkey.asyncio.Valkey
        | valkey.ValkeyCluster
        | valkey.asyncio.ValkeyCluster
    )
else:
    AnyClient = redis.Redis | redis.asyncio.Redis | redis.RedisCluster | redis.asyncio.RedisCluster

_SCHEME = re.compile(r"(?:(?:redis|valkey)(?P<tls>s?)(?:\+(?P<topology>sentinel|cluster))?|(?P<unix>unix))://")
_POOL_SETTINGS = ("connection_class", "max_connections")
_PATHS = {
    "sentinel": re.compile(r"/(?P<service>[^/?#@]+)(?:/(?P<db>\d*))?"),
    "cluster": re.compile(r"(?:/(?P<db>0?))?"),
}
# The options of a URL: those that redis-py converts, and those that are texts. Of the former two make no sense as texts.
_TEXTS = {
    *(
        "username",
        "password",
        "client_name",
        "lib_name",
        "lib_version",
        "encoding",
        "encoding_errors",
        "decode_responses",
    ),
    *("ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_password"),
    *("ssl_ciphers", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
}
_OPTIONS = (URL_QUERY_ARGUMENT_PARSERS.keys() - {"retry_on_error", "timeout"}) | _TEXTS
_DATABASE = re.compile(r"(?:/[0-9]*)?")  # redis-py ignores another text, and uses another database
_LIKENESS = 0.8
_SENTINEL_PORT, _PORT = 26379, 6379
_OF_SENTINELS = {"sentinel_username": "username", "sentinel_password": "password"}  # options of a URL
_NOT_OF_SENTINELS = ("db", "username", "password", "max_connections")
# Also RedisClusterException, which is not a RedisError. The texts of all may quote a part of the password.
_MALFORMED = (ValueError, TypeError, redis.RedisError, redis.RedisClusterException)

_FORMS = (
    "url must be a scheme and a server, as redis://[user:password@]host:6379/0, rediss://host:6379/0, unix:///path, "
    "redis+sentinel://host:26379,host:26379/MASTER/0 or redis+cluster://host:7000,host:7000 (valkey for redis is the "
    "same); a database is a whole number; in user and password whatever means something in a URL is written as in "
    "percent-encoding: %2F for a slash"
)


class UnknownOption(ValueError):
    """A URL has an option that does not exist. The message shows its name, if that is not part of a password."""


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """The servers that a URL names, see :func:`parse`.

    Attributes:
        topology: ``sentinel``, ``cluster``, or empty for one server.
        urls: The same as redis-py writes it, one for each server that the URL names: nodes of the cluster, or Sentinels.
        service: The name that the Sentinels have for the master.
    """

    topology: str
    urls: tuple[str, ...] = field(repr=False)
    service: str
    _servers: tuple[tuple[str, int], ...]
    _settings: dict[str, Any] = field(repr=False)  # of the master, or of the nodes
    _of_sentinels: dict[str, Any] = field(repr=False)

    def client(self, **settings: Any) -> redis.Redis | redis.RedisCluster:
        """Return a client for callers that block. Without any I/O, but for a cluster, whose slot map is fetched.

        Args:
            settings: More arguments for the client. Those in the URL take precedence.

        Raises:
            redis.RedisError, redis.RedisClusterException, OSError: The cluster cannot be reached.
        """
        client: redis.Redis | redis.RedisCluster = self._client(redis, settings)
        return client

    def unconnected_client(self, **settings: Any) -> redis.Redis | redis.asyncio.RedisCluster:
        """Return a client to make a context of, without any I/O: that of a cluster is one for asyncio."""
        client: redis.Redis | redis.asyncio.RedisCluster = self._client(redis.asyncio, settings)
        return client

    def _client(self, package: Any, settings: dict[str, Any]) -> Any:
        """Return the client; that of a cluster is from ``package``."""
        if not self.topology:
            return redis.Redis.from_url(self.urls[0], **settings)
        if self.topology == "cluster":
            nodes = [package.cluster.ClusterNode(host, port) for host, port in self._servers]
            return package.RedisCluster(startup_nodes=nodes, **{**settings, **self._settings})
        for_sentinels = {name: value for name, value in settings.items() if name not in _NOT_OF_SENTINELS}
        sentinels = Sentinel(
            self._servers,
            sentinel_kwargs={**for_sentinels, **self._of_sentinels},
            **{**settings, **self._settings},
        )
        return sentinels.master_for(self.service)


def parse(url: str) -> ServerUrl:
    """Return what ``url`` names.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://`` as redis-py reads them, ``redis+sentinel://`` with Sentinels and the
            name of a master, or ``redis+cluster://`` with nodes; with TLS ``rediss+sentinel://`` and ``rediss+cluster://``;
            the same with ``valkey``. User, password and database are those of the master; ``sentinel_username`` and
            ``sentinel_password`` among the options at the end are those of the Sentinels.

    Raises:
        UnknownOption: It is well formed, and has an option that does not exist.
        ValueError: It is malformed. The message shows no part of it, because any part may belong to the password; there is
            neither cause nor context.
    """
    scheme = _SCHEME.match(url)
    try:
        found = None if scheme is None else _parsed(scheme, url[scheme.end() :])
    except UnknownOption:
        raise
    except _MALFORMED:
        found = None
    if found is None:
        raise ValueError(_FORMS)
    return found


def _parts(rest: str) -> tuple[str, str, str]:
    """Return the authority (user, password, host and port), the path and the query of a URL without its scheme."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    path, _, query = rest[len(authority) :].partition("?")
    return authority, path, query


def _parsed(scheme: re.Match[str], rest: str) -> ServerUrl | None:
    """Return the parts of a URL, or None. Raises one of _MALFORMED if redis-py does not accept a part."""
    plain = "unix://" if scheme["unix"] else f"redis{scheme['tls']}://"
    topology: str = scheme["topology"] or ""
    if not topology:
        return ServerUrl("", (plain + rest,), "", (), {}, {}) if _is_sound(plain, rest) else None
    authority, path, query = _parts(rest)
    parts = _PATHS[topology].fullmatch(path)
    if parts is None or "#" in query:
        return None
    login, at, hosts = authority.rpartition("@")
    options = parse_qsl(query, keep_blank_values=True)
    for_sentinels = {_OF_SENTINELS[name]: value for name, value in options if name in _OF_SENTINELS}
    if topology == "cluster" and for_sentinels:
        return None
    common = urlencode([(name, value) for name, value in options if name not in _OF_SENTINELS])
    servers, urls, settings = [], list[str](), dict[str, Any]()
    for host in hosts.split(","):
        single = f"{login}{at}{host}/{parts['db'] or ''}?{common}"
        # The whole authority counts: a mark in the password may have ended it before the "@".
        if not host or not _is_sound(plain, single) or ("@" in query.partition("=")[0] and not at):
            return None
        urls.append(plain + single)
        settings = parse_url(urls[-1])
        standard = _SENTINEL_PORT if topology == "sentinel" else _PORT
        servers.append((settings.pop("host"), settings.pop("port", standard)))
    if settings.pop("connection_class", None) is redis.SSLConnection:
        settings["ssl"] = True
    service = unquote(parts.groupdict().get("service") or "")
    of_sentinels = {name: value for name, value in settings.items() if name not in _NOT_OF_SENTINELS}
    found = ServerUrl(topology, tuple(urls), service, tuple(servers), settings, {**of_sentinels, **for_sentinels})
    # The clients check more than the connections do.
    found.unconnected_client()
    return found


def _is_sound(scheme: str, rest: str) -> bool:
    """Return whether redis-py accepts the URL as it is, and no special character in the password has ended it early.

    Raises:
        UnknownOption: It has an option that does not exist.
    """
    authority, path, query = _parts(rest)
    ended_early = "@" not in authority and ("@" in path or "@" in query.partition("=")[0])
    if ended_early and (authority or scheme != "unix://"):
        return False  # a slash, question mark or number sign in the password has ended the host
    if scheme != "unix://" and _DATABASE.fullmatch(path) is None:
        return False
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            _refuse(name, ended="@" in authority and "@" not in query)
            return False
    try:
        settings: dict[str, Any] = parse_url(scheme + rest)
        connection_class: type[Any] = settings.get("connection_class", redis.Connection)
        connection_class(**{name: value for name, value in settings.items() if name not in _POOL_SETTINGS})
    except _MALFORMED:
        return False
    return True


def _refuse(option: str, *, ended: bool) -> None:
    """Raise UnknownOption, unless the text may belong to a password.

    Args:
        ended: True if the password has ended ahead of the options.
    """
    alike = difflib.get_close_matches(option, _OPTIONS, 1, _LIKENESS)
    if alike or (ended and option.isidentifier()):
        meant = f"; is {alike[0]!r} meant?" if alike else ""
        raise UnknownOption(f"unknown option {option!r} in the URL{meant}")


def connector_for(client: AnyClient, owner: str | None = None) -> RedisPyConnector | ClusterConnector:
    """Return the connector that connects like ``client``, for the readable ``owner`` of a context.

    Raises:
        TypeError: That client is not supported.
    """
    like_redis_pys: Any = client  # also one of valkey-py
    kind = valkey_clients.kind_of(client)
    if kind is not None and kind.is_cluster:
        return ClusterConnector(like_redis_pys, owner)
    asks_sentinels = hasattr(getattr(client, "connection_pool", None), "sentinel_manager")
    connector = SentinelConnector(like_redis_pys) if asks_sentinels else RedisPyConnector(like_redis_pys)
    connector.owner = owner
    return connector
