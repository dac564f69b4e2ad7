"""Connecting: redis-py makes the connection, then its socket is handed over to a pipelined connection.

The client's own connection class does this on a short-lived helper thread, so the whole configuration of the client is
used: TCP or unix socket, TLS, user and password, credential provider, database. Maintenance notifications, retries and
RESP3 are switched off, because a pipelined connection reads the socket itself and expects RESP2 replies only.
"""

from __future__ import annotations

import asyncio
import copy
import os
import re
import socket
import ssl
import traceback
from typing import Any, Protocol, Self

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.credentials import CredentialProvider
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from wheel_lock import valkey_clients
from wheel_lock.net.capabilities import Capabilities, prepare, send_and_skip
from wheel_lock.net.client_references import Tie, tied
from wheel_lock.net.handshake import HandshakeParser, limited
from wheel_lock.net.tls import described, disagreement, may_disagree, obstacle
from wheel_lock.options import process_owner
from wheel_lock.protocol.owners import client_name
from wheel_lock.protocol.resp import LONG_TEXT, error_text
from wheel_lock.runtime.native import without_hub
from wheel_lock.runtime.notifier import NOTIFIER

_MOST_WRAPPED = 8
_FATAL = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.DataError)


def is_fatal(error: BaseException) -> bool:
    """Return whether another attempt to connect is useless as long as the settings stay as they are."""
    # Retried: what is a bare ConnectionError of redis-py, as for LOADING, a refused database number, or a failure of TLS.
    if isinstance(error, (*_FATAL, redis.exceptions.ResponseError, TypeError, ValueError)):
        return True
    return _origin(error, (ssl.SSLCertVerificationError,)) is not None


class NothingListens(RedisConnectionError):
    """Each of the servers that could name the wanted one is refused, as :func:`is_refused` says."""


def is_refused(error: BaseException | None) -> bool:
    """Return whether nothing listens at the address, or there is no such host: the next attempt will hardly help."""
    arose = _origin(error, (ConnectionRefusedError, FileNotFoundError, socket.gaierror))
    # A name service that does not answer for the moment says nothing about the host.
    return arose is not None and not (isinstance(arose, socket.gaierror) and arose.errno == socket.EAI_AGAIN)


