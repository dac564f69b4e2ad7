"""A real redis-server process of one's own: on loopback, in a temporary directory, and gone when the test is.

What a test breaks about a server on purpose (kill, pause, restart) is here; what it breaks about the network
is in proxy.py.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.ports import candidate_port
from tests.support.tls import TlsFiles
from tests.support.waiting import eventually, state_of

_Spawn = Callable[[], "subprocess.Popen[bytes]"]

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 3.0

# Becomes redis-server, after asking the kernel to kill it when its parent dies in whatever way. This is a
# program of its own and not a preexec_fn, because Python warns of running its own code between fork and exec
# in a process that has threads. The check of the parent is for one that died before the request was made.
_LAUNCHER = """
import os, sys
if sys.platform == "linux":
    import ctypes, signal
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def running_in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")


def require_redis_server() -> str:
    """The path of redis-server, or of what REDIS_SERVER names instead, such as /opt/valkey/bin/valkey-server.

    Without a redis-server a test is skipped on a laptop, and fails where CI is set.
    """
    wanted = os.environ.get("REDIS_SERVER", "")
    path = shutil.which(wanted or "redis-server")
    if path is not None:
        return path
    if wanted:
        pytest.fail(f"REDIS_SERVER is {wanted!r}, which is no program", pytrace=False)
    message = "redis-server is not installed (on Debian: apt-get install redis-server)"
    if running_in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@functools.cache
def redis_server_version() -> tuple[int, ...]:
    """For tests of what only newer servers can do, such as (7, 0, 15)."""
    words = subprocess.run(
        [require_redis_server(), "--version"], capture_output=True, text=True, check=True
    ).stdout.split()
    version = next(word[2:] for word in words if word.startswith("v="))
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def require_redis_7() -> None:
    """For tests of, or by, what came with Redis 7: skipped where REDIS_SERVER names an older one."""
    if redis_server_version() < (7,):
        pytest.skip("came with Redis 7")


def require_tracking() -> None:
    """For tests of CLIENT TRACKING, which came with Redis 6: skipped where REDIS_SERVER names an older one."""
    if redis_server_version() < (6,):
        pytest.skip("CLIENT TRACKING came with Redis 6")


@functools.cache
def has_tls() -> bool:
    """Whether redis-server was built with TLS: then it ends at once for want of a certificate, else of something else."""
    asked = subprocess.run([require_redis_server(), "--port", "0", "--tls-port", "1"], capture_output=True, text=True)
    return "tls-cert-file" in asked.stdout + asked.stderr


def require_tls() -> None:
    """For tests of TLS: skipped where REDIS_SERVER names a server that was built without it."""
    if not has_tls():
        pytest.skip("the server was built without TLS")


