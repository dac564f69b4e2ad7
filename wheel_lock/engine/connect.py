"""The only place that connects: redis-py makes the connection, then hands its socket over.

Whatever a client was configured with - TCP, unix socket, TLS, user and password, a credential provider, a database -
holds here too, because the client's own connection class does the work, on a short-lived helper thread. Maintenance
notifications, retries and RESP3 are switched off: the engine reads the socket itself and expects RESP2 replies only.
"""

from __future__ import annotations

import asyncio
import copy
import re
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.connection import AbstractConnection
from redis.credentials import CredentialProvider
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from wheel_lock.engine.allowance import Allowance, LimitedSocket, limited
from wheel_lock.engine.capabilities import Capabilities, prepare, send_and_skip
from wheel_lock.engine.encryption import disagreement, may_disagree
from wheel_lock.engine.handshakes import HandshakeParser
from wheel_lock.engine.ties import ClientGone, Tie, tied
from wheel_lock.native import without_hub
from wheel_lock.notifier import NOTIFIER
from wheel_lock.protocol.resp import LONG_TEXT, error_text

_FATAL = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthorizationError,
    redis.exceptions.DataError,
)


def is_fatal(error: BaseException) -> bool:
    """Whether trying to connect again cannot help until somebody changes a setting."""
    if isinstance(error, redis.exceptions.BusyLoadingError):
        return False
    # redis-py wraps a refused database number as a bare ConnectionError, and a TLS failure likewise: those are retried.
    return isinstance(error, (*_FATAL, redis.exceptions.ResponseError, TypeError, ValueError))


def as_failure(error: BaseException) -> Exception:
    """Return what an attempt to connect has failed with: users' code runs in it, too, which may be cancelled."""
    return error if isinstance(error, Exception) else ConnectionAbortedError(f"it was ended by {error!r}")


def make_fit(error: BaseException) -> None:
    """Clear the frames of an error and of its causes, and escape their texts.

    Objects in the frames would be collected on the timer's thread, and a connection's finaliser may be the user's code.
    The text may come from the server, and is shown with the error whose cause this is.
    """
    errors = [error]
    for each in errors:
        traceback.clear_frames(each.__traceback__)
        if isinstance(each, redis.exceptions.RedisError):
            each.args = tuple(error_text(part, LONG_TEXT) if isinstance(part, str) else part for part in each.args)
        errors += [one for one in (each.__cause__, each.__context__) if one is not None and one not in errors]


Server = tuple[str | None, str]
"""Host and port."""

_HOST = re.compile(r"(?=.{1,255}\Z)[!-\-/-~]{1,63}(?:\.[!-\-/-~]{1,63})*\.?")  # a name or an address, also of IPv6
_UNKNOWN_HOSTS = ("", "?")  # said by a node of a cluster that does not know its own address, or name
_MOST_PORT = 65535


def as_server(host: object, port: object, asked: Server | None = None) -> Server | None:
    """Return the address that a server has named, as text or bytes; None if it is impossible.

    Args:
        host, port: The address.
        asked: The node that has named it, which may not know its own host; None where no node does that.
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
    return (name, str(int(number))) if 1 <= int(number) <= _MOST_PORT else None


class Connection(Protocol):
    """A connected, authenticated socket that nothing is in flight on."""

    sock: socket.socket
    level: int  # what the server knows: PLAIN, FLAGGED or SHARDED
    keyed: bool  # whether calls without keys are refused
    missing_rights: frozenset[str]  # commands of scripts that the user may not call
    server: Server  # host and port, which differ where connections lead to different servers

    def close(self) -> None: ...

    def forget(self) -> None: ...


class Connector(Protocol):
    """Makes connections to one node.

    Attributes:
        discovers: Whether it finds out each time which server that is.
    """

    discovers: bool
    in_cluster: bool

    def connect(self, timeout_s: float) -> Connection: ...

    def listener(self) -> Connector:
        """What connects to the same node for a connection that will only listen."""
        ...

    def describe(self) -> str: ...


def _disconnect(connections: list[AbstractConnection]) -> None:
    """Disconnect the one in the list, and have it go on this thread: it has a finaliser, which disconnects, too."""
    connections.pop().disconnect()


class RedisPyConnection:
    """A redis-py connection whose socket now belongs to a channel."""

    def __init__(
        self,
        connection: AbstractConnection,
        sock: socket.socket,
        server: Server,
        capabilities: Capabilities,
    ) -> None:
        self._ours = [connection]  # emptied by the thread that closes it
        self.sock = sock
        self.server = server
        self.level, self.keyed, self.missing_rights = capabilities

    def close(self) -> None:
        """Close its socket, at once. Harmless when closed already.

        What else belongs to a disconnect of redis-py's may wait for locks - it is counted where metrics are collected, and
        the class may be a user's - so a notifier's thread sees to that.
        """
        ours, self._ours = self._ours, []
        if ours:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is gone already
            self.sock.close()
            NOTIFIER.post(_disconnect, ours)

    def forget(self) -> None:
        """In a forked child: close the child's copy of the descriptor without a word to the server."""
        fd = self.sock.detach()
        if fd >= 0:
            socket.close(fd)


