"""Two holders at once by force: with a guard nothing is written late, and without one the same test sees late writes.

GUARDS_TRANSACTIONS (1000) is the number of transactions with each database.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.guards.databases import MariaDbServer, PostgresServer
from tests.guards.ways import closed
from tests.guards.writer import PLACES, STOPPING, connect
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import guards

TRANSACTIONS = int(os.environ.get("GUARDS_TRANSACTIONS", "1000"))
KINDS = ["postgresql", "postgresql, serializable", "mariadb", "sqlite"]


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with ForkServer("tests.guards.writer") as forks:
        yield forks


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def address(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Any:
    if kind == "sqlite":
        return str(tmp_path / "data.sqlite")
    name = "mariadb_server" if kind == "mariadb" else "postgres_server"
    server: MariaDbServer | PostgresServer = request.getfixturevalue(name)
    server.connect().close()  # which makes the database of MariaDB
    return server.address


class Race:
    """Two writers, and what they have written."""

    def __init__(self, kind: str, address: Any, redis_server: RedisServer, forks: ForkServer) -> None:
        self.stops: Counter[str] = Counter()
        self._kind = kind
        self._address = address
        self._client = redis_server.admin
        self._url = redis_server.url
        self._forks = forks
        with closed(connect(kind, address)) as connection:
            cursor = connection.cursor()
            if kind == "sqlite":
                cursor.execute("PRAGMA journal_mode = wal")
            cursor.execute("DROP TABLE IF EXISTS register")
            cursor.execute("DROP TABLE IF EXISTS wheel_lock_fences")
            cursor.execute("CREATE TABLE register (fence BIGINT, writes INTEGER, late INTEGER)")
            cursor.execute("INSERT INTO register VALUES (0, 0, 0)")
            guards.create(connection)
            connection.commit()

    def register(self) -> tuple[int, int, int]:
        """The fence of the last write, the number of writes, and of late ones."""
        with closed(connect(self._kind, self._address)) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT fence, writes, late FROM register")
            fence, writes, late = cursor.fetchone()
            return fence, writes, late

    def run(self, transactions: int, *, guarded: bool) -> Counter[str]:
        """Have both write as often; return what they have counted."""
        settings = {"kind": self._kind, "address": self._address, "url": self._url, "guarded": guarded}
        reading, writing = os.pipe()
        children = {}
        text = json.dumps({**settings, "transactions": transactions})
        for _ in range(2):
            child = self._forks.start(text, fds=[writing])
            children[child.pid] = child
        os.close(writing)
        counted: Counter[str] = Counter()
        with open(reading) as lines:
            for line in lines:
                said = json.loads(line)
                if "place" in said:
                    self._go_on_with(list(children), said["place"], said["fence"])
                else:
                    counted.update(said)
        assert [child.wait() for child in children.values()] == [0, 0]
        return counted

    def _go_on_with(self, pids: list[int], place: str, fence: int) -> None:
        """Continue the one that has stopped, when the other has a later fence; and has written, if it can."""

        def overtaken() -> bool:
            if place == PLACES[0]:
                return self.register()[0] > fence
            return int(self._client.get("wheel_lock:fence:{account:42}") or 0) > fence

        stopped = eventually(lambda: [pid for pid in pids if state(pid) == "T"])
        eventually(lambda: overtaken() or any(state(pid) in "XZ" for pid in pids))
        self.stops[place] += 1
        self._client.delete(STOPPING)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


@pytest.fixture
def race(kind: str, address: Any, redis_server: RedisServer, forks: ForkServer) -> Race:
    return Race(kind, address, redis_server, forks)


@pytest.mark.slow
def test_with_a_guard_no_write_is_late(race: Race) -> None:
    counted = race.run(TRANSACTIONS // 2, guarded=True)
    _, writes, late = race.register()
    assert late == 0
    assert writes == counted["done"] >= TRANSACTIONS // 2 * 2
    assert counted["refused"] > 0
    assert set(race.stops) == set(PLACES)


@pytest.mark.slow
def test_without_a_guard_writes_are_late(race: Race) -> None:
    counted = race.run(120, guarded=False)
    _, writes, late = race.register()
    assert writes == counted["done"]
    assert late > 0
