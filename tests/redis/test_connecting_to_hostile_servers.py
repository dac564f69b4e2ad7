"""What a server says while it is connected to: nonsense, far too late, or for a terminal. That costs the attempt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.sentinel import Sentinel, SentinelManagedConnection

from tests.support.fake_server import FakeServer, acquires, array, bulk
from tests.support.logged import logged
from tests.support.redis_server import RedisServer, redis_server_version
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError, LockTimeout, LockUnavailable
from wheel_lock.net import handshake
from wheel_lock.net.capabilities import FLAGGED, PLAIN
from wheel_lock.net.clients import connector_for
from wheel_lock.net.connector import RedisPyConnector, as_server
from wheel_lock.net.sentinel import SentinelConnector
from wheel_lock.protocol.resp import error_text

LONG_S = 30.0
LIMIT_S = 1.0
SECRET = "s3cr"
ESCAPES = b"\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\xe2\x80\xaeall is well"


def client_of(fake: FakeServer, **settings: Any) -> redis.Redis:
    return redis.Redis(host="127.0.0.1", port=fake.port, **settings)


def clean(text: str) -> bool:
    return text.isascii() and text.replace("\n", " ").isprintable()


def outcome(context: LockContext) -> str:
    """What an acquire gives: a grant, or the text of its error."""
    try:
        with context.lock("order:42"):
            return "granted"
    except (LockUnavailable, LockServerError, LockTimeout) as error:
        return str(error)


# -- how long it may take --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("piece", "password"), [(None, None), (1, "secret")], ids=["replies", "bytes"])
def test_a_server_that_is_slow_in_each_step_has_no_more_time_in_all(piece: int | None, password: str | None) -> None:
    with FakeServer() as fake:
        fake.pause_s, fake.piece = LIMIT_S * 0.2, piece
        began = time.monotonic()
        with pytest.raises((redis.TimeoutError, redis.ConnectionError)):
            RedisPyConnector(client_of(fake, password=password)).connect(LIMIT_S / 2)
        assert time.monotonic() - began < LIMIT_S * 5  # and not that of thirty replies


def test_a_link_that_is_slow_is_connected_over() -> None:
    limit_s, pause_s = 2.0, 0.5
    paused: list[list[bytes]] = []

    def slow(words: list[bytes]) -> None:
        if words[0] not in (b"SCRIPT", b"EVALSHA"):  # these come together, and so do their replies
            paused.append(words)
            time.sleep(pause_s)

    with FakeServer(slow) as fake:
        RedisPyConnector(client_of(fake, password="secret", db=1)).connect(limit_s).close()
    assert len(paused) * pause_s > limit_s


def test_what_the_users_own_code_takes_is_not_the_servers(redis_server: RedisServer) -> None:
    class Slow(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            time.sleep(LIMIT_S * 1.5)
            return ("",)

    with FakeServer() as fake:
        RedisPyConnector(client_of(fake, credential_provider=Slow())).connect(LIMIT_S).close()


def test_addresses_that_are_silent_do_not_count() -> None:
    connection_class: Any = RedisPyConnector(redis.Redis())._limited_class
    connection = connection_class(wheel_lock_step_s=3.0, socket_connect_timeout=2.0)
    before = connection.wheel_lock_left_s
    connection._wheel_lock_began = time.monotonic() - 4.5  # two of them, and half a second for the third
    connection._wheel_lock_spend()
    assert 0.5 <= before - connection.wheel_lock_left_s < 1.5


def test_a_server_that_never_stops_talking_is_not_listened_to() -> None:
    with (
        FakeServer(lambda words: b"$99999999\r\n" + b"x" * 99_999_999 + b"\r\n") as fake,
        pytest.raises(redis.ConnectionError, match="more than"),
    ):
        RedisPyConnector(client_of(fake)).connect(LONG_S)


def test_a_connection_takes_few_round_trips(monkeypatch: pytest.MonkeyPatch, redis_server: RedisServer) -> None:
    """Each of them comes out of the one limit. TCP, TLS, a client's name and ROLE come on top: nine in all.

    Before Redis 7 it is one more: the refusal of flags in scripts is followed by a PING.
    """
    steps: list[str] = []

    wait = handshake._Limited._wheel_lock_wait

    def counted(connection: Any, call: Any, *arguments: Any, **options: Any) -> Any:
        if call.__name__ == "send_packed_command" or steps[-1] != "recv":
            steps.append(call.__name__)
        return wait(connection, call, *arguments, **options)

    monkeypatch.setattr(handshake._Limited, "_wheel_lock_wait", counted)
    with redis_server.client() as admin:
        admin.acl_setuser("some", enabled=True, passwords=["+secret"], keys=["*"], channels=["*"], commands=["+@all"])
        client = redis.Redis(port=redis_server.port, username="some", password="secret", db=3)
        RedisPyConnector(client).connect(LONG_S).close()
        admin.acl_deluser("some")
    assert 0 < steps.count("recv") <= (5 if redis_server_version() >= (7,) else 6)
    client = redis_server.client()
    with LockContext(client) as context, context.lock("order:42"):
        ours = [each for each in client.client_list() if each["name"].startswith("wheel_lock:")]
        assert ours
        assert all("redis-py" in each.get("lib-name", "redis-py") for each in ours)


# -- what it says ----------------------------------------------------------------------------------------------------

NONSENSE = [
    *(b"+OK\r\n", b":7\r\n", b":-99999999999999999999999999\r\n", b"$-1\r\n", b"*-1\r\n", b"$2\r\nno\r\n"),
    *(b"*1\r\n*1\r\n:1\r\n", b"*2\r\n:1\r\n$-1\r\n", b"!garbage\r\n", b"-\r\n", b"-MOVED\r\n", b"-MOVED 1 x\r\n"),
    *(b"-ASK 1 a:" + b"9" * 5000 + b"\r\n", b"-ERR key\r\n", b"*1\r\n" * 20 + b":1\r\n"),
]


@pytest.mark.parametrize("verb", [b"EVAL", b"EVALSHA", b"SCRIPT", b"CLIENT", b"AUTH", b"SELECT"])
def test_nonsense_costs_the_attempt_at_most(verb: bytes, redis_server: RedisServer) -> None:
    def one(reply: bytes) -> str:
        """Return the first caller's error; the next caller is granted."""
        said = [reply]
        with (
            FakeServer(lambda words: said[-1] if words[0] == verb and said and not acquires(words) else None) as fake,
            LockContext(client_of(fake, db=3, password="secret"), response_timeout=0.3) as context,
        ):
            text = outcome(context)
            said.clear()  # it has come to its senses
            eventually(lambda: outcome(context) == "granted")
            return text

    with (
        LockContext(redis_server.client()) as good,
        good.lock("good", timeout=LONG_S, renew_every=0.1) as lock,
        logged() as log,
        ThreadPoolExecutor(len(NONSENSE)) as threads,  # for they wait more than they compute
    ):
        assert all(map(clean, threads.map(one, NONSENSE)))
        assert lock.is_held
        assert not log.said("survived")
        assert not log.said("died")


