"""Servers with TLS, to which the keeper of a process that was killed connects by itself."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.keeper.holder import NAME
from tests.keeper.rig import AT_ONCE_S, Hold, HostKeeper, is_kept, keepers_of
from tests.keeper.test_program import ENTRIES, SERVER, Served, end_session, send
from tests.support.background import Background
from tests.support.redis_server import RedisServer, require_tls
from tests.support.tls import TlsFiles, make_tls_files
from tests.support.waiting import eventually
from tests.topology.test_tls_and_passwords import SECRET, secure_cluster, watched_master
from wheel_lock import LockContext
from wheel_lock.keeper import tls
from wheel_lock.keeper.server import Server
from wheel_lock.keeper.tls import TlsConnection
from wheel_lock.net import connector
from wheel_lock.net.connector import RedisPyConnector

PHRASE = "phrase"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that asks for the certificates of clients, and has a user with a password."""
    files = make_tls_files(tmp_path_factory.mktemp("strict"))
    with RedisServer(
        "tls-auth-clients yes", tls=files, password=SECRET, users=[f"app on >{SECRET}:app ~* &* +@all"]
    ) as server:
        yield server


def url_of(server: RedisServer, login: str, database: int, **options: object) -> str:
    options = {"ssl_ca_certs": server.tls.ca, **options}
    return f"rediss://{login}@127.0.0.1:{server.tls_port}/{database}?{urlencode(options)}"


def own(files: TlsFiles) -> dict[str, str]:
    return {"ssl_certfile": str(files.cert), "ssl_keyfile": str(files.key)}


def test_the_keeper_connects_as_the_process_did_when_it_has_died(hold: Hold, strict: RedisServer) -> None:
    url = url_of(strict, f"app:{SECRET}%3Aapp", 3, **own(strict.tls))
    with strict.client(db=3) as client:
        holder = hold(f"names {NAME} other", url=url).ready()
        (keeper,) = keepers_of(holder.pid)
        for what in ("cmdline", "environ"):
            assert SECRET.encode() not in Path(f"/proc/{keeper}/{what}").read_bytes()
        assert is_kept(client)
        holder.kill()
        eventually(lambda: not client.exists(NAME, "other"), AT_ONCE_S)


def test_what_tls_needs_is_loaded_only_with_a_server_that_speaks_it(
    hold: Hold, redis_server: RedisServer, strict: RedisServer
) -> None:
    for url, needed in ((redis_server.url, False), (url_of(strict, f":{SECRET}", 0, **own(strict.tls)), True)):
        holder = hold("exclusive", url=url).ready()
        (keeper,) = keepers_of(holder.pid)
        assert ("libssl" in Path(f"/proc/{keeper}/maps").read_text()) is needed
        holder.kill()


class Provider(redis.CredentialProvider):
    """Has another password each time: only the one that was used is known."""

    def __init__(self, *passwords: str) -> None:
        self._passwords = iter(passwords)

    def get_credentials(self) -> tuple[str, str]:
        return "app", next(self._passwords)


def _ca_of(files: TlsFiles) -> str:
    return files.ca.read_text()


def _locked_key(files: TlsFiles, directory: Path) -> dict[str, Any]:
    key = load_pem_private_key(files.key.read_bytes(), None)
    path = directory / "locked.pem"
    path.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(PHRASE.encode()))
    )
    return {"ssl_keyfile": path, "ssl_password": PHRASE}