def _origin(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> BaseException | None:
    """Return the first of an error, and those that redis-py has wrapped in it, that is of one of these classes."""
    for _ in range(_MOST_WRAPPED):
        if error is None or isinstance(error, kinds):
            return error
        error = error.__cause__ or error.__context__
    return None


def as_failure(error: BaseException) -> Exception:
    """Return the error of an attempt to connect as an Exception that has a text: users' code in it may raise anything."""
    try:
        if isinstance(error, Exception):
            str(error)
            return error
        return ConnectionAbortedError(f"it was ended by {error!r}")
    except BaseException:  # the class is a user's, too
        return ConnectionAbortedError(f"it was ended by a {type(error).__qualname__} without a text")


def sanitize(error: BaseException) -> None:
    """Clear the frames of an error and of its causes, and escape their texts.

    Objects in the frames would be collected on the timer's thread, and the finaliser of a connection may be a user's code.
    The texts may come from the server, and are shown with the error that this becomes the cause of.
    """
    errors = [error]
    for each in errors:
        traceback.clear_frames(each.__traceback__)
        if isinstance(each, redis.exceptions.RedisError):
            each.args = tuple(error_text(part, LONG_TEXT) if isinstance(part, str) else part for part in each.args)
        errors += [cause for cause in (each.__cause__, each.__context__) if cause is not None and cause not in errors]


Server = tuple[str | None, str]
"""Host and port."""

_HOST = re.compile(r"(?=.{1,255}\Z)[!-\-/-~]{1,63}(?:\.[!-\-/-~]{1,63})*\.?")  # a host name or an address, also of IPv6
_UNKNOWN_HOSTS = ("", "?")  # sent by a node of a cluster that does not know its own address, or name
_MAX_PORT = 65535


def as_server(host: object, port: object, asked: Server | None = None) -> Server | None:
    """Return an address received from a server as text or bytes; None if it is not valid.

    ``asked`` is the node that sent it, whose host replaces an unknown one; None if the host must be given.
    """
    try:
        name = host.decode("ascii") if isinstance(host, bytes) else host
        number = port.decode("ascii") if isinstance(port, bytes) else str(port) if type(port) is int else port
    except ValueError:  # no ASCII, or an integer of more than 4,300 digits
        return None
    if asked is not None and name in _UNKNOWN_HOSTS:
        name = asked[0] or ""
    elif not isinstance(name, str) or _HOST.fullmatch(name) is None:
        return None
    if not isinstance(number, str) or re.fullmatch("[0-9]{1,5}", number) is None:
        return None
    return (name, str(int(number))) if 1 <= int(number) <= _MAX_PORT else None


def _disconnect(connections: list[AbstractConnection]) -> None:
    """Disconnect the connection in the list, so that it is collected on this thread: its finaliser disconnects, too."""
    connections.pop().disconnect()


class Connection:
    """A connected, authenticated socket without unanswered commands, and the server's :class:`Capabilities`.

    Args:
        sock: The socket.
        server: The address.
        capabilities: The server's.
        made: The connection of redis-py that has handed its socket over, if any.
        is_described: True if a keeper makes another one, by its description.
    """

    def __init__(
        self,
        sock: socket.socket,
        server: Server,
        capabilities: Capabilities,
        made: AbstractConnection | None = None,
        *,
        is_described: bool = False,
    ) -> None:
        self._made: list[Any] = [made]  # emptied by the thread that closes it
        self._is_described = is_described
        self.sock = sock
        self.server = server
        self.capability: int
        self.keyed: bool
        self.missing_rights: frozenset[str]
        self.capability, self.keyed, self.missing_rights = capabilities

    @property
    def description(self) -> dict[str, object] | None:
        """The description by which a keeper makes another one; None if it is passed as it is, or closed."""
        made = self._made[0] if self._made and self._is_described else None
        return None if made is None else described(made, made.wheel_lock_login)

    def close(self) -> None:
        """Close the socket at once. No effect if it is closed already.

        The rest of redis-py's disconnect may wait for locks, because it may collect metrics and the class may be a user's.
        So it runs on the notifier thread.
        """
        made, self._made = self._made, []
        if made:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the server has closed it already
            self.sock.close()
            if made[0] is not None:
                NOTIFIER.post(_disconnect, made)

    def after_fork_in_child(self) -> None:
        """In a forked child: close the child's copy of the descriptor without sending anything to the server."""
        fd = self.sock.detach()
        if fd >= 0:
            socket.close(fd)


class Connector(Protocol):
    """Makes connections to one node; see :class:`RedisPyConnector`."""

    discovers: bool  # each attempt to connect finds out anew which server that is
    in_cluster: bool  # a node of a cluster redirects calls if they declare their keys

    def connect(self, timeout_s: float) -> Connection: ...

    def listener(self) -> Connector: ...

    def describe(self) -> str: ...

    def label(self) -> str: ...


# Settings that are replaced or dropped.
_REPLACED = (
    "event_dispatcher",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "parser_class",
    "retry",
)
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_ONLY_FOR_ASYNCIO = ("encoder_class", "himport_registry")


class _AwaitedCredentials(CredentialProvider):
    """Runs a provider that can only be awaited in an event loop on the helper thread that connects."""

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return asyncio.run(self._provider.get_credentials_async())


class RedisPyConnector:
    """Connects like ``client``, with the connection class and settings of its pool, but never through its pool.

    So an exhausted pool does not stop renewals.

    Raises:
        TypeError: ``client`` is not a client of one server, synchronous or for asyncio.
    """

    discovers = False
    in_cluster = False
    owner: str | None = None
    """The readable owner in the name of the connections; None for the host and the process."""

    def __init__(self, client: object) -> None:
        pool = getattr(client, "connection_pool", None)
        connection_class = getattr(pool, "connection_class", None)
        kind = valkey_clients.kind_of(client)
        if kind is None or kind.is_cluster or pool is None or connection_class is None:
            got = f"{type(client).__module__}.{type(client).__qualname__}{_hint(client)}"
            raise TypeError(f"expected a redis.Redis or redis.asyncio.Redis client of one server, not a {got}")
        if connection_class.__module__.partition(".")[0] == "fakeredis":
            raise TypeError(
                "this fakeredis client has no socket, and the engine needs one: "
                "wheel_lock.testing.fake_context() starts fakeredis as a server and returns a context for it"
            )
        settings: dict[str, Any] = dict(pool.connection_kwargs)
        if kind.package == "valkey":
            valkey_clients.as_redis_pys(connection_class, settings)
        asks_sentinels = hasattr(connection_class, "connect_to") and not self.discovers
        connection_class = valkey_clients.synchronous(connection_class)
        if asks_sentinels or not issubclass(connection_class, AbstractConnection):
            raise TypeError(f"connections of the class {pool.connection_class.__name__} are not supported")
        if kind.for_asyncio and settings.get("redis_connect_func") is not None:
            raise TypeError("a redis_connect_func of an asyncio client cannot be called from the engine's thread")
        self._connection_class: type[AbstractConnection] = connection_class
        self._limited_class = limited(connection_class)
        self._capabilities = Capabilities()  # of the server that was connected to last
        self._runs_scripts = True
        self._has_connected = False
        self._tls_probed: tuple[Any, Any] | None = None  # the server that was probed for TLS last
        self._tls_mismatch: str | None = None  # the result of that probe
        for name in (*_REPLACED, *(_ONLY_FOR_ASYNCIO if kind.for_asyncio else ())):
            settings.pop(name, None)
        # The client's own objects, shared with all connectors that are copies of this one.
        self._ties: dict[str, Tie] = tied(settings)
        provider = self._ties["credential_provider"]() if "credential_provider" in self._ties else None
        missing = CredentialProvider.get_credentials
        if kind.for_asyncio and provider is not None and getattr(type(provider), "get_credentials", missing) is missing:
            self._ties["credential_provider"] = Tie(provider, _AwaitedCredentials)
        settings.update(
            protocol=2,
            parser_class=HandshakeParser,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            retry_on_timeout=False,
            decode_responses=False,
            health_check_interval=0,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        self._settings = settings

    @property
    def obstacle(self) -> str | None:
        """Why a keeper can neither be passed its connections nor make others of a description; None if it can."""
        own = self._connection_class
        if not issubclass(own, redis.SSLConnection):
            return None
        return obstacle(self._given(), None if own is redis.SSLConnection else own.__name__)

    def let_go(self, *owners: object) -> bool:
        """Drop strong references that lead to ``owners``, such as the client; return whether there were any."""
        for tie in self._ties.values():
            tie.loosen(owners)
        return any(tie.loose for tie in self._ties.values())

    def greet_with(self, greeting: Tie | None) -> None:
        """Use ``greeting``, or nothing, as the ``redis_connect_func`` of each connection."""
        self._ties.pop("redis_connect_func", None)
        if greeting is not None:
            self._ties["redis_connect_func"] = greeting

    def at(self, server: Server) -> Self:
        """Return a connector with the same settings to another server."""
        other = copy.copy(self)
        other._settings = {**self._settings, "host": server[0], "port": int(server[1])}
        return other

    def client(self, timeout_s: float) -> redis.Redis:
        """Return a synchronous client of the same server, each of whose waits takes at most ``timeout_s``."""
        pool = redis.ConnectionPool(self._limited_class, **self._limited(timeout_s))
        return redis.Redis.from_pool(pool)  # closing the client disconnects, on the thread that has connected

    def _given(self) -> dict[str, Any]:
        return {**self._settings, **{name: tie() for name, tie in self._ties.items()}}

    def _limited(self, timeout_s: float) -> dict[str, Any]:
        settings = self._given()
        for what in ("socket_timeout", "socket_connect_timeout"):
            settings[what] = min(settings.get(what) or timeout_s, timeout_s)
        settings["wheel_lock_step_s"] = timeout_s
        return settings

    def _check(self, connection: AbstractConnection) -> None:
        """Raise redis.exceptions.ConnectionError if it is not the wanted server."""

    def listener(self) -> Self:
        """Return a connector to the same server whose connections load no scripts."""
        other = copy.copy(self)
        other._runs_scripts = False
        other._capabilities = Capabilities()
        return other

    def describe(self) -> str:
        """Return the server's address or socket path, without credentials."""
        if "path" in self._settings:
            return error_text(self._settings["path"])
        return error_text(f"{self._settings.get('host', 'localhost')}:{self._settings.get('port', 6379)}")

    def label(self) -> str:
        """Return what metrics call the server: a text that does not change as long as the context lives."""
        return self.describe()

    def connect(self, timeout_s: float) -> Connection:
        """Connect, authenticate, load the scripts.

        Args:
            timeout_s: The limit of each step, unless the client's own is smaller. All steps together may take four times as
                long, not counting silent addresses of the host name and the user's own code.

        Raises:
            redis.exceptions.RedisError, OSError: The attempt failed.
        """
        settings = self._limited(timeout_s)
        connection = self._limited_class(**settings)
        try:
            introduction = _introduction(connection, settings, self.owner or process_owner())
            connection.connect()
            self._check(connection)
            capabilities = self._capabilities  # of this connection: other threads may connect at the same time
            if self._runs_scripts:
                self._capabilities = capabilities = prepare(connection, capabilities, in_cluster=self.in_cluster)
            send_and_skip(connection, introduction)
            sock: Any = connection._sock
            if sock is None:
                raise redis.exceptions.ConnectionError("the connection was closed while it was being made")
            connection._sock = sock = without_hub(sock)
            sock.setblocking(False)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._has_connected, self._tls_probed = True, None
            for name, tie in self._ties.items():
                if tie.loose and name in vars(connection):
                    setattr(connection, name, None)  # needed only to connect, which this connection does once
            server = settings.get("host"), str(settings.get("port"))
            is_described = self._connection_class is redis.SSLConnection
            return Connection(sock, server, capabilities, connection, is_described=is_described)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, redis.exceptions.RedisError):
                self._blame_files(error)
                self._blame_tls(error)
            raise

    def _blame_files(self, error: redis.exceptions.RedisError) -> None:
        """Raise an error that says so if a file of the TLS settings cannot be read: no further attempt will help."""
        for setting in _FILES:
            path = self._settings.get(setting)
            try:
                if isinstance(path, (str, os.PathLike)):
                    open(path, "rb").close()
            except OSError as why:
                reason = f"the file of {setting} cannot be read: {why}"
                raise redis.exceptions.DataError(reason) from error

    def _blame_tls(self, error: redis.exceptions.RedisError) -> None:
        """Raise an error that says so if only one side speaks TLS. A server is probed once in a row of failures."""
        if self._connection_class not in (redis.Connection, redis.SSLConnection):
            return  # a user's class may connect through a tunnel, which must not be bypassed
        encrypted = self._connection_class is redis.SSLConnection
        if not may_disagree(error, encrypted):
            return
        if self._has_connected and not encrypted:
            return  # plain text has worked before, and the probe would delay the next attempt
        server = self._settings.get("host", "localhost"), self._settings.get("port", 6379)
        if self._tls_probed != server:
            self._tls_probed = server
            self._tls_mismatch = disagreement(server, encrypted)
        if self._tls_mismatch is not None:
            raise redis.exceptions.ConnectionError(f"{error}: {self._tls_mismatch}") from error


def _hint(client: object) -> str:
    """Return what to use in the place of an object that is not a client, as the end of a sentence."""
    if isinstance(client, (str, bytes)):
        return ": use LockContext.from_url(url)"
    if isinstance(client, (redis.sentinel.Sentinel, redis.asyncio.sentinel.Sentinel)):
        return ": use the client that its .master_for(name) returns"
    return ""


def _introduction(connection: Any, settings: dict[str, Any], owner: str) -> list[tuple[str, ...]]:
    """Return the commands that name the connection and the library in CLIENT LIST.

    redis-py is kept from sending its own, which would take two more round trips.
    """
    if hasattr(connection, "driver_info"):
        driver, connection.driver_info = connection.driver_info, None
        name, version = (None, None) if driver is None else (driver.formatted_name, driver.lib_version)
    else:  # redis-py 7.0
        name, version = getattr(connection, "lib_name", None), getattr(connection, "lib_version", None)
        connection.lib_name = connection.lib_version = None
    commands = [] if settings.get("client_name") else [("CLIENT", "SETNAME", client_name(owner))]
    library = ("LIB-NAME", name), ("LIB-VER", version)
    return [*commands, *(("CLIENT", "SETINFO", what, str(value)) for what, value in library if value)]
