"""What redis-py does for the library, in the simulated world: a thread of a process connects, asks and waits.

Two methods of ``RedisPyConnector`` are replaced: one connects, the other returns a client for a few questions. So the code
that asks Sentinels and nodes of a cluster, and that judges their answers, is the real one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import hiredis
import redis
from redis.sentinel import Sentinel

from tests.simulation.network import Link, connection_over, reach
from wheel_lock.net.handshake import HandshakeParser

if TYPE_CHECKING:
    from tests.simulation.world import World
    from wheel_lock.net.connector import Connection, RedisPyConnector


class Dialogue:
    """Questions and answers on a connection, as redis-py's connections have them."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self.sock = link.connect()
        self.sock.take_all()
        self._process = link.process
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader(replyError=HandshakeParser.parse_error)

    def send_command(self, *words: str) -> None:
        texts = [word.encode() for word in words]
        self.sock.send(b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts))

    def read_response(self) -> Any:
        """Wait for a reply. Raises an error reply, and OSError if the connection breaks or is silent."""
        until = self._process.clock.now() + self._timeout_s
        while (reply := self._reader.gets()) is False:
            try:
                self._reader.feed(self.sock.recv(1 << 16))
            except BlockingIOError:
                left_s = until - self._process.clock.now()
                if left_s <= 0:
                    raise TimeoutError("no answer") from None
                self._process.sleep_until_ready(self.sock, left_s)
        if isinstance(reply, redis.exceptions.RedisError):
            raise reply
        return reply


class Client:
    """A client for a few questions, as far as the library uses one."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._dialogue: Dialogue | None = None
        self._asked: list[str] = []
        self._readers = dict(_readers())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._dialogue is not None:
            self._dialogue.sock.close()

    def set_response_callback(self, what: str, callback: Any) -> None:
        self._readers[what] = callback

    def _connected(self) -> Dialogue:
        if self._dialogue is None:
            reach(self._link, self._timeout_s)
            self._dialogue = Dialogue(self._link, self._timeout_s)
        return self._dialogue

    def execute_command(self, what: str, *words: str) -> Any:
        self._connected().send_command(*what.split(), *words)
        return self._read(what, self._connected().read_response())

    def _read(self, what: str, reply: Any) -> Any:
        reader = self._readers.get(what)
        return reply if reader is None else reader(reply)

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        return _Pipeline(self)

    def sentinel_masters(self) -> Any:
        return self.execute_command("SENTINEL MASTERS")


class _Pipeline:
    """Questions that are sent together."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._questions: list[tuple[str, tuple[str, ...]]] = []

    def execute_command(self, what: str, *words: str) -> None:
        self._questions.append((what, words))

    def execute(self, *, raise_on_error: bool) -> list[Any]:
        dialogue = self._client._connected()
        for what, words in self._questions:
            dialogue.send_command(*what.split(), *words)
        answers: list[Any] = []
        for what, _ in self._questions:
            try:
                answers.append(self._client._read(what, dialogue.read_response()))
            except redis.exceptions.ResponseError as error:
                answers.append(error)
        return answers


def replacements(world: World) -> dict[str, Any]:
    """Return what stands for methods of ``RedisPyConnector``."""

    def link_of(connector: RedisPyConnector) -> Link:
        return world.process.link(world.host_named(connector._settings["host"]))

    def connect(connector: RedisPyConnector, timeout_s: float) -> Connection:
        link = link_of(connector)
        reach(link, timeout_s)
        link.host.greet(connector._runs_scripts)
        dialogue = Dialogue(link, timeout_s)
        try:
            connector._check(dialogue)  # type: ignore[arg-type]
        except BaseException:
            dialogue.sock.close()
            raise
        return connection_over(dialogue.sock, link.host)

    def client(connector: RedisPyConnector, timeout_s: float) -> Client:
        return Client(link_of(connector), timeout_s)

    return {"connect": connect, "client": client}


@functools.cache
def _readers() -> dict[str, Any]:
    """Return what redis-py makes of replies, by command."""
    return dict(redis.Redis(protocol=2).response_callbacks)


@functools.cache
def sentinel_client(names: tuple[str, ...], service: str) -> redis.Redis:
    """Return a user's client of a master that Sentinels name. It is never used to connect."""
    client: redis.Redis = Sentinel([(name, 26379) for name in names]).master_for(service)
    return client


@functools.cache
def cluster_client(names: tuple[str, ...]) -> redis.asyncio.RedisCluster:
    """Return a user's client of a cluster. It is never used to connect."""
    nodes = [redis.asyncio.cluster.ClusterNode(name, 6379) for name in names]
    return redis.asyncio.RedisCluster(startup_nodes=nodes)
