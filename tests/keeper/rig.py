"""Processes with locks that are killed, and keepers, of a test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol, Self

import redis

from tests.cli.program import start as start_command
from tests.keeper.holder import NAME
from tests.support.fork_server import Child
from tests.support.waiting import eventually

AT_ONCE_S = 20.0  # on a loaded machine; far less than a timeout of a lock
NOT_MEANWHILE_S = 0.7  # within which a keeper that takes something for a death would have released


class Holder:
    """A process with locks, and what it writes."""

    def __init__(self, program: Child, out: int) -> None:
        self._program = program
        self._out = os.fdopen(out)
        self.pid = program.pid

    def line(self) -> str:
        return self._out.readline().rstrip("\n")

    def ready(self) -> Self:
        """Wait until it holds its locks, and a keeper knows."""
        assert self.line() == "ready"
        return self

    def kill(self) -> None:
        self._program.kill()

    def dies(self, client: redis.Redis) -> None:
        """Kill it, and wait until no lock is left."""
        self.kill()
        eventually(lambda: all_free(client), AT_ONCE_S)

    def close(self) -> None:
        self._program.kill()
        self._out.close()


class Hold(Protocol):
    def __call__(self, act: str, *, where: str = "child", delay: float = 0.0, url: str = "") -> Holder: ...


class HostKeeper:
    """``wheel-lock keeper`` of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "keeper.sock")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = start_command("keeper", "--socket", self.path, stderr=subprocess.PIPE)
        self.pid = self._process.pid
        eventually(self._serves)

    def _serves(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(self.path) == 0

    def line(self) -> str:
        """The next line that it writes: behind the replies to its releases, so a lock may be free before."""
        assert self._process is not None
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def keepers_of(pid: int) -> list[int]:
    """The child keepers of a process: those that have a pidfd of it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if b"keeper/program.py" in (path / "cmdline").read_bytes():
                infos = [info.read_text() for info in (path / "fdinfo").iterdir()]
                if any(f"\nPid:\t{pid}\n" in info for info in infos):
                    found.append(int(path.name))
        except OSError:
            pass  # it has ended meanwhile
    return found


def connections_of(pid: int) -> int:
    """The connections to servers that a keeper has: sockets beside those of its clients come with a memory file each."""
    links: list[str] = []
    with suppress(FileNotFoundError):  # it has ended meanwhile
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it has been closed meanwhile
                links.append(os.readlink(fd))
    files = sum("wheel_lock-record" in link for link in links)
    return sum(link.startswith("socket:") for link in links) - 1 - files if files else 0


def all_free(client: redis.Redis) -> bool:
    """Whether no lock is left; numbers of fences and the like are."""
    return all(key.startswith(b"wheel_lock:") for key in client.scan_iter(count=5000))


def is_kept(client: redis.Redis, name: str = NAME) -> bool:
    """Whether a lock is held for so long that a keeper would have released it, had it meant to."""
    until = time.monotonic() + NOT_MEANWHILE_S
    while time.monotonic() < until:
        if not client.exists(name):
            return False
        time.sleep(0.02)
    return True