@pytest.mark.parametrize(
    "settings",
    [
        lambda files, directory: {"ssl_ca_data": _ca_of(files)},
        lambda files, directory: {"ssl_ca_data": ssl.PEM_cert_to_DER_cert(_ca_of(files))},
        lambda files, directory: {"ssl_ca_certs": os.path.relpath(files.ca)},
        lambda files, directory: {"ssl_cert_reqs": "none"},
        lambda files, directory: {"ssl_ca_certs": files.ca, "ssl_check_hostname": False, "host": "127.1"},
        lambda files, directory: {
            "ssl_ca_certs": files.ca,
            "ssl_ciphers": "ECDHE+AESGCM",
            "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            "ssl_include_verify_flags": [ssl.VerifyFlags.VERIFY_X509_TRUSTED_FIRST],
            "ssl_exclude_verify_flags": [ssl.VerifyFlags.VERIFY_X509_STRICT],
        },
        lambda files, directory: {"ssl_ca_certs": files.ca, **_locked_key(files, directory)},
        lambda files, directory: {
            "ssl_ca_certs": files.ca,
            "credential_provider": Provider(f"{SECRET}:app", "not used"),
            "password": None,
        },
    ],
    ids=["PEM", "DER", "relative path", "not verified", "another host", "details", "locked key", "provider"],
)
def test_each_setting_of_tls_is_described(
    strict: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    given = {"host": "127.0.0.1", "password": SECRET, **own(strict.tls), **settings(strict.tls, tmp_path)}
    own_connector = RedisPyConnector(redis.Redis(port=strict.tls_port, ssl=True, **given))
    assert own_connector.obstacle is None
    passed = own_connector.listener().connect(2.0)
    description = json.loads(json.dumps(passed.description))
    passed.close()
    monkeypatch.chdir(tmp_path)
    connection = TlsConnection(description)
    connection.settimeout(AT_ONCE_S)
    connection.send(memoryview(b"PING\r\n"))
    assert connection.recv(1 << 10) == b"+PONG\r\n"
    assert connection._sock is not None
    connection.close()


class OwnConnection(redis.SSLConnection):
    """A connection class of a user's own."""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"connection_class": OwnConnection}, "OwnConnection is a class of your own: use redis.SSLConnection"),
        ({"redis_connect_func": lambda connection: None}, "redis_connect_func is a function of your own: use a client"),
        ({"ssl_validate_ocsp": True}, "ssl_validate_ocsp means nothing to it: leave that to a proxy"),
        ({"ssl_password": lambda: PHRASE}, "ssl_password is no text: give it as a str"),
        ({"ssl_ca_data": "x" * 65_537}, "ssl_ca_data has 65,537 bytes, of 65,536 that it may have: put it into a file"),
    ],
)
def test_what_cannot_be_described_is_refused(settings: Any, why: str) -> None:
    pool = redis.ConnectionPool(**{"connection_class": redis.SSLConnection, "host": "h", "port": 1, **settings})
    with redis.Redis.from_pool(pool) as client:
        with pytest.raises(ValueError, match=f"release_on_crash.*{why}"):
            LockContext(client, release_on_crash=True)
        with pytest.raises(ValueError, match=why):
            LockContext.quorum([redis.Redis(), redis.Redis(port=2), client], release_on_crash=True)
        LockContext(client).close()


def test_what_cannot_be_described_of_a_cluster_client_is_refused() -> None:
    client = redis.asyncio.RedisCluster(host="h", ssl=True, ssl_ca_data="x" * 65_537)
    with pytest.raises(ValueError, match="ssl_ca_data has 65,537 bytes"):
        LockContext(client, release_on_crash=True)