@pytest.mark.parametrize("reply", NONSENSE, ids=lambda reply: repr(reply[:20]))
def test_nonsense_about_its_role_is_none(reply: bytes) -> None:
    with FakeServer(lambda words: reply if words[0] == b"ROLE" else None) as server, FakeServer() as sentinel:
        sentinel.lie = lambda words: watched(words, server.port)
        with pytest.raises((redis.RedisError, OSError)):
            connector_of(sentinel).connect(LONG_S)
        assert not any(words[0] == b"SCRIPT" for words in server.asked) or reply == b"-ERR key\r\n"


# -- Sentinels -------------------------------------------------------------------------------------------------------


def watched(words: list[bytes], port: int, **changes: bytes | None) -> bytes | None:
    """What a Sentinel says whose master is on a port, with some of it changed; a field that is None is left out."""
    if words[0] != b"SENTINEL" and words[0] != b"SENTINEL MASTER":
        return None
    if b"GET-MASTER-ADDR-BY-NAME" in words[1].upper():
        return array(bulk(changes.get("ip") or b"127.0.0.1"), bulk(changes.get("port") or b"%d" % port))
    state: dict[str, bytes | None] = {
        "name": b"m",
        "ip": b"127.0.0.1",
        "port": b"%d" % port,
        "flags": b"master",
        "config-epoch": b"1",
        "num-other-sentinels": b"0",
        **{name.replace("_", "-"): value for name, value in changes.items()},
    }
    return array(*[bulk(each) for name, value in state.items() if value is not None for each in (name.encode(), value)])


