"""Guards for connections of databases, by what the connection is.

`_DRIVERS` is the one table: the class of a connection, by module and name, so that no package of a database is imported
here. Each driver refuses a connection without an open transaction, where the row lock would end at once, before anything is
sent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from wheel_lock.guards.fences import Fenced, fence_of
from wheel_lock.guards.statements import DIALECTS, Dialect, Statement, Steps, creating, dialect_named, guarding

_IDLE = 0  # PQTRANS_IDLE: no transaction is open
_IN_TRANSACTION = 1  # SERVER_STATUS_IN_TRANS
_PARAMETER = re.compile(r":(\w+)")


class Driver(NamedTuple):
    """How a kind of connection is used."""

    dialect: Callable[[Any], Dialect]
    check: Callable[[Any], None]  # raises ValueError if the connection would not keep the row until a commit
    execute: Callable[[Any, Statement], int | Awaitable[int | None] | None]  # returns what the statement asks for
    is_async: bool = False
    unwrap: Callable[[Any], Any] = lambda connection: connection  # of what the user has given


def guard(connection: object, lock: Fenced) -> None:
    """Refuse to go on with the transaction of ``connection`` if the holder of ``lock`` was overtaken.

    It must be the first statement of the transaction: what was read before it may be from before an earlier holder's
    commit. It takes one round trip, and locks the row of the lock's name until the transaction ends: a guard of another
    transaction under that name waits for this one, also if it is of the same holder.

    Args:
        connection: Of psycopg, psycopg2, sqlite3 or PyMySQL; a connection of SQLAlchemy, or a session, of which the default
            connection is guarded; or one of Django.
        lock: A lock with ``fencing=True`` that is held; or a leadership; or a pair of a name and a fence (`fence_of`). In
            another thread or task than the holder's pass the pair, as the holder has taken it.

    Raises:
        StaleFence: A later holder has passed its guard; roll back, as after every error. An equal fence passes.
        NoFenceTable: The table is missing, see `create`.
        LockLost, LockNotHeld: This process knows that the lock is lost, or not held. Nothing has been sent.
        ValueError: The lock has no fence, or the connection is in autocommit mode, or of no such package. Nothing has been
            sent.
    """
    held = fence_of(lock)
    driver, connection = _blocking(connection)
    driver.check(connection)
    _run(carry_out(guarding(driver.dialect(connection), held), driver, connection))


def create(connection: object) -> None:
    """Make the table ``wheel_lock_fences`` if there is none, for a migration. It does not commit.

    Raises:
        ValueError: The connection is of a package that guards do not know.
    """
    driver, connection = _blocking(connection)
    _run(carry_out(creating(driver.dialect(connection)), driver, connection))


def _blocking(connection: object) -> tuple[Driver, Any]:
    driver = driver_for(connection, is_async=False)
    return driver, driver.unwrap(connection)


def _run(steps: Coroutine[Any, Any, None]) -> None:
    try:
        steps.send(None)  # it never suspends, because the driver blocks
    except StopIteration:
        pass


async def carry_out(steps: Steps, driver: Driver, connection: Any) -> None:
    """Have a driver execute all statements of ``steps``."""
    try:
        statement = next(steps)
        while True:
            try:
                answer: Any = driver.execute(connection, statement)
                if driver.is_async:
                    answer = await answer
            except Exception as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(answer)
    except StopIteration:
        pass


def driver_for(connection: object, *, is_async: bool) -> Driver:
    """Return the driver of a connection. Raises ValueError if there is none, or it is for the other way of calling."""
    driver = driver_of(connection)
    if driver is not None and driver.is_async is is_async:
        return driver
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"  # its repr(), of a URL say, may show a password
    if driver is None:
        raise ValueError(f"no guard knows connections of the class {kind}")
    where = "wheel_lock.guards.asyncio" if driver.is_async else "wheel_lock.guards"
    raise ValueError(f"{where} has the guard for connections of the class {kind}")


def driver_of(connection: object) -> Driver | None:
    """Return the driver of a connection, which may be of a subclass; None if there is none."""
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(connection).__mro__)
    return next((_DRIVERS[name] for name in names if name in _DRIVERS), None)


# DB-API


def _refuse(remedy: str) -> None:
    raise ValueError(
        f"this connection commits each statement, so the guard's row would be free again before the write: {remedy}"
    )


def _check_psycopg(connection: Any) -> None:
    if connection.pgconn.pipeline_status:
        raise ValueError("in pipeline mode a guard cannot see its result: call it before the pipeline begins")
    _check_psycopg2(connection)


def _check_psycopg2(connection: Any) -> None:
    if connection.autocommit and connection.info.transaction_status == _IDLE:
        _refuse("begin a transaction first (psycopg: `with connection.transaction():`), or set autocommit to False")


def _check_sqlite(connection: Any) -> None:
    # Without a transaction, and before Python 3.12, isolation_level says if one begins at the INSERT of a guard.
    begins = connection.isolation_level is not None and getattr(connection, "autocommit", -1) is not True
    if not connection.in_transaction and not begins:
        _refuse("execute BEGIN IMMEDIATE first, or leave isolation_level and autocommit as they are by default")


def _check_pymysql(connection: Any) -> None:
    if connection.get_autocommit() and not connection.server_status & _IN_TRANSACTION:
        _refuse("call connection.begin() first, or connection.autocommit(False)")


def _pyformat(statement: Statement) -> Statement:
    """Return it with parameters as ``%(name)s``."""
    return statement._replace(text=_PARAMETER.sub(r"%(\1)s", statement.text))


def _execute_pyformat(connection: Any, statement: Statement) -> int | None:
    return _execute(connection, _pyformat(statement))


def _execute(connection: Any, statement: Statement) -> int | None:
    cursor = connection.cursor()
    try:
        cursor.execute(statement.text, statement.parameters)
        return _answer(cursor, statement)
    finally:
        cursor.close()


def _answer(cursor: Any, statement: Statement) -> int | None:
    if statement.asks == "value":
        return _only_value(cursor.fetchone())
    rows_or_id: int | None = cursor.lastrowid if statement.asks == "id" else cursor.rowcount
    return rows_or_id


def _only_value(row: Any) -> int | None:
    """Return the only value of a row, of whatever kind the user's connection makes rows."""
    value = next(iter(row.values())) if isinstance(row, Mapping) else row[0]
    return int(value)


