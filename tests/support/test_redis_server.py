"""The server fixture: it answers when it should, ends when it should, and never outlives the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from tests.support import ports
from tests.support import redis_server as module
from tests.support.redis_server import RedisServer, require_redis_server
from tests.support.tls import make_tls_files
from tests.support.waiting import eventually


def gone(pid: int) -> bool:
    """Dead; a zombie whose new parent has not looked at it yet is dead too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_it_answers_and_takes_config_lines() -> None:
    with RedisServer("maxmemory 12mb", "maxmemory-policy noeviction") as server:
        assert server.client().config_get("maxmemory") == {"maxmemory": str(12 * 1024 * 1024)}
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        server.client().execute_command("DEBUG", "SLEEP", "0")
        pid, directory = server.pid, server.directory
    assert gone(pid)
    assert not directory.exists()
    server.close()


def test_a_bad_config_line_says_so() -> None:
    server = RedisServer("no-such-directive 1")
    with pytest.raises(RuntimeError, match="no-such-directive"):
        server.start()
    server.close()


def test_a_taken_port_is_no_obstacle(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([redis_server.port, redis_server.port])
    monkeypatch.setattr(module, "candidate_port", lambda: next(answers, None) or ports.candidate_port())
    with RedisServer() as server:
        assert server.port != redis_server.port
        assert server.client().info("server")["process_id"] == server.pid != redis_server.pid


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_start_after_the_end_keeps_the_port_and_loses_the_data(fresh_redis: RedisServer, ending: str) -> None:
    client, port, pid = fresh_redis.client(), fresh_redis.port, fresh_redis.pid
    client.set("key", "value")
    getattr(fresh_redis, ending)()
    assert not fresh_redis.alive
    with pytest.raises(redis.ConnectionError):
        client.ping()
    fresh_redis.start()
    assert fresh_redis.port == port
    assert fresh_redis.pid != pid
    assert client.get("key") is None


def test_pause_and_resume(fresh_redis: RedisServer) -> None:
    client = fresh_redis.client(socket_timeout=0.5)
    assert client.ping()
    fresh_redis.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    fresh_redis.resume()
    assert eventually(client.ping)


@pytest.mark.parametrize("ending", ["close", "stop", "kill"])
def test_a_paused_server_ends_too(ending: str) -> None:
    server = RedisServer().start()
    pid = server.pid
    server.pause()
    getattr(server, ending)()
    assert gone(pid)
    server.close()


def test_password_and_users() -> None:
    with RedisServer(password="p@ss/word", users=["app on >secret ~app:* +get"]) as server:
        assert server.client().ping()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        app = server.client(username="app", password="secret")
        assert app.get("app:1") is None
        with pytest.raises(redis.exceptions.NoPermissionError):
            app.get("other")


def test_unix_sockets_and_tls_with_a_checked_host_name(
    unix_redis: RedisServer, tls_redis: RedisServer, tmp_path: Path
) -> None:
    with redis.Redis.from_url(unix_redis.url) as client:
        assert client.ping()
    with redis.Redis.from_url(tls_redis.url, ssl_check_hostname=True) as client:
        assert client.ping()
    with RedisServer(tls=make_tls_files(tmp_path, "redis.example")) as server:
        client = redis.Redis.from_url(server.url, ssl_check_hostname=True)
        with client, pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            client.ping()


def test_a_sentinel_watches_a_server(redis_server: RedisServer) -> None:
    with RedisServer(f"sentinel monitor main 127.0.0.1 {redis_server.port} 1", sentinel=True) as watcher:
        found = watcher.client().execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")
        assert found == (b"127.0.0.1", redis_server.port)


def test_a_server_started_in_a_thread_outlives_the_thread() -> None:
    server = RedisServer()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert server.client().ping()
    assert server.alive
    server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal")
@pytest.mark.parametrize("paused", [False, True])
def test_the_server_outlives_a_forked_child_and_dies_with_a_killed_test_process(paused: bool) -> None:
    require_redis_server()
    code = (
        "import os, signal, sys\n"
        "from tests.support.redis_server import RedisServer\n"
        "server = RedisServer().start()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert server.client().ping()\n"
        f"{'server.pause()' if paused else ''}\n"
        "print(server.pid, server.directory, flush=True)\n"
        "signal.pause()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid, directory = parent.stdout.readline().split()
    assert not gone(int(pid))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    eventually(lambda: gone(int(pid)), message="the server died with its parent")
    shutil.rmtree(directory)


def test_another_server_can_be_tested_but_not_by_accident(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "valkey-server"
    other.touch(0o700)
    monkeypatch.setenv("REDIS_SERVER", str(other))
    assert require_redis_server() == str(other)
    other.unlink()
    with pytest.raises(pytest.fail.Exception, match=r"valkey-server', which is no program"):
        require_redis_server()


def test_without_redis_server_a_laptop_skips_and_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("REDIS_SERVER", raising=False)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception):
        require_redis_server()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install redis-server"):
        require_redis_server()
