"""What a hostile server may say, and where it is heard: real channels and engines on a timer turned by hand.

What is said is what would be right, and what random changes make of it, from a seed. What must hold whatever is said: no
exception leaves the connection that it came in on, so that the timer's thread logs nothing and affects no other context;
the other context goes on holding its lock; memory stays where it was.
"""

from __future__ import annotations

import queue
import random
import re
import resource
import socket
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import redis
from redis.sentinel import Sentinel

from tests.engine.rig import NIL, ScriptedConnector, add_stranger, agreement, is_untouched
from tests.engine.waiting_rig import Wait, WaitingRig
from tests.support.fake_server import array, bulk
from wheel_lock.engine.engine import Engine
from wheel_lock.lease import Lease
from wheel_lock.lock_types import FENCED
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.net.connector import Server
from wheel_lock.net.sentinel import SentinelConnector
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.keys import wake_channel
from wheel_lock.runtime.ends import End, end_all
from wheel_lock.runtime.native import allocate_lock
from wheel_lock.runtime.notifier import NOTIFIER

_SIZES = (0, 1, 2, 3, 16, 9999, 16385, 65536, 2**31 - 1, 2**32, 2**63 - 1, 2**63, 10**40)
_TEXTS = (
    *(
        b"",
        b"?",
        b"OK",
        b"127.0.0.1",
        b"::1",
        b"a" * 300,
        b"c" * 5000,
        b"\xff\xfe",
        b"host\r\nname",
        b"h\x00st",
        b"hash",
    ),
    *(
        b"\xe2\x80\xae",
        b"1",
        b"abc",
        b"ERR",
        b"WRONGTYPE Operation",
        b"\xff\xfe oops",
    ),  # the first runs from right to left
)
_ERRORS = (
    *(
        b"ERR",
        b"NOSCRIPT No matching script",
        b"WRONGTYPE Operation",
        b"READONLY You can't",
        b"LOADING",
        b"BUSY",
        b"OOM",
    ),
    *(b"NOPERM this user has no permissions to run the 'set' command", b"MISCONF", b"", b" ", b"\xff\xfe oops"),
    *(
        b"CLUSTERDOWN",
        b"TRYAGAIN",
        b"CROSSSLOT",
        b"NOAUTH",
        b"ERR invalid request, key",
        b"ERR unknown command 'EVALSHA'",
    ),
    *(b"ERR Error running script", b"x" * 5000),
)
_DATA = (
    *(
        b"+OK\r\n",
        b"+PONG\r\n",
        b"+QUEUED\r\n",
        b":1\r\n",
        b":0\r\n",
        b":-1\r\n",
        b":+1\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
    ),
    *(b"%1\r\n*0\r\n:1\r\n", b"#t\r\n", b",1.5\r\n", b"_\r\n", b"=5\r\ntxt:a\r\n", b"*1\r\n" * 200, b"*9\r\n" * 20),
    *(
        bulk(b"text"),
        bulk(b"x" * 2000),
        array(b":1\r\n", bulk(b"hash")),
        array(b":30000\r\n", bulk(b"string")),
        array(b":1\r\n"),
    ),
    *(array(b":1\r\n", bulk(error)) for error in _ERRORS),  # a list of exceptions
    *(b"-%b\r\n" % error for error in _ERRORS),
)
_NODE = array(bulk(b"127.0.0.1"), b":6379\r\n", bulk(b"id"))
_SLOTS = (array(b":0\r\n", b":99\r\n", _NODE, _NODE), array(b":100\r\n", b":16383\r\n", _NODE))
_FIELDS = (b"name", b"ip", b"port", b"flags", b"num-other-sentinels", b"config-epoch", b"runid", b"quorum")
_VALUES = (b"master", b"127.0.0.1", b"6379", b"master", b"2", b"1", b"abc", b"2")
_STATE = array(*(bulk(text) for pair in zip(_FIELDS, _VALUES, strict=True) for text in pair))
_ADDRESS = array(bulk(b"127.0.0.1"), bulk(b"6379"))
_KINDS = (*(b"message", b"subscribe", b"unsubscribe", b"pong", b"smessage", b"ssubscribe", b"sunsubscribe"),)
_PUSHES = tuple(
    array(bulk(kind), bulk(channel), what)
    for kind in _KINDS
    for channel in (b"wheel_lock:wake:{a}", b"+switch-master", b"other")
    for what in (bulk(b"0"), bulk(b"mymaster 1 2 3 4"), b":1\r\n")
)
_REDIRECTIONS = tuple(
    b"-%b %b %b\r\n" % (verb, slot, where)
    for verb in (b"MOVED", b"ASK")
    for slot in (b"5", b"16383", b"x", b"\xc2\xb2")
    for where in (b"127.0.0.1:6379", b":6379", b"?:6379", b"::1:6379", b"host", b"a" * 300 + b":1", b"127.0.0.1:abc")
)