# SQLAlchemy


def session_of(session: Any) -> Any:
    """Return the session of this thread or task, if that is a scoped one; else the session itself."""
    return session() if callable(session) else session


def _connection_of(session: Any) -> Any:
    session = session_of(session)
    if getattr(session, "binds", None) or getattr(session, "_Session__binds", None):  # of SQLAlchemy 2.1, of 2.0
        raise ValueError(
            "the session has several databases: use wheel_lock.guards.sqlalchemy.guarded, or guard the connection that is "
            "written to, as from session.connection(bind_arguments=...)"
        )
    return session.connection()


def _commits_each(adapter: Any) -> bool:
    """Return whether a connection of SQLAlchemy's, of whatever driver, is in autocommit mode."""
    ask = getattr(adapter, "get_autocommit", None)
    if (ask() if callable(ask) else getattr(adapter, "autocommit", None)) is True:
        return True
    return getattr(adapter, "isolation_level", "") is None and not getattr(adapter, "in_transaction", True)  # of SQLite


def _check_sqlalchemy(connection: Any) -> None:
    of_engine = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if connection.get_execution_options().get("isolation_level", of_engine) == "AUTOCOMMIT":
        _refuse("give this connection, or its engine, another isolation_level")
    if not connection.in_transaction():
        connection.begin()  # as the first statement would; users' listeners may send BEGIN
    raw = connection.connection.driver_connection
    driver = driver_of(raw)
    if driver is not None and driver is not _ASYNCPG:  # there SQLAlchemy begins with the first statement
        driver.check(raw)
    elif _commits_each(connection.connection.dbapi_connection):
        _refuse("have the driver begin transactions")


