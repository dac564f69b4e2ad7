"""The clients that URLs of all forms stand for; nothing is connected to."""

from __future__ import annotations

import inspect
import ssl
from contextlib import suppress
from typing import Any

import pytest
import redis
import redis.asyncio

from wheel_lock.net.clients import parse


def client_of(url: str, **settings: Any) -> Any:
    return parse(url).unconnected_client(**settings)


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_server(scheme: str) -> None:
    client = client_of(f"{scheme}://user:p%40ss@host:7000/3?socket_timeout=2.5", socket_timeout=9.0, client_name="x")
    settings = client.connection_pool.connection_kwargs
    named = {"host": "host", "port": 7000, "db": 3, "username": "user", "password": "p@ss", "client_name": "x"}
    assert named.items() <= settings.items()
    assert settings["socket_timeout"] == 2.5
    assert client.connection_pool.connection_class is redis.Connection


def test_a_unix_socket() -> None:
    client = client_of("unix://:secret@/run/redis.sock?db=2")
    assert {
        "path": "/run/redis.sock",
        "db": 2,
        "password": "secret",
    }.items() <= client.connection_pool.connection_kwargs.items()


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_the_master_that_sentinels_name(scheme: str) -> None:
    client = client_of(
        f"{scheme}+sentinel://user:a,b@s1:7001,s2,[::1]:7003/the%2Fmaster/4"
        "?socket_timeout=2&max_connections=5&sentinel_username=watch&sentinel_password=w%26",
        client_name="x",
    )
    pool = client.connection_pool
    assert pool.service_name == "the/master"
    of_master = {"username": "user", "password": "a,b", "db": 4, "socket_timeout": 2.0, "client_name": "x"}
    assert of_master.items() <= pool.connection_kwargs.items()
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
    assert [(one["host"], one["port"]) for one in asked] == [("s1", 7001), ("s2", 26379), ("::1", 7003)]
    for one in asked:
        assert {"username": "watch", "password": "w&", "socket_timeout": 2.0, "db": 0}.items() <= one.items()


def test_the_password_of_a_master_is_not_sent_to_sentinels() -> None:
    client = client_of("redis+sentinel://user:secret@s1/m")
    (sentinel,) = client.connection_pool.sentinel_manager.sentinels
    assert "secret" not in repr(sentinel.connection_pool.connection_kwargs)


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_a_cluster(scheme: str) -> None:
    client = client_of(f"{scheme}+cluster://user:secret@c1:7001,c2?socket_timeout=2", client_name="x")
    assert isinstance(client, redis.asyncio.RedisCluster)
    assert [(node.host, node.port) for node in client.startup_nodes] == [("c1", 7001), ("c2", 6379)]
    settings = {"username": "user", "password": "secret", "socket_timeout": 2.0, "client_name": "x"}
    assert settings.items() <= client.connection_kwargs.items()


def checks(url: str) -> list[tuple[Any, Any]]:
    """The verification of certificates, and of host names, for each server that a URL names."""
    client = client_of(url)
    if isinstance(client, redis.asyncio.RedisCluster):
        assert client.connection_kwargs["connection_class"] is redis.asyncio.SSLConnection
        return [(client.connection_kwargs["ssl_cert_reqs"], client.connection_kwargs["ssl_check_hostname"])]
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    clients = [client, *(manager.sentinels if manager else ())]
    made = [one.connection_pool.connection_class(**one.connection_pool.connection_kwargs) for one in clients]
    assert all(isinstance(connection, redis.SSLConnection) for connection in made)
    return [(connection.cert_reqs, connection.check_hostname) for connection in made]


@pytest.mark.parametrize(
    "url",
    [
        "rediss://host:7000/0",
        "valkeys://host",
        "rediss+sentinel://s1,s2/m",
        "valkeys+sentinel://s1/m",
        "rediss+cluster://c1",
        "valkeys+cluster://c1:7,c2",
    ],
)
def test_tls_checks_certificates_and_host_names(url: str) -> None:
    found = checks(url)
    assert found
    assert set(found) <= {(ssl.CERT_REQUIRED, True), ("required", True)}


KINDS = [
    *("redis://u:secret@h/0", "rediss://u:secret@h", "unix://u:secret@/tmp/x"),
    *("redis+sentinel://u:secret@h/m/0", "redis+cluster://u:secret@h"),
]


@pytest.mark.parametrize("url", KINDS)
@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("sockettimeout", "; is 'socket_timeout' meant?"),
        ("nonsense", ""),
        ("maint_notifications_config", ""),
        ("event_dispatcher", ""),
        ("oss_cluster_maint_notifications_handler", ""),
        ("connection_class", ""),
    ],
)
def test_an_unknown_option_is_named(url: str, option: str, hint: str) -> None:
    for value in ("3", "", "None"):
        with pytest.raises(ValueError, match="unknown option") as caught:
            parse(f"{url}?{option}={value}")
        assert str(caught.value) == f"unknown option '{option}' in the URL{hint}"


def test_a_word_that_may_be_of_a_password_is_not_named() -> None:
    for url in (
        "redis://u:1?secret=b@host",
        "redis://h?secret=1",
        "redis://u:p@h?secret=1@x",
        "redis://u:p@h?a secret=1",
    ):
        with pytest.raises(ValueError, match="url must be") as caught:
            parse(url)
        assert "secret" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # redis-py's, for some options
@pytest.mark.parametrize("option", [*inspect.signature(redis.connection.AbstractConnection).parameters, "path", "host"])
@pytest.mark.parametrize("value", ["x", "1", "-1", "1e999", "nan", "true", "\u0663", "[]"])
def test_whatever_an_option_is_the_url_is_taken_or_refused_with_a_value_error(option: str, value: str) -> None:
    for url in KINDS:
        with suppress(ValueError):
            parse(f"{url}?{option}={value}")


@pytest.mark.parametrize("database", ["abc", "1x", "-1", "\u0663", "0/1"])
def test_a_database_that_is_no_number_is_refused(database: str) -> None:
    for url in ("redis://host", "rediss://u:p@host:7000", "redis+sentinel://h/m", "redis+cluster://h"):
        with pytest.raises(ValueError, match="url must be"):
            parse(f"{url}/{database}")


def test_no_repr_shows_a_password() -> None:
    for url in (
        "redis://u:secret@h",
        "redis+sentinel://u:secret@h/m?sentinel_password=secret",
        "redis+cluster://u:secret@h",
    ):
        assert "secret" not in repr(parse(url))
