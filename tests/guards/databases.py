"""Real database servers of the session: in temporary folders, on loopback, never as root, and gone when the tests are.

PostgreSQL and MariaDB refuse to run as root, so root starts them as `nobody`. setpriv has the kernel kill them when this
process dies in whatever way. Nothing is kept, so nothing waits for a disk.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg
import pymysql
import pytest

from tests.support.ports import candidate_port
from tests.support.redis_server import running_in_ci

START_S = 60.0
_UNPRIVILEGED = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
_POSTGRES_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "8MB",
    "max_connections": "30",
    "listen_addresses": "127.0.0.1",
    "deadlock_timeout": "200ms",
}
_MARIADB_OPTIONS = [
    "--skip-grant-tables",  # so there is nothing to set up: an empty folder will do
    "--skip-log-bin",
    "--bind-address=127.0.0.1",
    "--innodb-buffer-pool-size=8M",
    "--innodb-log-file-size=4M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync",
    "--performance-schema=0",
]


def require_program(name: str, package: str) -> str:
    """The path of a server's program. Without it a test is skipped on a laptop, and fails where CI is set."""
    folders = [*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True), "/usr/sbin", "/usr/bin"]
    path = shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))
    if path is not None:
        return path
    message = f"{name} is not installed (on Debian: apt-get install {package})"
    if running_in_ci():
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def _command(program: str, *arguments: str) -> list[str]:
    rights = _UNPRIVILEGED if os.geteuid() == 0 else []
    return [require_program("setpriv", "util-linux"), *rights, "--pdeathsig=KILL", program, *arguments]


class DatabaseServer:
    """One server. Use it in a `with`, in the main thread: the kernel ends it with the thread that has started it."""

    kind: str
    _errors: tuple[type[Exception], ...]

    def __init__(self) -> None:
        self.port = 0
        self.directory = Path(tempfile.mkdtemp(prefix="wheel-lock-database-", dir="/tmp"))
        if os.geteuid() == 0:
            shutil.chown(self.directory, "nobody", "nogroup")
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self) -> None:
        """Fill the folder."""

    def arguments(self) -> list[str]:
        """The program and its arguments."""
        raise NotImplementedError

    def connect(self) -> Any:
        """A connection of the DB-API, as the driver makes it by default."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        try:
            self.prepare()
            deadline = time.monotonic() + START_S
            while not self._started(deadline):
                assert time.monotonic() < deadline, self.log()
        except BaseException:
            self._end()
            raise
        return self

    def _started(self, deadline: float) -> bool:
        """True when it answers; False if it has ended, as it does when another process has taken the port."""
        self.port = candidate_port()
        with (self.directory / "log").open("wb") as log:
            self._process = process = subprocess.Popen(
                _command(*self.arguments()), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory,
                process_group=0,
            )  # fmt: skip
        while process.poll() is None and time.monotonic() < deadline:
            try:
                self.connect().close()
                return True
            except self._errors:
                time.sleep(0.02)
        return False

    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")[-2000:]

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT if self.kind == "postgresql" else signal.SIGKILL)  # at once
            self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class PostgresServer(DatabaseServer):
    """A PostgreSQL with one database, `postgres`."""

    kind = "postgresql"
    _errors = (psycopg.OperationalError,)

    def prepare(self) -> None:
        program = require_program("initdb", "postgresql")
        options = ["--username=postgres", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(
            _command(program, "--pgdata=data", *options), cwd=self.directory, check=True, stdout=subprocess.DEVNULL
        )

    def arguments(self) -> list[str]:
        settings = {**_POSTGRES_SETTINGS, "port": str(self.port), "unix_socket_directories": str(self.directory)}
        pairs = [f"--{name}={value}" for name, value in settings.items()]
        return [require_program("postgres", "postgresql"), "-D", "data", *pairs]

    @property
    def address(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port, "user": "postgres", "dbname": "postgres"}

    def connect(self, **settings: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(**self.address, **settings)


class MariaDbServer(DatabaseServer):
    """A MariaDB with one database, `test`."""

    kind = "mariadb"
    _errors = (pymysql.err.OperationalError,)

    def arguments(self) -> list[str]:
        place = [f"--datadir={self.directory}", f"--port={self.port}", f"--socket={self.directory}/socket"]
        return [require_program("mariadbd", "mariadb-server-core"), "--no-defaults", *place, *_MARIADB_OPTIONS]

    @property
    def address(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port, "user": "root"}

    def connect(self, **settings: Any) -> Any:
        connection = pymysql.connect(**self.address, **settings)
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE IF NOT EXISTS test")
            cursor.execute("USE test")
        return connection
