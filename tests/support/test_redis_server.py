"""The server fixture: it answers when it should, ends when it should, and never outlives the tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.redis_server import require_redis_server
from tests.support.waiting import eventually


def gone(pid: int) -> bool:
    """Dead; a zombie whose new parent has not looked at it yet is dead too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


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