# How an asyncio client's connections are made by the engine, which reads their sockets itself.
_SYNCHRONOUS: dict[type[Any], Any] = {
    redis.asyncio.Connection: redis.Connection,
    redis.asyncio.SSLConnection: redis.SSLConnection,
    redis.asyncio.UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
}
# Objects among the settings of which the engine uses its own, or none.
_REPLACED = (
    "event_dispatcher",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "parser_class",
    "retry",
)
_ONLY_FOR_ASYNCIO = ("encoder_class", "parser_class", "himport_registry")


class _AwaitedCredentials(CredentialProvider):
    """A provider that can only be awaited: on the helper thread that connects, in an event loop of its own."""

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        return asyncio.run(self._provider.get_credentials_async())


def _synchronous(connection_class: type[Any]) -> type[AbstractConnection]:
    """Return what connects like an asyncio connection class.

    Raises:
        TypeError: There is no such thing.
    """
    synchronous: type[AbstractConnection] | None = _SYNCHRONOUS.get(connection_class)
    if synchronous is None:
        raise TypeError(f"connections of the class {connection_class.__name__} are not supported")
    return synchronous


def _for_threads(settings: dict[str, Any]) -> None:
    """Make the settings of an asyncio client fit.

    Raises:
        TypeError: They cannot be made to.
    """
    if settings.get("redis_connect_func") is not None:
        raise TypeError("a redis_connect_func of an asyncio client cannot be called from the engine's thread")
    for name in _ONLY_FOR_ASYNCIO:
        settings.pop(name, None)


def _only_awaited(provider: object) -> bool:
    missing = CredentialProvider.get_credentials
    return provider is not None and getattr(type(provider), "get_credentials", missing) is missing