class Replies:
    """A source of replies.

    Args:
        seed: The same one gives the same replies.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.data = partial(self._changed, _DATA)
        self.redirection = partial(self._changed, _REDIRECTIONS)
        self.forms: dict[str, Callable[[], bytes]] = {
            "data": self.data,
            "cluster": partial(self._changed, (array(*_SLOTS), array(_SLOTS[0]), array(), _DATA[0])),
            "sentinel": partial(self._changed, (_STATE + _ADDRESS, _STATE + b"*-1\r\n", _ADDRESS)),
            "pubsub": partial(self._changed, _PUSHES),
        }

    def _changed(self, among: tuple[bytes, ...]) -> bytes:
        some = self._random
        reply = b"".join(some.choices(among, k=some.choice((1, 1, 1, 1, 2, 20))))
        for _ in range(some.choice((0, 1, 1, 2, 5))):
            reply = some.choice((self._number, self._text, self._text, self._broken))(reply)
        return reply

    def _number(self, reply: bytes) -> bytes:
        """Have another number, be it a value or a length."""
        numbers = [*re.finditer(rb"-?\d+", reply)]
        if not numbers:
            return reply
        some = self._random
        number = some.choice((some.randrange(-5, 20_000), some.choice(_SIZES), -some.choice(_SIZES)))
        return _replaced(reply, some.choice(numbers), b"%d" % number)

    def _text(self, reply: bytes) -> bytes:
        """Have another text of the right length, or something else in its place."""
        texts = [*re.finditer(rb"\$\d+\r\n[^\r]*\r\n", reply)]
        some = self._random
        other = bulk(some.choice(_TEXTS)) if some.random() < 0.9 else some.choice(_DATA)
        return _replaced(reply, some.choice(texts), other) if texts else reply

    def _broken(self, reply: bytes) -> bytes:
        """Have bytes that are missing, wrong or too many."""
        some = self._random
        start = some.randrange(len(reply) + 1)
        put = some.choice((b"", bytes([some.randrange(256)]), b"\r\n", b"*", b"*4294967295\r\n", b"%1\r\n", b"$"))
        end = some.choice((start, start, start + 1, len(reply)))
        return reply[:start] + put + reply[end:]


def _replaced(reply: bytes, match: re.Match[bytes], by: bytes) -> bytes:
    return reply[: match.start()] + by + reply[match.end() :]


_MOST_GROWTH = 256 << 20
_FAR = 1e6


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class Listener:
    """Counts the wake-ups that it receives."""

    above = None

    def __init__(self) -> None:
        self.notified = 0

    def on_subscribed(self, holds: bool) -> None:
        self.notified += 1

    def on_message(self, message: bytes) -> None:
        assert type(message) is bytes
        self.notified += 1

    def crashed(self, error: Exception) -> None:
        raise AssertionError("a listener was charged") from error


class FuzzedEngine(WaitingRig):
    """An engine that is lied to, and another context's, which holds a lock, on the same timer.

    Attributes:
        rounds: How many replies are heard in one.
    """

    rounds = 200

    def __init__(self) -> None:
        super().__init__()
        self._stranger = add_stranger(self, _FAR)

    def check(self) -> None:
        """Fail where the other context has lost its lock."""
        assert is_untouched(self._stranger)

    def agree(self) -> None:
        """Have every server grant whatever has arrived; keys that are checked do not exist."""
        for server in self.connector.servers:
            server.say(*[NIL if command.what == "GET" else agreement(command) for command in server.take()])

    def begin(self) -> None:
        """Have an honest server again, to which the engine is connected."""
        for server in self.servers:
            server.close()
        self.connector.servers.clear()
        self.granted("probe")

    def granted(self, name: str, timeout: float = 30.0) -> Lease:
        """Acquire a lock of an honest server."""
        attempt = self.acquire(name, timeout)
        self.agree()
        self.timer.turn()
        while not attempt.future.done:
            self.go_on(0.1, self.agree)
        return attempt.lease


class FuzzedRequests(FuzzedEngine):
    """The replies to what callers and renewals ask."""

    rounds = 25  # what is granted is kept, and the more of it the longer everything takes

    def round(self, replies: Replies, some: random.Random) -> None:
        self.begin()
        asks: list[Callable[[], object]] = [
            lambda: self.acquire("a", 30.0),
            lambda: self.acquire("b", 30.0, kind=FENCED),
            lambda: self.release(self.granted("c")),
            lambda: self.extend(self.granted("d"), 60.0),
            lambda: self.wait("w", 30.0),
            lambda: ([self.granted(name, 3.0) for name in "efg"], self.go_on(1.0)),
        ]
        asked = some.choice(asks)()
        if isinstance(asked, Wait):
            self.refuse()
        self.server.take()
        self.say(replies.forms["data"]())
        self.go_on(0.02)
        if isinstance(asked, Wait):
            self.give_up(asked)
        self.check()


class FuzzedPubSub(FuzzedEngine):
    """The messages that subscribers receive."""

    _listens = False

    def round(self, replies: Replies, some: random.Random) -> None:
        if not self._listens:
            self._listens = True
            self.engine.router.wakeups.listen(wake_channel(b"a"), Listener())
            self.engine.router.wakeups.listen(b"+switch-master", Listener())
        self.turn()
        while not self.engine.router.wakeups._node.connected:
            self.go_on(0.1)
        self.connector.listeners.servers[-1].say(replies.forms["pubsub"]())
        self.turn()
        if some.random() < 0.3:
            for server in self.connector.listeners.servers:
                server.close()
            self.connector.listeners.servers.clear()
        self.go_on(0.1)
        self.check()


class _Wired(redis.Connection):
    """A connection to a server that has said already what it will say."""

    def __init__(self, said: list[bytes], **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._said = said

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.settimeout(0.0)
        for text in self._said:
            try:
                theirs.send(text)
            except BlockingIOError:
                break  # more than it could be asked for
        theirs.shutdown(socket.SHUT_WR)
        ours.settimeout(5.0)
        self._theirs = theirs  # open, so that what we say goes somewhere
        return ours

    def disconnect(self, *arguments: Any, **more: Any) -> None:
        super().disconnect(*arguments, **more)  # type: ignore[no-untyped-call]
        if (theirs := self.__dict__.pop("_theirs", None)) is not None:
            theirs.close()


def wired(said: list[bytes]) -> redis.Redis:
    """Return a client whose every connection leads to a server that has said already what it will say."""
    pool = redis.ConnectionPool(connection_class=_Wired, said=said, host="node", port=6379, driver_info=None)
    return redis.Redis.from_pool(pool)


class _Place(ScriptedConnector):
    """A node: its channels are scripted, and so is what it says of the cluster."""

    def __init__(self, fuzzed: FuzzedCluster, ask: Callable[[float], redis.Redis]) -> None:
        super().__init__(fuzzed.clock)
        self.client = ask
        self.servers = fuzzed.connector.servers
        self.sockets = fuzzed.connector.sockets


class _Cluster(ClusterConnector):
    def __init__(self, fuzzed: FuzzedCluster) -> None:
        self._arena = fuzzed
        client: Any = redis.RedisCluster.__new__(redis.RedisCluster)
        node = SimpleNamespace(host="node", port=6379, redis_connection=wired(fuzzed.said))
        client.nodes_manager = SimpleNamespace(startup_nodes={"node": node}, default_node=node)
        client.get_default_node = lambda: node
        super().__init__(client)

    def to(self, server: Server) -> Any:
        return _Place(self._arena, super().to(server).client)


class FuzzedCluster(FuzzedEngine):
    """What nodes say of the cluster, and where they send us."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes] = []
        self.connector._listeners = ScriptedConnector(self.clock)
        self.engine = Engine(_Cluster(self), ContextOptions(), self.timer, self.launch)

    def round(self, replies: Replies, some: random.Random) -> None:
        self.said[:] = [replies.forms["cluster"](), replies.data()]
        self.acquire("a", 30.0)
        for server in self.connector.servers:
            if server.take():
                server.say(replies.redirection())
        self.go_on(0.2, self.agree)
        self.check()
        for server in self.connector.servers:
            server.close()
        self.connector.servers.clear()

    def close(self) -> None:
        end_all(self.engine.router.shards, End.CLOSED, ConnectionAbortedError("the test is over"))
        super().close()