def connector_of(fake: FakeServer, **settings: Any) -> SentinelConnector:
    connector = connector_for(Sentinel([("127.0.0.1", fake.port)]).master_for("m", **settings))
    assert isinstance(connector, SentinelConnector)
    return connector


STATES: dict[str, dict[str, bytes | None]] = {
    "a port that is a text": {"port": b"abc"},
    "a port that is too large": {"port": b"65536"},
    "a port of 5,000 digits": {"port": b"9" * 5000},
    "port 0": {"port": b"0"},
    "an address that is none": {"ip": b"a\x1b[2Jb"},
    "an address that is far too long": {"ip": b"a" * 5000},
    "an epoch that is too large": {"config_epoch": b"9" * 30},
    "an epoch of 5,000 digits": {"config_epoch": b"9" * 5000},
    "a negative epoch": {"config_epoch": b"-1"},
    "no number of other Sentinels": {"num_other_sentinels": None},
    "no flags": {"flags": None},
}


@pytest.mark.parametrize("changes", STATES.values(), ids=STATES)
def test_a_sentinel_that_talks_nonsense_is_not_heard(changes: dict[str, bytes | None]) -> None:
    with FakeServer() as server, FakeServer() as fake, FakeServer(lambda words: watched(words, server.port)) as honest:
        fake.lie = lambda words: watched(words, server.port, **changes)
        with pytest.raises(redis.ConnectionError) as caught:
            connector_of(fake).ask(LONG_S)
        assert clean(str(caught.value))
        both = Sentinel([("127.0.0.1", fake.port), ("127.0.0.1", honest.port)]).master_for("m")
        with LockContext(both) as context:
            assert context.lock("order:42").acquire(blocking=False)


@pytest.mark.parametrize("reply", NONSENSE, ids=lambda reply: repr(reply[:20]))
def test_a_reply_that_is_no_state_of_a_master_is_none(reply: bytes) -> None:
    with FakeServer(lambda words: reply if words[0].startswith(b"SENTINEL") else None) as fake:
        with pytest.raises(redis.ConnectionError) as caught:
            connector_of(fake).ask(LONG_S)
        assert clean(str(caught.value))


def test_of_masters_that_are_new_each_time_few_are_remembered() -> None:
    with FakeServer() as fake:
        connector = connector_of(fake)
        epochs = count(1)
        fake.lie = lambda words: watched(words, 1, config_epoch=b"%d" % next(epochs), ip=b"m%d.invalid" % next(epochs))
        for _ in range(40):
            with pytest.raises((redis.RedisError, OSError)):
                connector.connect(LONG_S)
        assert int(connector.opinions.belief.epoch) >= 40  # type: ignore[union-attr]
        assert len(connector._targets) <= 16


# -- connection classes of the user's own ----------------------------------------------------------------------------


def test_a_connection_class_of_the_users_own_connects_to_what_the_sentinels_name(redis_server: RedisServer) -> None:
    connected: list[tuple[str, int]] = []

    class Tunnel(SentinelManagedConnection):
        def _connect(self) -> Any:
            connected.append((self.host, self.port))
            return super()._connect()  # type: ignore[no-untyped-call]

    with FakeServer(lambda words: watched(words, redis_server.port)) as sentinel:
        manager = Sentinel([("127.0.0.1", sentinel.port)])
        client = manager.master_for("m", connection_class=Tunnel)
        with LockContext(client) as context, context.lock("order:42") as lock:
            assert lock.is_held
            assert set(connected) == {("127.0.0.1", redis_server.port)}
            assert len(connected) == context.stats().connects