class RedisServer:
    """One redis-server. Use it in a `with`, or call start() and close().

    config_lines are lines of redis.conf. users are ACL users without the leading word, such as
    "app on >secret ~app:* +@all". password is the default user's. tls and unixsocket add a way in; `url` is
    then that one, and client() is plain TCP in any case. start() after stop() or kill() is on the same port,
    with nothing left of the data. `port` and `tls_port` are 0 before start().
    """

    def __init__(
        self,
        *config_lines: str,
        password: str | None = None,
        users: Sequence[str] = (),
        unixsocket: bool = False,
        tls: TlsFiles | None = None,
        sentinel: bool = False,
    ) -> None:
        self._binary = require_redis_server()
        if tls is not None:
            require_tls()
        self._config_lines = config_lines
        self._password = password
        self._users = tuple(users)
        self._tls = tls
        self._sentinel = sentinel
        # The path of a unix socket has at most 107 bytes, however long that of the temporary directory is.
        self.directory = Path(tempfile.mkdtemp(prefix="wheel-lock-redis-", dir="/tmp" if unixsocket else None))
        self.unix_path = self.directory / "redis.sock" if unixsocket else None
        self.port = 0
        self.tls_port = 0
        self._running: list[subprocess.Popen[bytes]] = []  # none or one; shared with the finalizer
        self._clients: list[redis.Redis] = []
        self._finalizer = weakref.finalize(self, _clean_up, os.getpid(), self._running, self.directory)

    # Life

    def start(self) -> Self:
        """Start, and return when the server answers PING."""
        if self.alive:
            raise RuntimeError("the server is running")
        if not self._finalizer.alive:
            raise RuntimeError("the server is closed")
        first_time = self.port == 0
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if first_time:
                self.port = candidate_port()
                self.tls_port = candidate_port() if self._tls else 0
            self._launch()
            if self._wait_until_ready(deadline):
                return self
            # Another process bound the port first. At first another port will do; later it must be this one.
            if time.monotonic() >= deadline:
                raise RuntimeError(f"redis-server finds port {self.port} taken:\n{self.log()}")

    def stop(self) -> None:
        """End in order, as `SHUTDOWN` does."""
        if self._running:
            process = self._running[0]
            process.send_signal(signal.SIGCONT)
            process.terminate()
            with suppress(subprocess.TimeoutExpired):  # busy in a script or a DEBUG SLEEP
                process.wait(STOP_TIMEOUT_S)
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and return when the process is gone. Nothing happens if it is gone already."""
        _kill(self._running)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered. Returns when the process has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        if sys.platform == "linux":
            eventually(lambda: state_of(self.pid) == "T", message="SIGSTOP took")

    def resume(self) -> None:
        """SIGCONT. Nothing happens if the process is not paused."""
        self._process.send_signal(signal.SIGCONT)

    def heal(self) -> None:
        """Have it run: start it if it has ended, and resume it if it is paused."""
        if self.alive:
            self.resume()
        else:
            self.start()

    def close(self) -> None:
        """End the process, paused or not, and remove its directory. May be called twice."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._finalizer()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    # Ways in

    @property
    def tls(self) -> TlsFiles:
        if self._tls is None:
            raise RuntimeError("the server was made without tls")
        return self._tls

    @property
    def url(self) -> str:
        """How a user connects to this kind of server: by unix socket if it has one, else TLS, else TCP."""
        secret = f":{quote(self._password, safe='')}@" if self._password else ""
        if self.unix_path is not None:
            return f"unix://{secret}{self.unix_path}?db=0"
        if self._tls is not None:
            return f"rediss://{secret}127.0.0.1:{self.tls_port}/0?ssl_ca_certs={quote(str(self._tls.ca))}"
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    @functools.cached_property
    def admin(self) -> redis.Redis:
        """A client that is kept: `client` makes a new one, with sockets until the server is closed, at each call."""
        return self.client()

    def client(self, **kwargs: Any) -> redis.Redis:
        """An ordinary redis-py client over plain TCP, as the default user; closed together with the server.

        It tries twice without a pause, so a pooled connection that a restart has cut is not noticed.
        """
        defaults: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.port,
            "password": self._password,
            "socket_timeout": 5.0,
            "retry": Retry(NoBackoff(), 1),
        }
        client = redis.Redis(**{**defaults, **kwargs})
        self._clients.append(client)
        return client

    # What it is doing

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return bool(self._running) and self._running[0].poll() is None

    def log(self, lines: int = 40) -> str:
        """The end of what the server has said."""
        path = self.directory / "redis.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # Behind

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        if not self._running:
            raise RuntimeError("the server is not running")
        return self._running[0]

    def _config(self) -> str:
        lines = [
            "bind 127.0.0.1",
            f"port {self.port}",
            f"dir {self.directory}",
            'save ""',
            "appendonly no",
            "daemonize no",
        ]
        if redis_server_version() >= (7,):  # before, DEBUG was open to all
            lines.append("enable-debug-command local")
        if self.unix_path is not None:
            lines += [f"unixsocket {self.unix_path}", "unixsocketperm 700"]
        if self._tls is not None:
            lines += [
                f"tls-port {self.tls_port}",
                f"tls-ca-cert-file {self._tls.ca}",
                f"tls-cert-file {self._tls.cert}",
                f"tls-key-file {self._tls.key}",
                "tls-auth-clients no",
            ]
        if self._password is not None:
            lines.append(f"requirepass {self._password}")
        lines += [f"user {user}" for user in self._users]
        return "\n".join([*lines, *self._config_lines, ""])

    def _launch(self) -> None:
        self.kill()
        config = self.directory / "redis.conf"
        config.write_text(self._config())
        (self.directory / "redis.log").write_bytes(b"")
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), self._binary, str(config)]
        if self._sentinel:
            command.append("--sentinel")
        with (self.directory / "redis.log").open("ab") as log:
            # In a process group of its own: Ctrl-C ends the tests, and their clean-up ends the servers.
            self._running.append(
                _in_lasting_thread(
                    lambda: subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
                )
            )

    def _wait_until_ready(self, deadline: float) -> bool:
        """True when this server answers, False when its port was taken, RuntimeError for anything else."""
        probe = self.client(socket_timeout=1.0, retry=Retry(NoBackoff(), 0))
        try:
            while self.alive:
                try:
                    probe.ping()
                    # Another server may hold the port while ours is still finding that out.
                    if probe.info("server")["process_id"] == self.pid:
                        return True
                except (redis.ConnectionError, redis.TimeoutError):
                    pass
                if time.monotonic() >= deadline:
                    raise RuntimeError(f"redis-server did not answer in {START_TIMEOUT_S} s:\n{self.log()}")
                time.sleep(0.002)
        finally:
            self._clients.remove(probe)
            probe.close()
        if "Address already in use" in self.log():
            return False
        raise RuntimeError(f"redis-server ended at once:\n{self.log()}")


def _kill(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        process.kill()  # ends a stopped process too
        process.wait()
    running.clear()


def _clean_up(owner_pid: int, running: list[subprocess.Popen[bytes]], directory: Path) -> None:
    # A forked child of the test process inherits this call; the server is not the child's to kill.
    if os.getpid() == owner_pid:
        _kill(running)
        shutil.rmtree(directory, ignore_errors=True)


def _in_lasting_thread(spawn: _Spawn) -> subprocess.Popen[bytes]:
    """Call spawn in a thread that lives as long as the process does.

    The kernel's "parent died" means the thread that forked. Without this, a server that a test starts in a
    thread would be killed when that thread ends.
    """
    if threading.current_thread() is threading.main_thread():
        return spawn()
    return _spawner().submit(spawn).result()


@functools.cache
def _spawner() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "redis-server-spawner")


@contextmanager
def hung(*servers: RedisServer) -> Iterator[None]:
    """They are paused in the block."""
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()