class FuzzedSentinels(FuzzedEngine):
    """What Sentinels say about who is the master."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[bytes] = []
        sentinel = Sentinel([])
        sentinel.sentinels = [wired(self.said)]
        self.asking = SentinelConnector(sentinel.master_for("master"))
        self.named = 0

    def round(self, replies: Replies, some: random.Random) -> None:
        self.said[:] = [replies.forms["sentinel"](), replies.data()]
        answers: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self.asking._ask_one(0, 5.0, answers, allocate_lock())
        answers.get_nowait()
        belief = self.asking.opinions.conclude(lambda server: False)
        if belief is not None:
            for host, port in belief.servers:
                assert isinstance(host, str)
                assert isinstance(port, str)
            self.named += 1
        self.check()


FUZZED: dict[str, Callable[[], Any]] = {
    "data": FuzzedRequests,
    "cluster": FuzzedCluster,
    "sentinel": FuzzedSentinels,
    "pubsub": FuzzedPubSub,
}


def fuzz(form: str, count: int, seed: int) -> int:
    """Have so many replies of a form heard; return by how many bytes the process has grown at most meanwhile."""
    replies, some = Replies(seed), random.Random(seed)
    before = _peak_bytes()
    done = 0
    while done < count:
        with FUZZED[form]() as fuzzed:
            for _ in range(min(fuzzed.rounds, count - done)):
                fuzzed.round(replies, some)
                done += 1
                assert not fuzzed.failures, f"reply {done} of seed {seed}"
        assert NOTIFIER.drain(30.0)
    grown = _peak_bytes() - before
    assert grown < _MOST_GROWTH
    return grown
