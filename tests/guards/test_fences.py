"""What guards take: locks that are held and have a fence, leaderships, and pairs. All else is refused before any I/O."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
from sqlalchemy.orm import Session

import wheel_lock
from tests.guards.databases import MariaDbServer, PostgresServer
from tests.guards.ways import asyncpg_address, engine_of
from tests.support.backend import Backend
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LockNotHeld
from wheel_lock.guards import Fence, create, fence_of, guard
from wheel_lock.guards.sqlalchemy import guarded
from wheel_lock.guards.statements import DIALECTS, dialect_named, guarding

pytestmark = pytest.mark.servers("embedded")


def test_the_name_of_a_fence_is_the_key_with_its_prefix(backend: Backend) -> None:
    context = backend.context(prefix="billing:")
    for lock in (
        context.lock("42", fencing=True),
        context.lock(b"\xff", fencing=True),
        context.reentrant_lock("again", fencing=True),
        context.fair_lock("fair", fencing=True),
        context.rw_lock("data", fencing=True).write(),
    ):
        with lock:
            name = lock.name if isinstance(lock.name, str) else "\\xff"
            assert fence_of(lock) == (f"billing:{name}", lock.fence)


def test_a_leadership_has_a_fence(context: LockContext) -> None:
    with context.leader("scheduler") as leader:
        eventually(lambda: leader.is_leader)
        assert leader.leadership is not None
        assert fence_of(leader.leadership) == ("scheduler", leader.leadership.fence)


def test_a_lock_that_is_renamed_while_it_is_held_keeps_its_fence(context: LockContext) -> None:
    lock = context.lock("old", fencing=True)
    lock.acquire()
    lock.name = "new"
    assert fence_of(lock) == ("old", lock.fence)
    lock.release()


def test_a_lock_that_is_not_held_any_longer_is_refused_before_any_statement(context: LockContext) -> None:
    lock = context.lock("account:42", fencing=True)
    with pytest.raises(LockNotHeld):
        guard(object(), lock)
    with lock:
        pass
    with pytest.raises(LockNotHeld):
        guard(object(), lock)
    lock = context.lock("account:42", fencing=True, timeout=0.3, renew=False)
    lock.acquire()
    eventually(lambda: not lock.is_held)
    with pytest.raises(LockLost):
        guard(object(), lock)


def test_a_lock_without_a_fence_is_refused(context: LockContext) -> None:
    for lock in (context.lock("plain"), context.semaphore("permits", permits=2), context.rw_lock("data").read()):
        with lock, pytest.raises(ValueError, match="has no fence"):
            fence_of(lock)
    with context.multi_lock(["a", "b"]) as both, pytest.raises(ValueError, match="one lock"):
        fence_of(both)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pair",
    [("", 1), (42, 1), ("name", -1), ("name", 2**53), ("name", True), ("name", 1.0), ("name", "1"), ("name", None)],
)
def test_a_pair_that_is_no_fence_is_refused(pair: Any) -> None:
    with pytest.raises(ValueError, match=r"must (be str or bytes|be a whole number)"):
        fence_of(pair)


def test_a_pair_from_elsewhere_is_a_fence() -> None:
    assert fence_of(("name", 7)) == Fence("name", 7) == fence_of((b"name", 7)) == fence_of(Fence("name", 7))


HELD = ("account:42", 7)


def test_what_is_no_connection_is_refused_without_a_password_that_may_be_in_it() -> None:
    url: Any = "postgresql://user:secret@host"
    calls: list[Callable[[], object]] = [lambda: guard(url, HELD), lambda: create(url), lambda: guard(HELD, url)]
    for refused in calls:
        with pytest.raises(ValueError, match="str") as raised:
            refused()
        assert "secret" not in str(raised.value)


class Subclass(sqlite3.Connection):
    """A user's own."""


def test_a_connection_of_a_subclass_is_one_of_its_kind() -> None:
    with closing(sqlite3.connect(":memory:", factory=Subclass)) as connection:
        connection.row_factory = lambda cursor, row: {"fence": row[0]}
        create(connection)
        guard(connection, HELD)
        with pytest.raises(wheel_lock.StaleFence) as raised:
            guard(connection, ("account:42", 6))
        assert raised.value.newer == 7


def test_sqlite_without_a_transaction_is_refused() -> None:
    settings: list[dict[str, Any]] = [{"isolation_level": None}]
    if sys.version_info >= (3, 12):
        settings.append({"autocommit": True})
    for each in settings:
        with closing(sqlite3.connect(":memory:", **each)) as connection:
            with pytest.raises(ValueError, match="BEGIN IMMEDIATE"):
                guard(connection, HELD)
            create(connection)
            connection.execute("BEGIN IMMEDIATE")
            guard(connection, HELD)
            connection.execute("COMMIT")


def test_psycopg_in_autocommit_mode_is_refused(postgres_server: PostgresServer) -> None:
    with closing(postgres_server.connect(autocommit=True)) as connection:
        create(connection)
        with pytest.raises(ValueError, match="begin a transaction"):
            guard(connection, HELD)
        with connection.transaction():
            guard(connection, HELD)
        with connection.pipeline(), pytest.raises(ValueError, match="pipeline"):
            guard(connection, HELD)