def _execute_sqlalchemy(connection: Any, statement: Statement) -> int | None:
    from sqlalchemy import BigInteger, bindparam, text

    clause = text(statement.text)
    if "fence" in statement.parameters:
        clause = clause.bindparams(bindparam("fence", type_=BigInteger))
    return _answer(connection.execute(clause, dict(statement.parameters)), statement)


# Django


def _check_django(connection: Any) -> None:
    if not connection.in_atomic_block and connection.get_autocommit():
        _refuse("call the guard within transaction.atomic(), or use wheel_lock.guards.django.guarded")


# asyncio


def _check_asyncpg(connection: Any) -> None:
    if not connection.is_in_transaction():
        _refuse("call the guard within `async with connection.transaction():`")


async def _execute_psycopg_async(connection: Any, statement: Statement) -> int | None:
    async with connection.cursor() as cursor:
        await cursor.execute(_pyformat(statement).text, statement.parameters)
        if statement.asks == "value":
            return _only_value(await cursor.fetchone())
        affected: int = cursor.rowcount
        return affected


async def _execute_asyncpg(connection: Any, statement: Statement) -> int | None:
    places = {name: f"${place}" for place, name in enumerate(statement.parameters, 1)}
    text = _PARAMETER.sub(lambda name: places[name[1]], statement.text)
    if statement.asks == "value":
        return _only_value(await connection.fetchrow(text, *statement.parameters.values()))
    status: str = await connection.execute(text, *statement.parameters.values())
    return int(status.rpartition(" ")[2]) if statement.asks else None  # such as "INSERT 0 1"


def _postgresql(connection: object) -> Dialect:
    return DIALECTS["postgresql"]


_ASYNCPG = Driver(_postgresql, _check_asyncpg, _execute_asyncpg, is_async=True)
_SQLALCHEMY = Driver(lambda connection: dialect_named(connection.dialect.name), _check_sqlalchemy, _execute_sqlalchemy)
_SESSION = _SQLALCHEMY._replace(unwrap=_connection_of)
_SQLALCHEMY_ASYNC = _SQLALCHEMY._replace(is_async=True)
_DJANGO = Driver(lambda connection: dialect_named(connection.vendor), _check_django, _execute_pyformat)
_DRIVERS: Mapping[str, Driver] = {
    "psycopg.Connection": Driver(_postgresql, _check_psycopg, _execute_pyformat),
    "psycopg2.extensions.connection": Driver(_postgresql, _check_psycopg2, _execute_pyformat),
    "sqlite3.Connection": Driver(lambda _: DIALECTS["sqlite"], _check_sqlite, _execute),
    "pymysql.connections.Connection": Driver(lambda _: DIALECTS["mysql"], _check_pymysql, _execute_pyformat),
    "sqlalchemy.engine.base.Connection": _SQLALCHEMY,
    "sqlalchemy.orm.session.Session": _SESSION,
    "sqlalchemy.orm.scoping.scoped_session": _SESSION,
    "django.db.backends.base.base.BaseDatabaseWrapper": _DJANGO,
    "django.utils.connection.ConnectionProxy": _DJANGO,
    "psycopg.AsyncConnection": Driver(_postgresql, _check_psycopg, _execute_psycopg_async, is_async=True),
    "asyncpg.connection.Connection": _ASYNCPG,
    "asyncpg.pool.PoolConnectionProxy": _ASYNCPG,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _SQLALCHEMY_ASYNC,
    "sqlalchemy.ext.asyncio.session.AsyncSession": _SQLALCHEMY_ASYNC,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _SQLALCHEMY_ASYNC,
}
