"""Each library by which a user writes to a database, as one kind of object: `Way`."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm

from tests.guards.databases import MariaDbServer, PostgresServer
from tests.support import django_settings
from wheel_lock import guards
from wheel_lock.guards import Fenced
from wheel_lock.guards import sqlalchemy as guarded_sqlalchemy

WRITE = "INSERT INTO ledger VALUES ({})"
TABLES = ("wheel_lock_fences", "ledger")


class Way:
    """A database and a library. `write` is one guarded transaction that writes one number."""

    def __init__(self, library: str, connect: Callable[..., Any], address: Any) -> None:
        self.library = library
        self.connect = connect
        self.address = address

    def write(self, lock: Fenced, number: int) -> None:
        if self.library in ASYNC:
            asyncio.run(ASYNC[self.library](self.address, lock, WRITE.format(number)))
        else:
            SYNC[self.library](self.connect, self.address, lock, WRITE.format(number))

    def prepare(self, *, table: bool = True) -> None:
        """Make the tables anew; without the one of guards unless `table`."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            for name in TABLES:
                cursor.execute(f"DROP TABLE IF EXISTS {name}")
            cursor.execute("CREATE TABLE ledger (number INTEGER)")
            if table:
                guards.create(connection)
            connection.commit()

    def written(self) -> list[int]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT number FROM ledger ORDER BY number")
            return [number for (number,) in cursor.fetchall()]


def _dbapi(connect: Callable[..., Any], url: str, lock: Fenced, statement: str) -> None:
    with closing(connect()) as connection:
        guards.guard(connection, lock)
        connection.cursor().execute(statement)
        connection.commit()


def _psycopg_block(connect: Callable[..., Any], url: str, lock: Fenced, statement: str) -> None:
    with connect(autocommit=True) as connection, connection.transaction():
        guards.guard(connection, lock)
        connection.execute(statement)