def test_psycopg2_in_autocommit_mode_is_refused(postgres_server: PostgresServer) -> None:
    with closing(psycopg2.connect(**postgres_server.address)) as connection:
        connection.autocommit = True
        with pytest.raises(ValueError, match="begin a transaction"):
            guard(connection, HELD)


def test_pymysql_in_autocommit_mode_is_refused(mariadb_server: MariaDbServer) -> None:
    with closing(mariadb_server.connect(autocommit=True)) as connection:
        create(connection)
        with pytest.raises(ValueError, match=r"connection\.begin"):
            guard(connection, HELD)
        connection.begin()
        guard(connection, HELD)
        connection.rollback()


def test_sqlalchemy_in_autocommit_mode_is_refused(postgres_server: PostgresServer) -> None:
    url = f"postgresql+psycopg://postgres@127.0.0.1:{postgres_server.port}/postgres"
    for engine in (
        sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT"),
        sqlalchemy.create_engine(url).execution_options(isolation_level="AUTOCOMMIT"),
        sqlalchemy.create_engine(url, connect_args={"autocommit": True}),
    ):
        with engine.connect() as connection, pytest.raises(ValueError, match="commits each statement"):
            guard(connection, HELD)
        engine.dispose()


def test_sqlalchemy_with_listeners_that_begin_themselves_is_guarded() -> None:
    with engine_of("sqlite://") as engine:
        sqlalchemy.event.listen(engine, "connect", lambda raw, record: setattr(raw, "isolation_level", None))
        sqlalchemy.event.listen(engine, "begin", lambda begun: begun.exec_driver_sql("BEGIN IMMEDIATE"))
        with engine.connect() as connection:
            create(connection)
            connection.commit()
            guard(connection, HELD)


def test_a_session_that_has_begun_without_a_guard_is_refused() -> None:
    with (
        engine_of("sqlite://") as engine,
        Session(engine) as session,
        session.begin(),
        pytest.raises(ValueError, match="within a transaction"),
        guarded(session, HELD),
    ):
        pass


def test_another_database_than_those_of_guards_is_refused() -> None:
    engine = sqlalchemy.create_mock_engine("mssql+pyodbc://", executor=lambda *_: None)
    with pytest.raises(ValueError, match=f"kind '{engine.dialect.name}', only for postgresql, sqlite"):
        dialect_named(engine.dialect.name)


async def test_each_way_of_calling_has_its_own_guard(postgres_server: PostgresServer) -> None:
    connection = await psycopg.AsyncConnection.connect(**postgres_server.address, autocommit=True)
    async with connection:
        with pytest.raises(ValueError, match=r"wheel_lock\.guards\.asyncio has the guard"):
            guard(connection, HELD)
        with pytest.raises(ValueError, match="begin a transaction"):
            await wheel_lock.guards.asyncio.guard(connection, HELD)
        await wheel_lock.guards.asyncio.create(connection)
    with (
        closing(postgres_server.connect()) as plain,
        pytest.raises(ValueError, match=r"wheel_lock\.guards has the guard"),
    ):
        await wheel_lock.guards.asyncio.guard(plain, HELD)
    engine = sqlalchemy.ext.asyncio.create_async_engine(
        f"postgresql+asyncpg://postgres@127.0.0.1:{postgres_server.port}/postgres", isolation_level="AUTOCOMMIT"
    )
    async with engine.connect() as one:
        await wheel_lock.guards.asyncio.create(one)
        with pytest.raises(ValueError, match="commits each statement"):
            await wheel_lock.guards.asyncio.guard(one, HELD)
    await engine.dispose()


async def test_asyncpg_without_a_transaction_is_refused(postgres_server: PostgresServer) -> None:
    connection = await asyncpg.connect(**asyncpg_address(postgres_server.address))
    with pytest.raises(ValueError, match="async with connection"):
        await wheel_lock.guards.asyncio.guard(connection, HELD)
    await wheel_lock.guards.asyncio.create(connection)
    await connection.close()


def test_a_driver_that_reports_nothing_guards_nothing() -> None:
    for name, answer in (("mysql", 0), ("mysql", None), ("sqlite", -1), ("sqlite", None)):
        steps = guarding(DIALECTS[name], Fence("name", 7))
        next(steps)
        with pytest.raises(wheel_lock.WheelLockError, match="nothing is guarded"):
            steps.send(answer)
    steps = guarding(DIALECTS["sqlite"], Fence("name", 7))
    next(steps)
    steps.send(0)
    with pytest.raises(wheel_lock.StaleFence, match="a newer one"):
        steps.throw(KeyError("a row of the user's own kind"))


def test_no_package_of_a_database_is_imported() -> None:
    code = "import sys, wheel_lock; wheel_lock.guards.guard; print([n for n in sys.modules if n in sys.argv[1:]])"
    names = ["sqlalchemy", "django", "psycopg", "psycopg2", "pymysql", "asyncpg", "sqlite3"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