def test_a_tunnel_is_not_bypassed_to_find_whether_a_server_speaks_tls() -> None:
    class Tunnel(redis.Connection):
        def _connect(self) -> Any:
            raise ConnectionResetError("through the tunnel only")

    with FakeServer() as fake:
        pool = redis.ConnectionPool(connection_class=Tunnel, host="127.0.0.1", port=fake.port)
        with pytest.raises(redis.ConnectionError):
            RedisPyConnector(redis.Redis(connection_pool=pool)).connect(LONG_S)
        assert fake.connections == 0


def test_a_connection_has_the_capabilities_of_its_own_server() -> None:
    # The two channels of a node connect at the same time, and an address may lead to servers of different versions.
    others: list[Any] = []
    old = False

    def answer(words: list[bytes]) -> bytes | None:
        nonlocal old
        if words[0] == b"EVAL" and b"return 1" in words[1] and old:
            return b"-ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'\r\n"
        if words[:2] == [b"CLIENT", b"SETNAME"] and not old:
            old = True
            others.append(connector.connect(LONG_S))
        return None

    with FakeServer(answer) as fake:
        connector = RedisPyConnector(client_of(fake))
        connection = connector.connect(LONG_S)
        try:
            assert [each.capability for each in (connection, *others)] == [FLAGGED, PLAIN]
        finally:
            for each in (connection, *others):
                each.close()


# -- texts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def caught_texts(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    caplog.set_level("DEBUG")
    texts: list[str] = []
    yield texts
    assert texts
    for text in [*texts, *(record.getMessage() for record in caplog.records)]:
        assert clean(text), repr(text)


def note(error: BaseException | None, texts: list[str]) -> None:
    while error is not None:
        texts.append(str(error))
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("verb", [b"EVAL", b"SCRIPT", b"SET", b"AUTH", b"SELECT", b"", b"SENTINEL"], ids=repr)
def test_what_a_server_says_moves_no_cursor(verb: bytes, caught_texts: list[str]) -> None:
    lie = b"-ERR " + ESCAPES + b"\r\n"
    with FakeServer(lambda words: lie if verb in (words[0].partition(b" ")[0], b"") else None) as fake:
        asked = Sentinel([("127.0.0.1", fake.port)])
        client = asked.master_for("m") if verb == b"SENTINEL" else client_of(fake, password="secret", db=1)
        with LockContext(client, response_timeout=0.5) as context:
            try:
                context.lock("order:42").acquire(blocking=False)
                assert verb != b"SENTINEL"
            except (LockUnavailable, LockServerError) as error:
                note(error, caught_texts)
            caught_texts.append(repr(context))


@pytest.mark.parametrize("password", [SECRET, SECRET.encode(), 271828])
def test_a_refusal_that_repeats_the_password_does_not_show_it(password: Any) -> None:
    with (
        FakeServer(lambda words: b"-ERR what is " + b" ".join(words) + b"?\r\n") as fake,
        LockContext(client_of(fake, password=password)) as context,
    ):
        assert "what is AUTH ***?" in outcome(context)


def test_control_characters_and_what_turns_the_text_around_are_escaped() -> None:
    for number in [*range(0xA0), 0x202E, 0x2066, 0x2028, 0x200B, 0xD800, 0x1F600]:
        text = error_text(f"a{chr(number)}b")
        assert clean(text)
        assert "\n" not in text
    assert error_text("x" * 10_000) == "x" * 200
    assert len(error_text("\x1b" * 10_000)) == 200


# -- URLs ------------------------------------------------------------------------------------------------------------