class RedisPyConnector:
    """Connects as ``client`` would, with its pool's connection class and settings, but never through its pool.

    The connections of the engine are its own, so a pool that is exhausted does not keep a lock from being renewed.

    Raises:
        TypeError: Something else than a client of one server, synchronous or for asyncio.
    """

    discovers = False
    in_cluster = False

    def __init__(self, client: redis.Redis | redis.asyncio.Redis) -> None:
        pool = getattr(client, "connection_pool", None)
        connection_class = getattr(pool, "connection_class", None)
        if not isinstance(client, (redis.Redis, redis.asyncio.Redis)) or pool is None or connection_class is None:
            got = f"{type(client).__module__}.{type(client).__qualname__}"
            raise TypeError(f"expected a redis.Redis or redis.asyncio.Redis client of one server, not a {got}")
        if connection_class.__module__.partition(".")[0] == "fakeredis":
            raise TypeError(
                "this fakeredis client has no socket, and the engine needs one: "
                "wheel_lock.testing.fake_context() starts fakeredis as a server and returns a context for it"
            )
        settings: dict[str, Any] = dict(pool.connection_kwargs)
        connection_class = self._made_of(connection_class, settings)
        if isinstance(client, redis.asyncio.Redis):
            _for_threads(settings)
        if not issubclass(connection_class, AbstractConnection):
            raise TypeError(f"connections of the class {connection_class.__name__} are not supported")
        self._connection_class: type[AbstractConnection] = connection_class
        self._limited_class = limited(connection_class)
        self._capabilities = Capabilities()  # of the server that was connected to last
        self._runs_scripts = True
        self._met = False  # whether it has ever connected
        self._asked: tuple[Any, Any] | None = None  # what server was asked last whether it speaks TLS
        self._tls_trouble: str | None = None  # and what came out
        for name in _REPLACED:
            settings.pop(name, None)
        # The client's own objects, shared by all connectors that are derived from this one.
        self._ties: dict[str, Tie] = tied(settings)
        if isinstance(client, redis.asyncio.Redis) and _only_awaited(provider := self._setting("credential_provider")):
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

    def _setting(self, name: str) -> Any:
        """Return one of the client's own objects, or None."""
        return self._ties[name]() if name in self._ties else None

    def let_go(self, *owners: object) -> bool:
        """Drop strong references that lead to ``owners``: the client, its pool. Return whether there were any."""
        for tie in self._ties.values():
            tie.loosen(owners)
        return any(tie.loose for tie in self._ties.values())

    def greet_with(self, greeting: Tie | None) -> None:
        """Use ``greeting`` as the ``redis_connect_func`` of each connection instead of the client's; None for none."""
        self._ties.pop("redis_connect_func", None)
        if greeting is not None:
            self._ties["redis_connect_func"] = greeting

    def at(self, server: Server) -> RedisPyConnector:
        """Return what connects in the same way to a node of the same cluster."""
        other = copy.copy(self)
        other._settings = {**self._settings, "host": server[0], "port": int(server[1])}
        other.in_cluster = True
        return other

    def _made_of(self, connection_class: type[Any], settings: dict[str, Any]) -> type[Any]:
        """Return the synchronous class that connects as that of a pool, and take out of its settings what does not fit."""
        if issubclass(connection_class, redis.asyncio.connection.AbstractConnection):
            return _synchronous(connection_class)
        if hasattr(connection_class, "connect_to"):
            raise TypeError(f"connections of the class {connection_class.__name__} are not supported")
        return connection_class

    def client(self, timeout_s: float) -> redis.Redis:
        """Return a synchronous client of the same server, whose waits take at most ``timeout_s`` each."""
        pool = redis.ConnectionPool(self._limited_class, **self._limited(timeout_s))
        return redis.Redis.from_pool(pool)  # closing the client disconnects it, on the thread that has connected

    def _limited(self, timeout_s: float) -> dict[str, Any]:
        try:
            settings = {**self._settings, **{name: tie() for name, tie in self._ties.items()}}
        except ClientGone as error:
            raise redis.exceptions.ConnectionError(str(error)) from None
        for what in ("socket_timeout", "socket_connect_timeout"):
            settings[what] = min(settings.get(what) or timeout_s, timeout_s)
        settings["wheel_lock_allowance"] = Allowance(timeout_s)
        return settings

    def _check(self, connection: AbstractConnection) -> None:
        """Raise where the server is not the one that was meant."""

    def listener(self) -> Self:
        """Return a connector to the same server whose connections load no scripts."""
        other = copy.copy(self)
        other._runs_scripts = False
        other._capabilities = Capabilities()
        return other

    def describe(self) -> str:
        """Return where it connects to, without credentials."""
        if "path" in self._settings:
            return error_text(self._settings["path"])
        return error_text(f"{self._settings.get('host', 'localhost')}:{self._settings.get('port', 6379)}")

    def connect(self, timeout_s: float) -> RedisPyConnection:
        """Connect, authenticate, load the scripts.

        Args:
            timeout_s: The limit of each step, unless the client's own is smaller. All steps together may take four times as
                long, not counting silent addresses of the name and the user's own code.

        Raises:
            redis.exceptions.RedisError, OSError: It did not work.
        """
        settings = self._limited(timeout_s)
        connection = self._limited_class(**settings)
        try:
            introduction = _introduction(connection, settings)
            connection.connect()
            self._check(connection)
            if self._runs_scripts:
                self._capabilities = prepare(connection, self._capabilities, in_cluster=self.in_cluster)
            send_and_skip(connection, introduction)
            sock: Any = connection._sock
            if sock is None:
                raise redis.exceptions.ConnectionError("the connection was closed while it was being made")
            whole = sock.sock if isinstance(sock, LimitedSocket) else sock
            connection._sock = sock = without_hub(whole)
            sock.setblocking(False)
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._met, self._asked = True, None
            for name, tie in self._ties.items():
                if tie.loose and name in vars(connection):
                    setattr(connection, name, None)  # needed only to connect, which this connection does once
            server = settings.get("host"), str(settings.get("port"))
            return RedisPyConnection(connection, sock, server, self._capabilities)
        except BaseException as error:
            connection.disconnect()
            if isinstance(error, redis.exceptions.RedisError):
                self._blame_tls(error)
            raise

    def _blame_tls(self, error: redis.exceptions.RedisError) -> None:
        """Raise an error that says so where client and server do not agree about TLS, which is asked once in a row."""
        if self._connection_class not in (redis.Connection, redis.SSLConnection):
            return  # the user's class may connect through a tunnel, which must not be bypassed
        encrypted = self._connection_class is redis.SSLConnection
        if not may_disagree(error, encrypted):
            return
        if self._met and not encrypted:
            return  # it has spoken plain text before, and a reset must not delay the next attempt
        server = self._settings.get("host", "localhost"), self._settings.get("port", 6379)
        if self._asked != server:
            self._asked = server
            self._tls_trouble = disagreement(server, encrypted)
        if self._tls_trouble is not None:
            raise redis.exceptions.ConnectionError(f"{error}: {self._tls_trouble}") from error


class InTurn:
    """Connects to one server after the other, to the next when one cannot be connected to.

    Args:
        choices: Returns which there are.
    """

    discovers = True
    in_cluster = False

    def __init__(self, choices: Callable[[], Sequence[RedisPyConnector]]) -> None:
        self._choices = choices
        self._turn = 0

    def _current(self) -> RedisPyConnector:
        choices = self._choices()
        return choices[self._turn % len(choices)]

    def listener(self) -> InTurn:
        """Return the same: it is for those who listen."""
        return self

    def describe(self) -> str:
        """Return where it has connected to last, or will."""
        return self._current().describe()

    def connect(self, timeout_s: float) -> RedisPyConnection:
        """Connect to the server whose turn it is."""
        try:
            return self._current().connect(timeout_s)
        except BaseException:
            self._turn += 1
            raise


def _introduction(connection: AbstractConnection, settings: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the commands that name the connection in CLIENT LIST.

    redis-py would send its own name and version in two more round trips.
    """
    said: list[tuple[str, ...]] = [] if settings.get("client_name") else [("CLIENT", "SETNAME", "wheel_lock")]
    driver: Any = getattr(connection, "driver_info", None)
    if driver is not None:
        connection.driver_info = None
        named = ("LIB-NAME", driver.formatted_name), ("LIB-VER", driver.lib_version)
        said += [("CLIENT", "SETINFO", what, str(value)) for what, value in named if value]
    return said
