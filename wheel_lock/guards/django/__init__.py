"""Guards for Django: an app whose migration makes the table, and a transaction that begins with a guard.

Add ``"wheel_lock.guards.django"`` to ``INSTALLED_APPS`` and run ``manage.py migrate``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from wheel_lock.guards.connections import guard
from wheel_lock.guards.fences import Fenced

__all__ = ["guarded"]


@contextmanager
def guarded(lock: Fenced, using: str | None = None, *, savepoint: bool = True, durable: bool = False) -> Iterator[None]:
    """Run the block as ``transaction.atomic()`` does, with a guard as its first statement.

    Args:
        lock: A lock with ``fencing=True`` that is held; or a leadership; or a pair of a name and a fence.
        using: The alias of the database; the default one if None.
        savepoint: As that of ``transaction.atomic``.
        durable: As that of ``transaction.atomic``: True refuses to be within another transaction.

    Raises:
        StaleFence: The holder was overtaken; the block has not run.
    """
    with transaction.atomic(using, savepoint, durable):
        guard(connections[using or DEFAULT_DB_ALIAS], lock)
        yield
