"""A guard for each transaction of a session of SQLAlchemy's ORM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import event

from wheel_lock.guards.connections import guard, session_of
from wheel_lock.guards.fences import Fenced

__all__ = ["guarded"]

AnySession = TypeVar("AnySession")


@contextmanager
def guarded(session: AnySession, lock: Fenced) -> Iterator[AnySession]:
    """Have each transaction that ``session`` begins within the block begin with a guard.

    A savepoint has none of its own. With several engines each connection has one, so each database needs the table.

    Args:
        session: A ``Session`` or an ``AsyncSession``; in both cases the block is entered with ``with``. Of a scoped session
            that of the caller: not the next one, which ``remove()`` within the block makes room for.
        lock: A lock with ``fencing=True`` that is held; or a leadership; or a pair of a name and a fence.

    Returns:
        The session.

    Raises:
        ValueError: The session is within a transaction already, which has begun without a guard.
    """
    inner = session_of(session)
    threads: Any = getattr(inner, "sync_session", inner)
    if threads.in_transaction():
        raise ValueError(
            "the session is within a transaction already: enter guarded() before, or call guard() first in it"
        )

    def after_begin(begun: Any, transaction: Any, connection: Any) -> None:
        if not transaction.nested:
            try:
                guard(connection, lock)
            except BaseException:
                connection.invalidate()  # else the transaction, which has begun, could go on without a guard
                raise

    event.listen(threads, "after_begin", after_begin)
    try:
        yield session
    finally:
        event.remove(threads, "after_begin", after_begin)
