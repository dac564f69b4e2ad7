"""What a guard does at each isolation level of each database, beside another transaction that is open."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.guards.databases import MariaDbServer, PostgresServer
from tests.guards.ways import TABLES
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import StaleFence, guards
from wheel_lock.guards import guard

NAME = "account:42"
READ = "SELECT max(number) FROM ledger"


class Database:
    """One database at one isolation level.

    Attributes:
        has_snapshots: True if the guard itself fails where another transaction has changed the row since it began.
        failure: The error for that.
    """

    def __init__(self, connect: Callable[[], Any], waiting: str, has_snapshots: bool, failure: type[Exception]) -> None:
        self._connect = connect
        self._waiting = waiting
        self.has_snapshots = has_snapshots
        self.failure = failure
        self._stack = ExitStack()

    def begin(self) -> Any:
        """A new connection, which has executed nothing."""
        return self._stack.enter_context(closing(self._connect()))

    def is_waiting(self) -> bool:
        with closing(self._connect()) as connection:
            return bool(value(connection, self._waiting) == 1)

    def close(self) -> None:
        self._stack.close()


def value(connection: Any, query: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(query)
    return cursor.fetchone()[0]


def write(connection: Any, number: int) -> None:
    connection.cursor().execute(f"INSERT INTO ledger VALUES ({number})")


def _postgres(server: PostgresServer, level: psycopg.IsolationLevel) -> Database:
    def connect() -> psycopg.Connection[Any]:
        connection = server.connect()
        connection.isolation_level = level
        return connection

    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    has_snapshots = level >= psycopg.IsolationLevel.REPEATABLE_READ
    return Database(connect, waiting, has_snapshots, psycopg.errors.SerializationFailure)


def _mariadb(server: MariaDbServer, level: str) -> Database:
    level, _, isolation = level.partition(", ")
    start = f"SET SESSION TRANSACTION ISOLATION LEVEL {level}, innodb_snapshot_isolation = {isolation or 'OFF'}"
    waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"

    def connect() -> Any:
        connection = server.connect()
        with connection.cursor() as cursor:
            for setting in start.split(", "):
                cursor.execute(setting if setting.startswith("SET") else f"SET SESSION {setting}")
        connection.commit()
        return connection

    return Database(connect, waiting, False, pymysql.err.OperationalError)


MARIADB = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "REPEATABLE READ, ON", "SERIALIZABLE"]


@pytest.fixture(params=[*psycopg.IsolationLevel, *MARIADB], ids=str)
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    if isinstance(request.param, psycopg.IsolationLevel):
        made = _postgres(request.getfixturevalue("postgres_server"), request.param)
    else:
        made = _mariadb(request.getfixturevalue("mariadb_server"), request.param)
    connection = made.begin()
    for name in TABLES:
        connection.cursor().execute(f"DROP TABLE IF EXISTS {name}")
    connection.cursor().execute("CREATE TABLE ledger (number INTEGER)")
    guards.create(connection)
    write(connection, 0)
    guard(connection, (NAME, 1))
    connection.commit()
    yield made
    made.close()


def test_a_later_holder_waits_for_an_earlier_ones_commit_and_sees_it(database: Database) -> None:
    earlier, later = database.begin(), database.begin()
    guard(earlier, (NAME, 2))
    write(earlier, 2)
    passing = Background(lambda: guard(later, (NAME, 3)))
    eventually(database.is_waiting)
    earlier.commit()
    if database.has_snapshots:
        with pytest.raises(database.failure):
            passing.result()
        later.rollback()
        guard(later, (NAME, 3))  # as a caller who tries again does
    else:
        passing.result()
    assert value(later, READ) == 2
    later.commit()
    with pytest.raises(StaleFence):
        guard(earlier, (NAME, 2))


@pytest.mark.parametrize("name", [NAME, "a name without a row"])
def test_an_earlier_holder_that_comes_while_a_later_one_writes_is_refused(database: Database, name: str) -> None:
    earlier, later = database.begin(), database.begin()
    guard(later, (name, 3))
    passing = Background(lambda: guard(earlier, (name, 2)))
    eventually(database.is_waiting)
    later.commit()
    with pytest.raises(database.failure if database.has_snapshots else StaleFence):
        passing.result()
    earlier.rollback()
    with pytest.raises(StaleFence):
        guard(earlier, (name, 2))


def test_an_earlier_holder_passes_if_the_later_one_rolls_back(database: Database) -> None:
    earlier, later = database.begin(), database.begin()
    guard(later, (NAME, 3))
    passing = Background(lambda: guard(earlier, (NAME, 2)))
    eventually(database.is_waiting)
    later.rollback()
    passing.result()
    earlier.commit()


def test_a_snapshot_from_before_the_later_holder_lets_no_earlier_one_pass(database: Database) -> None:
    earlier, later = database.begin(), database.begin()
    assert value(earlier, READ) == 0  # which a guard should precede
    guard(later, (NAME, 3))
    later.commit()
    with pytest.raises((StaleFence, database.failure)):
        guard(earlier, (NAME, 2))


SQLITE: list[dict[str, Any]] = [{}, {"isolation_level": "IMMEDIATE"}, {"isolation_level": "EXCLUSIVE"}]
if sys.version_info >= (3, 12):
    SQLITE.append({"autocommit": False})


@pytest.mark.parametrize("settings", SQLITE, ids=str)
@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite_has_one_writer_from_the_guard_to_the_commit(
    tmp_path: Path, settings: dict[str, Any], journal: str
) -> None:
    def connect() -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(tmp_path / "data", timeout=0.0, **settings)
        return connection

    with closing(sqlite3.connect(tmp_path / "data", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        guards.create(connection)
    with closing(connect()) as earlier, closing(connect()) as later:
        guard(earlier, (NAME, 1))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            guard(later, (NAME, 2))
        later.rollback()
        earlier.commit()
        guard(later, (NAME, 2))
        later.commit()
        with pytest.raises(StaleFence) as raised:
            guard(earlier, (NAME, 1))
        assert raised.value.newer == 2


def test_a_snapshot_of_sqlite_from_before_the_later_holder_lets_no_earlier_one_pass(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "data")) as earlier, closing(sqlite3.connect(tmp_path / "data")) as later:
        earlier.execute("PRAGMA journal_mode = wal")
        guards.create(earlier)
        earlier.execute("BEGIN")
        assert value(earlier, "SELECT count(*) FROM wheel_lock_fences") == 0
        guard(later, (NAME, 2))
        later.commit()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            guard(earlier, (NAME, 1))
