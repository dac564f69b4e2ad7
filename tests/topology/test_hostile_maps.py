"""What a node of a cluster says of others is read before it is believed; nonsense costs the node that says it alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode

from tests.support.backend import Backend, acquirable
from tests.support.fake_server import FakeServer, acquires, array, bulk
from tests.support.logged import logged
from tests.support.waiting import eventually
from wheel_lock import LockContext, WheelLockError
from wheel_lock.engine.topology import cluster as cluster_module
from wheel_lock.engine.topology.cluster import ClusterRouter
from wheel_lock.net import handshake
from wheel_lock.net.cluster import MOST_NODES, ClusterConnector
from wheel_lock.protocol.keys import SLOTS, hash_slot

NAME = "order:42"
SLOT = hash_slot(NAME.encode())
LONG_S = 30.0


def node(host: bytes, port: bytes) -> bytes:
    return array(host if host.startswith(b"$-1") else bulk(host), port, bulk(b"id"))


slots = array  # the first, the last, and the nodes that have them


def number(value: int) -> bytes:
    return b":%d\r\n" % value


class Cluster(FakeServer):
    """A node that calls itself the only one, unless a test has it say something else.

    Attributes:
        map: What it says to CLUSTER SLOTS.
        to_calls: What it says to acquires.
    """

    def __init__(self) -> None:
        super().__init__(self._lie)
        self.map = array(slots(number(0), number(SLOTS - 1), self.itself))
        self.to_calls: bytes | None = None

    @property
    def itself(self) -> bytes:
        return node(b"127.0.0.1", number(self.port))

    def _lie(self, words: list[bytes]) -> bytes | None:
        if words[:2] == [b"CLUSTER", b"SLOTS"]:
            return self.map
        return self.to_calls if acquires(words) else None

    def client(self, password: str | None = None) -> redis.asyncio.RedisCluster:
        """A client that asks nothing by itself."""
        given = [ClusterNode("127.0.0.1", self.port)]
        return redis.asyncio.RedisCluster(startup_nodes=given, protocol=2, password=password)


@pytest.fixture
def fake() -> Iterator[Cluster]:
    with Cluster() as fake:
        yield fake


NODE = node(b"127.0.0.1", number(1))
NONSENSE = {
    "a last slot far too large": slots(number(0), b":99999999999\r\n", NODE),
    "a negative slot": slots(number(-1), number(5), NODE),
    "slots the wrong way round": slots(number(5), number(4), NODE),
    "a slot that is a text": slots(bulk(b"0"), bulk(b"16383"), NODE),
    "no slot": slots(b"$-1\r\n", b"$-1\r\n", NODE),
    "no node": slots(number(0), number(5)),
    "a node that is a text": slots(number(0), number(5), bulk(b"127.0.0.1")),
    "a node without a port": slots(number(0), number(5), array(bulk(b"127.0.0.1"))),
    "a port that is a text": slots(number(0), number(5), node(b"127.0.0.1", bulk(b"abc"))),
    "port 0": slots(number(0), number(5), node(b"127.0.0.1", number(0))),
    "a port that is too large": slots(number(0), number(5), node(b"127.0.0.1", number(65536))),
    "a negative port": slots(number(0), number(5), node(b"127.0.0.1", number(-1))),
    "a port of its own for an unknown host": slots(number(0), number(5), node(b"?", number(99999))),
    "a host with control characters": slots(number(0), number(5), node(b"a\x1b[2Jb", number(1))),
    "a host with a space": slots(number(0), number(5), node(b"a b", number(1))),
    "a host that is not a text": slots(number(0), number(5), node(b"\xff\xfe", number(1))),
    "a host that is far too long": slots(number(0), number(5), node(b"a" * 300, number(1))),
    "a host that no resolver takes": slots(number(0), number(5), node(b"a" * 64 + b"..b", number(1))),
    "a number for an entry": number(7),
    "an empty entry": array(),
}


@pytest.mark.parametrize("entry", NONSENSE.values(), ids=NONSENSE)
def test_a_range_that_makes_no_sense_is_passed_over_with_one_line_in_the_log(fake: Cluster, entry: bytes) -> None:
    good = slots(number(6), number(SLOTS - 1), fake.itself)
    fake.map = array(entry, good)
    connector = ClusterConnector(fake.client())
    with logged() as log:
        for _ in range(3):
            assert connector.ask(LONG_S) == [(6, SLOTS - 1, ("127.0.0.1", str(fake.port)))]
        assert len(log.said("malformed entries")) == 1
        fake.map = array(good)
        assert connector.ask(LONG_S)
        fake.map = array(entry, good)
        assert connector.ask(LONG_S)
        assert len(log.said("malformed entries")) == 2


@pytest.mark.parametrize("entry", [NONSENSE["no node"], NONSENSE["port 0"], NONSENSE["an empty entry"]])
def test_a_map_without_any_node_that_could_be_used_is_none(fake: Cluster, entry: bytes) -> None:
    fake.map = array(entry)
    with Cluster() as other:
        asked = ClusterConnector(
            redis.asyncio.RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", each.port) for each in (fake, other)])
        )
        for _ in range(2):  # whoever is asked first
            assert asked.ask(LONG_S) == [(0, SLOTS - 1, ("127.0.0.1", str(other.port)))]


@pytest.mark.parametrize(
    "reply", [b"+OK\r\n", b":7\r\n", b"$-1\r\n", b"*-1\r\n", b"-ERR \x1b[2J\r\n", b"-MOVED x\r\n"], ids=repr
)
def test_a_reply_that_is_no_map_is_none(fake: Cluster, reply: bytes) -> None:
    fake.map = reply
    assert ClusterConnector(fake.client()).ask(LONG_S) == []


def test_a_replica_that_makes_no_sense_costs_the_range_nothing(fake: Cluster) -> None:
    replicas = [node(b"127.0.0.1", number(0)), node(b"127.0.0.1", number(7)), number(5)]
    fake.map = array(slots(number(0), number(SLOTS - 1), fake.itself, *replicas))
    connector = ClusterConnector(fake.client())
    assert len(connector.ask(LONG_S)) == 1
    assert connector._replicas == [("127.0.0.1", "7")]


def test_of_a_map_with_very_many_nodes_a_thousand_are_kept(fake: Cluster) -> None:
    masters = [node(b"10.0.%d.%d" % divmod(n, 256), number(1)) for n in range(SLOTS)]
    replicas = [node(b"10.1.%d.%d" % divmod(n, 256), number(1)) for n in range(5000)]
    ranges = [slots(number(n), number(n), master) for n, master in enumerate(masters)]
    few, many = replicas[: MOST_NODES - 1], replicas[MOST_NODES - 1 :]
    first, second = slots(number(0), number(0), masters[0], *few), slots(number(1), number(1), masters[1], *many)
    fake.map = array(first, second, *ranges[2:])
    connector = ClusterConnector(fake.client())
    found = connector.ask(LONG_S)
    assert len({each.server for each in found}) == MOST_NODES
    assert len(connector._replicas) == MOST_NODES


@pytest.mark.parametrize("most_bytes", [32 << 20, 1 << 20])
def test_a_map_with_very_many_ranges_is_bounded_too(
    fake: Cluster, most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_MOST_BYTES", most_bytes)
    entry = slots(number(0), number(0), fake.itself)
    fake.map = array(*[entry] * 50_000)
    # What is longer than anything that a cluster can say is not even read.
    assert len(ClusterConnector(fake.client()).ask(LONG_S)) == (len(fake.map) < most_bytes)


def test_where_nodes_hang_the_others_are_asked_the_next_time(fake: Cluster) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(8)]
        connector = ClusterConnector(fake.client())
        connector.servers = [("127.0.0.1", str(port)) for port in silent]  # as a map said
        began = time.monotonic()
        assert connector.ask(1.0) == []
        assert time.monotonic() - began < 4.0
        eventually(lambda: connector.ask(1.0))


# -- redirections ----------------------------------------------------------------------------------------------------


REDIRECTIONS = {
    "a port of 5,000 digits": b"-MOVED %d 127.0.0.1:%b\r\n" % (SLOT, b"9" * 5000),
    "a port that is too large": b"-MOVED %d 127.0.0.1:65536\r\n" % SLOT,
    "port 0": b"-MOVED %d 127.0.0.1:0\r\n" % SLOT,
    "a port of other digits": f"-MOVED {SLOT} 127.0.0.1:\u0661\u0662\r\n".encode(),
    "a slot of 5,000 digits": b"-MOVED %b 127.0.0.1:1\r\n" % (b"9" * 5000),
    "a slot that does not exist": b"-MOVED 16384 127.0.0.1:1\r\n",
    "a negative slot": b"-MOVED -1 127.0.0.1:1\r\n",
    "the slot of another key": b"-MOVED %d 127.0.0.1:1\r\n" % ((SLOT + 1) % SLOTS),
    "no host and no port": b"-MOVED %d\r\n" % SLOT,
    "nothing": b"-MOVED\r\n",
    "a host with control characters": b"-MOVED %d a\x1b[2J:1\r\n" % SLOT,
    "a host that is far too long": b"-MOVED %d %b:1\r\n" % (SLOT, b"a" * 5000),
    "an ASK to nowhere": b"-ASK %d 127.0.0.1:99999\r\n" % SLOT,
    "nowhere inside a script": b"-ERR Error running script (call to f_0): @user_script:1: -MOVED x\r\n",
}


@pytest.mark.parametrize("redirection", REDIRECTIONS.values(), ids=REDIRECTIONS)
def test_a_redirection_that_makes_no_sense_costs_the_call(fake: Cluster, real: Backend, redirection: bytes) -> None:
    fake.to_calls = redirection
    other = real.context()  # of the process, on the same timer
    with other.lock("good", timeout=LONG_S, renew_every=0.1) as lock, logged() as log:
        with LockContext(fake.client(), response_timeout=0.5) as context:
            with pytest.raises(WheelLockError) as caught:
                context.lock(NAME).acquire(blocking=False)
            assert str(caught.value).isprintable()
            fake.to_calls = None
            eventually(lambda: acquirable(context, NAME))  # it is connected to anew
        renewals = lock.renewals
        eventually(lambda: lock.renewals > renewals)
        assert not log.said("survived")
        assert not log.said("died")


@pytest.mark.parametrize("address", [b":%d", b"?:%d", b"[127.0.0.1]:%d", b"localhost:%d"])
def test_a_redirection_may_leave_out_the_host(fake: Cluster, address: bytes) -> None:
    with Cluster() as other:
        fake.to_calls = b"-MOVED %d " % SLOT + address % other.port + b"\r\n"
        with LockContext(fake.client()) as context:
            assert context.lock(NAME).acquire(blocking=False)
            assert [words[0] for words in other.asked if words[0] == b"SET"] == [b"SET"]


def test_a_redirection_of_the_slot_of_another_key_is_not_followed(fake: Cluster) -> None:
    with Cluster() as other, LockContext(fake.client(), response_timeout=0.5) as context:
        fake.to_calls = b"-MOVED %d 127.0.0.1:%d\r\n" % ((SLOT + 1) % SLOTS, other.port)
        with pytest.raises(WheelLockError):
            context.lock(NAME).acquire(blocking=False)
        assert not any(map(acquires, other.asked))


def test_nodes_that_redirections_name_are_bounded(fake: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MOST_NODES", 4)
    ports, called = count(1), [0]

    def lie(words: list[bytes]) -> bytes | None:
        if acquires(words):
            called[0] += 1
            return b"-MOVED %d 127.0.0.1:%d\r\n" % (SLOT, next(ports))
        return fake._lie(words)

    fake.lie = lie
    with LockContext(fake.client(), response_timeout=0.5) as context:
        for number in range(30):
            lock = context.lock(f"{{{NAME}}}:{number}")
            with pytest.raises(WheelLockError):
                lock.acquire(blocking=False)
            if called[0] > 20:
                break
        cluster = context._engine.router
        assert isinstance(cluster, ClusterRouter)
        assert called[0] > 9
        assert len(cluster._by_server) <= 9


def test_maps_that_name_others_each_time_do_not_pile_up(fake: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "MOST_NODES", 4)
    hosts, maps = count(1), [0]

    def lie(words: list[bytes]) -> bytes | None:
        if words[:2] != [b"CLUSTER", b"SLOTS"]:
            return fake._lie(words)
        maps[0] += 1
        others = [slots(number(n), number(n), node(b"127.0.0.%d" % next(hosts), number(9))) for n in range(5)]
        return array(slots(number(5), number(SLOTS - 1), fake.itself), *others)

    fake.lie = lie
    with LockContext(fake.client()) as context, context.lock("kept", timeout=LONG_S) as lock:
        cluster = context._engine.router
        assert isinstance(cluster, ClusterRouter)

        def asked_often() -> bool:
            context.timer.post(cluster.refresh)  # passed over while the nodes are being asked
            return maps[0] > 8

        eventually(asked_often, LONG_S, interval_s=0.05)
        eventually(lambda: len(cluster._by_server) <= 12, LONG_S)
        assert lock.is_held
