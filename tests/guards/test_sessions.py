"""Sessions of SQLAlchemy's ORM that would go on without a guard, or with one on another database."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from wheel_lock import StaleFence, guards
from wheel_lock.guards.connections import _commits_each
from wheel_lock.guards.sqlalchemy import guarded

NAME = "account:42"
NEWEST = 1_800_000_000_000_001


def database(path: Path) -> sqlalchemy.Engine:
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        guards.create(connection)
        connection.execute(sqlalchemy.text("CREATE TABLE account (balance INTEGER)"))
        guards.guard(connection, (NAME, NEWEST))
    return engine


def test_a_transaction_whose_guard_has_failed_writes_nothing(tmp_path: Path) -> None:
    engine, write = database(tmp_path / "one"), sqlalchemy.text("INSERT INTO account VALUES (1)")
    with Session(engine) as session, guarded(session, (NAME, NEWEST - 1)):
        with pytest.raises(StaleFence):
            session.execute(write)
        with pytest.raises(InvalidRequestError):
            session.execute(write)
        session.rollback()
        with pytest.raises(StaleFence):
            session.execute(write)
        session.rollback()
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT count(*) FROM account")).scalar() == 0
    engine.dispose()


def test_a_scoped_session_is_guarded(tmp_path: Path) -> None:
    engine = database(tmp_path / "one")
    session = scoped_session(sessionmaker(engine))
    with guarded(session, (NAME, NEWEST - 1)), pytest.raises(StaleFence):
        session.execute(sqlalchemy.text("SELECT 1"))
    session.remove()
    engine.dispose()


def test_a_session_with_several_databases_has_no_guard_of_its_own(tmp_path: Path) -> None:
    engine = database(tmp_path / "one")
    table = sqlalchemy.Table("account", sqlalchemy.MetaData())
    with Session(engine, binds={table: engine}) as session:
        with pytest.raises(ValueError, match="several databases"):
            guards.guard(session, (NAME, NEWEST))
        guards.guard(session.connection(bind_arguments={"clause": table}), (NAME, NEWEST))
    engine.dispose()


@pytest.mark.parametrize("options", [{"isolation_level": None}, {"autocommit": True}])
def test_a_driver_that_commits_each_statement_is_refused(options: dict[str, object]) -> None:
    class Adapter:
        in_transaction = False
        isolation_level: object = ""

    adapter = Adapter()
    assert not _commits_each(adapter)
    for name, value in options.items():
        setattr(adapter, name, value)
    assert _commits_each(adapter)
