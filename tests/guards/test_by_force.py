"""Two holders at once by force: with a guard nothing is written late, and without one the same test sees late writes.

GUARDS_TRANSACTIONS (400) is the number of transactions with each database.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.guards.databases import MariaDbServer, PostgresServer
from tests.guards.writer import FAILURES, NAME, PLACES, STOPPING, WRITE, connect
from tests.support.fixtures import fixture_of
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually, state_of
from wheel_lock import LockContext, guards

TRANSACTIONS = int(os.environ.get("GUARDS_TRANSACTIONS", "400"))
KINDS = ["postgresql", "postgresql, serializable", "mariadb", "sqlite"]


forks = fixture_of(lambda: ForkServer("tests.guards.writer"), "module")


class Race:
    """Two writers, and what they have written."""

    def __init__(self, kind: str, address: Any, redis_server: RedisServer, forks: ForkServer) -> None:
        self.stops: Counter[str] = Counter()
        self._kind = kind
        self._address = address
        self._client = redis_server.admin
        self._url = redis_server.url
        self._forks = forks
        with closing(connect(kind, address)) as connection:
            cursor = connection.cursor()
            if kind == "sqlite":
                cursor.execute("PRAGMA journal_mode = wal")
            cursor.execute("DROP TABLE IF EXISTS register")
            cursor.execute("DROP TABLE IF EXISTS wheel_lock_fences")
            cursor.execute("CREATE TABLE register (fence BIGINT, writes INTEGER, late INTEGER)")
            cursor.execute("INSERT INTO register VALUES (0, 0, 0)")
            guards.create(connection)
            connection.commit()

    def register(self) -> tuple[int, int]:
        with closing(connect(self._kind, self._address)) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT writes, late FROM register")
            writes, late = cursor.fetchone()
            return writes, late

    def run(self, transactions: int, *, guarded: bool) -> Counter[str]:
        """Have both write as often, and a third holder whenever one has stopped; return what they have counted."""
        settings = {"kind": self._kind, "address": self._address, "url": self._url, "guarded": guarded}
        reading, writing = os.pipe()
        text = json.dumps({**settings, "transactions": transactions})
        children = [self._forks.start(text, fds=[writing]) for _ in range(2)]
        os.close(writing)
        counted: Counter[str] = Counter()
        try:
            with open(reading) as lines, LockContext(self._client) as context:
                for line in lines:
                    said = json.loads(line)
                    if "place" in said:
                        self._overtake(context, said["pid"], said["place"], guarded)
                        counted["done"] += 1
                    else:
                        counted.update(said)
        except BaseException:
            for child in children:
                os.kill(child.pid, signal.SIGKILL)  # one that has stopped would stay
            raise
        assert [child.wait() for child in children] == [0, 0]
        return counted

    def _overtake(self, context: LockContext, pid: int, place: str, guarded: bool) -> None:
        """Write under the lock while a holder is stopped; or behind it, if it is within its transaction."""
        self.stops[place] += 1
        eventually(lambda: state_of(pid) == "T")
        lock = context.lock(NAME, fencing=True, retry_every=0.01)  # a deletion wakes no waiter
        with lock, closing(connect(self._kind, self._address)) as connection:
            if place != PLACES[0]:
                os.kill(pid, signal.SIGCONT)
            while not written(connection, guards.fence_of(lock), guarded):
                pass
            if place == PLACES[0]:
                os.kill(pid, signal.SIGCONT)
        # Not before: the other one would stop within a transaction that this one waits for.
        self._client.delete(STOPPING)


def written(connection: Any, held: guards.Fence, guarded: bool) -> bool:
    try:
        if guarded:
            guards.guard(connection, held)
        connection.cursor().execute(WRITE.format(held.fence))
        connection.commit()
    except FAILURES:
        connection.rollback()
        return False
    return True


@pytest.fixture(params=KINDS)
def race(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer, forks: ForkServer) -> Race:
    if request.param == "sqlite":
        return Race("sqlite", str(tmp_path / "data.sqlite"), redis_server, forks)
    name = "mariadb_server" if request.param == "mariadb" else "postgres_server"
    server: MariaDbServer | PostgresServer = request.getfixturevalue(name)
    server.connect().close()  # which makes the database of MariaDB
    return Race(request.param, server.address, redis_server, forks)


@pytest.mark.slow
def test_with_a_guard_no_write_is_late(race: Race) -> None:
    counted = race.run(TRANSACTIONS // 2, guarded=True)
    writes, late = race.register()
    assert late == 0
    assert writes == counted["done"] >= TRANSACTIONS // 2 * 2
    assert counted["refused"] > 0
    assert set(race.stops) == set(PLACES)


@pytest.mark.slow
@pytest.mark.parametrize("race", ["postgresql", "mariadb", "sqlite"], indirect=True)
def test_without_a_guard_writes_are_late(race: Race) -> None:
    counted = race.run(60, guarded=False)
    writes, late = race.register()
    assert writes == counted["done"]
    assert late > 0