@contextmanager
def engine_of(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    yield engine
    engine.dispose()


def _core(connect: Callable[..., Any], url: str, lock: Fenced, statement: str) -> None:
    with engine_of(url) as engine, engine.connect() as connection:
        guards.guard(connection, lock)
        connection.execute(sqlalchemy.text(statement))
        connection.commit()


def _session(connect: Callable[..., Any], url: str, lock: Fenced, statement: str) -> None:
    with engine_of(url) as engine, sqlalchemy.orm.Session(engine) as session, session.begin():
        guards.guard(session, lock)
        session.execute(sqlalchemy.text(statement))


def _guarded_session(connect: Callable[..., Any], url: str, lock: Fenced, statement: str) -> None:
    with (
        engine_of(url) as engine,
        sqlalchemy.orm.Session(engine) as session,
        guarded_sqlalchemy.guarded(session, lock),
        session.begin(),
        session.begin_nested(),
    ):
        session.execute(sqlalchemy.text(statement))


def _django(connect: Callable[..., Any], alias: str, lock: Fenced, statement: str) -> None:
    from django.db import connections

    from wheel_lock.guards.django import guarded

    try:
        with guarded(lock, alias), connections[alias].cursor() as cursor:
            cursor.execute(statement)
    finally:
        connections[alias].close()


async def _psycopg_async(address: dict[str, Any], lock: Fenced, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(**address) as connection:
        await guards.asyncio.guard(connection, lock)
        await connection.execute(statement)


def asyncpg_address(address: dict[str, Any]) -> dict[str, Any]:
    return {"database" if name == "dbname" else name: value for name, value in address.items()}


async def _asyncpg(address: dict[str, Any], lock: Fenced, statement: str) -> None:
    connection = await asyncpg.connect(**asyncpg_address(address))
    try:
        async with connection.transaction():
            await guards.asyncio.guard(connection, lock)
            await connection.execute(statement)
    finally:
        await connection.close()


async def _asyncpg_pool(address: dict[str, Any], lock: Fenced, statement: str) -> None:
    async with (
        asyncpg.create_pool(**asyncpg_address(address), min_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        await guards.asyncio.guard(connection, lock)
        await connection.execute(statement)


async def _core_async(url: str, lock: Fenced, statement: str) -> None:
    engine = sqlalchemy.ext.asyncio.create_async_engine(url, poolclass=sqlalchemy.NullPool)
    async with engine.connect() as connection:
        await guards.asyncio.guard(connection, lock)
        await connection.execute(sqlalchemy.text(statement))
        await connection.commit()
    await engine.dispose()


async def _guarded_async_session(url: str, lock: Fenced, statement: str) -> None:
    engine = sqlalchemy.ext.asyncio.create_async_engine(url, poolclass=sqlalchemy.NullPool)
    async with sqlalchemy.ext.asyncio.AsyncSession(engine) as session:
        with guarded_sqlalchemy.guarded(session, lock):
            async with session.begin():
                await session.execute(sqlalchemy.text(statement))
    await engine.dispose()


SYNC: dict[str, Callable[..., None]] = {
    "dbapi": _dbapi,
    "psycopg block": _psycopg_block,
    "core": _core,
    "session": _session,
    "guarded session": _guarded_session,
    "django": _django,
}
ASYNC: dict[str, Callable[..., Coroutine[None, None, None]]] = {
    "psycopg async": _psycopg_async,
    "asyncpg": _asyncpg,
    "asyncpg pool": _asyncpg_pool,
    "core async": _core_async,
    "guarded async session": _guarded_async_session,
}
# Library, database, and for SQLAlchemy the driver.
WAYS = [
    ("dbapi", "psycopg"),
    ("dbapi", "psycopg2"),
    ("dbapi", "sqlite"),
    ("dbapi", "mariadb"),
    ("dbapi", "mariadb, found rows"),
    ("psycopg block", "psycopg"),
    ("core", "postgresql+psycopg"),
    ("core", "postgresql+psycopg2"),
    ("core", "mysql+pymysql"),
    ("core", "mariadb+pymysql"),
    ("core", "sqlite"),
    ("session", "postgresql+psycopg"),
    ("guarded session", "postgresql+psycopg"),
    ("guarded session", "sqlite"),
    ("django", "postgresql"),
    ("django", "sqlite"),
    ("psycopg async", "psycopg"),
    ("asyncpg", "asyncpg"),
    ("asyncpg pool", "asyncpg"),
    ("core async", "postgresql+asyncpg"),
    ("core async", "postgresql+psycopg"),
    ("guarded async session", "postgresql+asyncpg"),
]
FOUND_ROWS = 2  # pymysql.constants.CLIENT.FOUND_ROWS


def way(request: pytest.FixtureRequest, folder: Path, library: str, database: str) -> Way:
    """The way of that name, on the server of the session."""
    address: Any
    if "sqlite" in database:
        path = folder / "data.sqlite"

        def connect(**settings: Any) -> Any:
            return sqlite3.connect(path, timeout=0.0, **settings)

        address = f"sqlite:///{path}"
    else:
        maria = "mariadb" in database or "mysql" in database
        server: MariaDbServer | PostgresServer = request.getfixturevalue(
            "mariadb_server" if maria else "postgres_server"
        )
        place: dict[str, Any] = server.address
        address = place
        if "+" in database:
            name = "test" if maria else "postgres"
            address = f"{database}://{place['user']}@127.0.0.1:{place['port']}/{name}"

        def connect(**settings: Any) -> Any:
            if database == "psycopg2":
                return psycopg2.connect(**place, **settings)
            return server.connect(**settings, **({"client_flag": FOUND_ROWS} if "found" in database else {}))

    if library == "django":
        address = django_alias(database, folder / "data.sqlite", None if "sqlite" in database else address)
    return Way(library, connect, address)


def django_alias(database: str, path: Path, address: dict[str, Any] | None) -> str:
    """Make that database known to Django; return its alias."""
    from django.apps import apps
    from django.db import connections

    django_settings.configure()
    apps.populate(())
    found: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
    if address is not None:
        found = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": address["user"]}
        found |= {"HOST": address["host"], "PORT": address["port"]}
    alias = f"guards {database}"
    connections.settings[alias] = found
    connections.settings.setdefault("default", found)
    connections.settings = connections.configure_settings(connections.settings)
    if hasattr(connections._connections, alias):
        del connections[alias]
    return alias
