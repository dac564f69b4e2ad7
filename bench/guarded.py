"""What a guard costs a transaction that writes one row, beside the same transaction without one.

    python -m bench.guarded [--transactions 1000] [--rounds 5]

The two take turns on one connection. The servers are those of the tests, which wait for no disk: so a transaction is cheap
there. SQLite has its defaults. The last column is the cost in round trips: a `SELECT 1` is one.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.page import machine, markdown
from bench.status_line import StatusLine
from tests.guards.databases import MariaDbServer, PostgresServer
from wheel_lock import guards

FENCE = guards.Fence("account:42", 7)

LINE = StatusLine(sys.stderr)


@contextmanager
def _sqlite() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder, closing(sqlite3.connect(Path(folder) / "data.sqlite")) as connection:
        yield connection


@contextmanager
def _served(server: PostgresServer | MariaDbServer) -> Iterator[Any]:
    with server, closing(server.connect()) as connection:
        yield connection


DATABASES: dict[str, Callable[[], Any]] = {
    "PostgreSQL, psycopg": lambda: _served(PostgresServer()),
    "MariaDB, PyMySQL": lambda: _served(MariaDbServer()),
    "SQLite": _sqlite,
}


def took_us(work: Callable[[], object], times: int) -> float:
    """Return how long one call takes, in microseconds."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times * 1e6


def measure(connection: Any, transactions: int, rounds: int) -> tuple[float, float, float]:
    """Return the medians of a transaction, of one with a guard, and of a round trip, in microseconds."""
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
    cursor.execute("INSERT INTO account VALUES (42, 0)")
    guards.create(connection)
    connection.commit()

    def write() -> None:
        cursor.execute("UPDATE account SET balance = balance + 1 WHERE id = 42")
        connection.commit()

    def guarded() -> None:
        guards.guard(connection, FENCE)
        write()

    def ask() -> None:
        cursor.execute("SELECT 1")
        cursor.fetchall()

    works = (write, guarded, ask)
    for work in works:
        took_us(work, 100)
    connection.rollback()
    taken = [[took_us(work, transactions) for work in works] for _ in range(rounds)]
    plain, with_guard, trip = (median(column) for column in zip(*taken, strict=True))
    return plain, with_guard, trip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.guarded")
    parser.add_argument("--transactions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    rows = []
    for name, opened in DATABASES.items():
        LINE.say(name)
        with opened() as connection:
            plain, guarded, trip = measure(connection, options.transactions, options.rounds)
        cost = guarded - plain
        rows.append([name, f"{plain:.0f} us", f"{guarded:.0f} us", f"{cost:.0f} us", f"{cost / trip:.1f}"])
    LINE.say("")
    print(f"{machine()}, medians of {options.rounds} rounds of {options.transactions} transactions\n")
    print(markdown(["database", "one row written", "with a guard", "the guard", "in round trips"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