def accepted(listener: socket.socket, files: TlsFiles) -> ssl.SSLSocket:
    """Accept a connection with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    plain, _ = listener.accept()
    with plain:
        plain.settimeout(AT_ONCE_S)
        return context.wrap_socket(plain, server_side=True)


def test_a_server_whose_certificate_does_not_verify_gets_no_password_and_no_command(
    tmp_path: Path, tls_files: TlsFiles, hold: Hold, keeper: HostKeeper
) -> None:
    with RedisServer(tls=tls_files, password=SECRET) as server:
        holder = hold("exclusive", where=keeper.path, url=server.url).ready()
        os.kill(holder.pid, signal.SIGSTOP)  # it connects no more
        server.kill()
        files = make_tls_files(tmp_path)  # of another authority
        with socket.create_server(("127.0.0.1", server.tls_port)) as impostor:
            impostor.settimeout(AT_ONCE_S)
            holder.kill()
            for _ in range(2):  # it is asked again
                with pytest.raises(ssl.SSLError):
                    accepted(impostor, files)
            assert "certificate verify failed" in keeper.line()
            assert "released 0 in" in keeper.line()


def described_of(url: str) -> dict[str, object]:
    passed = RedisPyConnector(redis.Redis.from_url(url)).connect(2.0)
    description = passed.description
    passed.close()
    assert description is not None
    assert passed.description is None
    return description


def test_nothing_is_described_where_there_is_no_keeper(strict: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[object]()
    monkeypatch.setattr(connector, "described", lambda connection, login: calls.append(login))
    passed = RedisPyConnector(redis.Redis.from_url(url_of(strict, f":{SECRET}", 0, **own(strict.tls)))).connect(2.0)
    assert calls == []
    assert passed.description is None
    assert calls == [(SECRET,)]
    passed.close()


def test_a_login_that_is_refused_is_followed_by_nothing(strict: RedisServer) -> None:
    url = url_of(strict, f"app:{SECRET}%3Aapp", 0, **own(strict.tls))
    description = described_of(url)
    for login in (["app", "has expired"], ["app", "x" * 10_000]):
        connection = TlsConnection({**description, "login": login})
        connection.settimeout(AT_ONCE_S)
        with pytest.raises(TimeoutError, match="AUTH was refused: -WRONGPASS"):
            connection.send(memoryview(b"PING\r\n"))
        assert connection.fileno() == -1


NOTHING = ("ca_file", "ca_path", "ca_data", "certificate", "key", "key_password", "least_version", "ciphers")
CHECKS = {"verify": ssl.CERT_REQUIRED, "check_host": True, "flags": 0, "not_flags": 0, "ca_is_der": False}
SETTINGS: dict[str, Any] = {
    "host": "127.0.0.1", "port": 1, "database": 0, "login": [], **CHECKS, **dict.fromkeys(NOTHING),
}  # fmt: skip


def test_connections_with_the_same_settings_share_what_is_made_of_them_as_long_as_the_files_stay(
    tls_files: TlsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [], ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(make()) or made[-1])
    authority = tmp_path / "ca.pem"
    authority.write_bytes(tls_files.ca.read_bytes())

    def check(**changed: object) -> None:
        TlsConnection({**SETTINGS, "ca_file": str(authority), **changed}).check()

    for number in range(10):
        check(host=f"h{number}", login=[f"user{number}", "x"])
    assert len(made) == 1
    renewed = tmp_path / "renewed.pem"
    renewed.write_bytes(tls_files.ca.read_bytes())
    renewed.replace(authority)
    check()
    check(check_host=False)
    assert len(made) == 3
    assert [context.check_hostname for context in made] == [True, True, False]


@contextmanager
def answering(listener: socket.socket, files: TlsFiles, *replies: bytes) -> Iterator[list[bytes]]:
    """Answer to what is sent in one connection, and yield the list that it is put into."""
    sent = list[bytes]()

    def answer() -> None:
        with accepted(listener, files) as sock:
            for reply in replies:
                sent.append(sock.recv(1 << 16))
                sock.sendall(reply)

    answers = Background(answer)
    yield sent
    answers.result()


def test_a_server_that_refuses_the_first_connection_is_asked_again(tls_files: TlsFiles, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = Server(TlsConnection({**SETTINGS, "port": port, "ca_file": str(authority)}), SERVER)
        assert server.release(ENTRIES) == {}  # its authorities are no file yet
        authority.rmdir()
        authority.write_bytes(tls_files.ca.read_bytes())
        assert server.release(ENTRIES) == {}  # nothing listens yet
        listener.listen()
        with answering(listener, tls_files, b":1\r\n", b":1\r\n") as sent:
            assert server.release(ENTRIES) == dict.fromkeys(ENTRIES, "")
        assert len(set(sent)) == 1  # what was to be sent then, and what is asked now
        server.close()


def test_a_server_without_users_gets_the_password_only(tls_files: TlsFiles) -> None:
    few = b"-ERR wrong number of arguments for 'auth' command\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        login = {"login": ["user", "secret"], "ca_file": str(tls_files.ca)}
        connection = TlsConnection({**SETTINGS, **login, "port": port})
        connection.settimeout(AT_ONCE_S)
        with answering(listener, tls_files, few, b"+OK\r\n", b"+PONG\r\n") as sent:
            connection.send(memoryview(b"PING\r\n"))
            assert connection.recv(1 << 10) == b"+PONG\r\n"
        connection.close()
    assert sent[1] == b"*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n"


def test_a_process_hears_of_a_description_that_is_of_no_use(
    served: Served, tls_redis: RedisServer, tmp_path: Path
) -> None:
    pipe, none = tmp_path / "pipe", tmp_path / "none.pem"
    os.mkfifo(pipe)
    description = described_of(tls_redis.url)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, '{"what": "taken"}'),
        ({"ca_file": str(none)}, f"[Errno 2] No such file or directory: '{none}'"),
        ({"ca_file": str(pipe)}, f"no regular file: '{pipe}'"),
        ({"host": []}, ""),
    ]
    for changed, answer in cases:
        client = served.begun()
        send(client, {**SERVER, "tls": description | changed})
        got = client.recv(1 << 16).decode()
        assert got == answer or json.loads(got) == {"what": "refused", "why": answer}
        if answer:
            send(client, {"what": "leave", "node": SERVER["node"]})
            end_session(client)


def test_a_description_that_takes_long_to_be_looked_at_delays_no_other_client(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = threading.Event()
    monkeypatch.setattr(tls, "_made", lambda settings, versions: blocks.wait(AT_ONCE_S))
    clients = [served.begun(), served.begun()]
    for client in clients:
        send(client, {**SERVER, "tls": SETTINGS})
    send(clients[1], {"what": "end"})
    eventually(lambda: len(set(served.keeper._sessions.values())) == 1)
    assert not blocks.is_set()
    blocks.set()
    assert json.loads(clients[0].recv(1 << 16)) == {"what": "taken"}
    send(clients[0], {"what": "end"})


# -- several servers -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["cluster", "Sentinels", "quorum"])
def test_locks_at_several_servers_are_freed(topology: str, tls_files: TlsFiles, hold: Hold) -> None:
    require_tls()
    options = urlencode({"ssl_ca_certs": tls_files.ca})
    with ExitStack() as stack:
        if topology == "cluster":
            server, _ = stack.enter_context(secure_cluster(tls_files, tls_files.ca))
            servers, url = [server], f"rediss+cluster://:{SECRET}@127.0.0.1:{server.tls_port}?{options}"
        elif topology == "Sentinels":
            server, master = stack.enter_context(watched_master(tls_files, tls_files.ca))
            pool: Any = master.connection_pool
            (sentinel,) = pool.sentinel_manager.sentinels
            port = sentinel.connection_pool.connection_kwargs["port"]
            more = f"{options}&{urlencode({'sentinel_password': SECRET})}"
            servers, url = [server], f"rediss+sentinel://:{SECRET}@127.0.0.1:{port}/locks?{more}"
        else:
            servers = [stack.enter_context(RedisServer(tls=tls_files, password=SECRET)) for _ in range(3)]
            url = " ".join(server.url for server in servers)
        holder = hold(f"names {NAME}", url=url).ready()
        clients = [stack.enter_context(server.client()) for server in servers]
        eventually(lambda: all(client.exists(NAME) for client in clients))
        holder.kill()
        eventually(lambda: not any(client.exists(NAME) for client in clients), AT_ONCE_S)