_URLS = """
    redis://user:SECRET/et@host:6379/0 redis://user:SECRET[et@host:6379/0 user:SECRETet@host:6379/0
    redis://user:SECRET?et@host:6379/0 redis://user:SECRET#et@host:6379/0 http://u:SECRETet@host
    redis://user:SECRETet@host:port redis://user:SECRETet@host:99999 unix://u:SECRET/et@/run/x
    redis://user:SECRET\u2100et@host redis://user:SECRETet@[::1 redis://x:1/SECRET@host/0
    redis://:SECRETet@host?db=zero redis://host?SECRETet@=1 redis://u:1?SECRET=b@host
    redis+sentinel://u:SECRET/et@host/m redis+sentinel://u:1/SECRET@host:5 redis+sentinel://:SECRETet@h
    valkeys+cluster://u:SECRET?et@host redis+cluster://:SECRETet@host/1 redis+cluster://u:1#SECRET@h
    redis+sentinel://:SECRETet@h,/m redis+sentinel://h/m?sentinel_password=SECRET&nonsense=et@
    redis+cluster://:SECRETet@h?db=2 redis+cluster://h?sentinel_password=SECRET unix+cluster://SECRET@h
    redis://u:1#SECRET@host:6379 redis://u:a://SECRET@host:x u:SECRET://et@host
"""
URLS = [url.replace("SECRET", SECRET) for url in _URLS.split()]


@pytest.mark.parametrize("url", URLS)
def test_no_part_of_a_password_is_in_what_is_said_of_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="url must be") as caught:
        LockContext.from_url(url)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert SECRET not in repr(caught.value)
    assert "et@" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://user:p@ss@localhost:7000/3", "localhost:7000"),
        ("redis://localhost", "localhost:6379"),
        ("redis://localhost:7000?password=p@ss&db=2", "localhost:7000"),
        ("redis://:%2F%40@localhost:7000/0", "localhost:7000"),
        ("rediss://localhost:7000/0?ssl_cert_reqs=none", "localhost:7000"),
        ("unix:///run/a@b.sock?db=1", "/run/a@b.sock"),
        ("unix://user:pass@/run/redis.sock", "/run/redis.sock"),
        ("redis://[::1]:7000/0", "::1:7000"),
        ("redis://localhost:7000/0?socket_timeout=2&max_connections=3", "localhost:7000"),
        ("valkey://localhost:7000/0", "localhost:7000"),
        ("redis+sentinel://user:p,ss@a:1,b/the%20one/2", "the master of 'the one'"),
        ("rediss+cluster://user:p@ss@host:7000,other", "the cluster at host:7000"),
    ],
)
def test_a_url_that_makes_sense_is_taken(url: str, place: str) -> None:
    with LockContext.from_url(url) as context:
        assert place in repr(context)


# -- addresses -------------------------------------------------------------------------------------------------------


def test_addresses_that_can_be_and_those_that_cannot() -> None:
    host: Any
    port: Any
    for host, port in [
        (b"127.0.0.1", 6379),
        ("::1", b"1"),
        ("a.example.com.", "65535"),
        (b"a_b-c", 7),
        ("fe80::1%eth0", 1),
    ]:
        server = as_server(host, port)
        assert server is not None
        assert server[1].isdecimal()
    for port in (0, -1, 65536, 10**400, 10**5000, "", "1 ", "\u0661", "9" * 5000, None, 1.0, True, b"x"):
        assert as_server("localhost", port) is None
    for host in ("", None, 5, "a b", "a\nb", "\u202e", b"\xff", "x" * 64, "x." * 200, ".", "a..b"):
        assert as_server(host, 6379) is None


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *(b"ERR no such key", b"ERR value of key is not an integer", b"ERR unknown keyspace", b"ERR the key is bad"),
        *(b"ERR wrong number of arguments for 'set' command", b"KEYERR declare your keys"),
        b"ERR this request is an invalid request of yours",
    ],
)
def test_an_error_that_only_sounds_like_it_does_not_switch_to_one_lock_a_call(text: bytes) -> None:
    with (
        FakeServer(lambda words: b"-" + text + b"\r\n" if acquires(words) else None) as fake,
        LockContext(client_of(fake), response_timeout=LONG_S) as context,
    ):
        with pytest.raises(LockServerError):
            context.acquire_many(["a", "b"])
        assert not context._engine.router.renewer.node.single_key_mode
