"""Guards for connections of databases that are awaited: psycopg, asyncpg, SQLAlchemy.

async with connection.transaction():
    await guards.asyncio.guard(connection, lock)
"""

from __future__ import annotations

from typing import Any

from wheel_lock.guards import connections
from wheel_lock.guards.connections import carry_out, driver_for
from wheel_lock.guards.fences import Fenced, fence_of
from wheel_lock.guards.statements import creating, guarding

__all__ = ["create", "guard"]


async def guard(connection: object, lock: Fenced) -> None:
    """Refuse to go on with the transaction of ``connection`` if the holder of ``lock`` was overtaken.

    As `wheel_lock.guards.guard`, which has the rules and the errors.

    Args:
        connection: An ``AsyncConnection`` of psycopg, a connection of asyncpg or of its pool, or an ``AsyncConnection`` or
            ``AsyncSession`` of SQLAlchemy.
        lock: A lock with ``fencing=True`` that is held; or a leadership; or a pair of a name and a fence.
    """
    held = fence_of(lock)
    driver = driver_for(connection, is_async=True)
    user: Any = connection
    if hasattr(user, "run_sync"):  # SQLAlchemy's, which has the one for threads in it
        await user.run_sync(connections.guard, held)
    else:
        driver.check(user)
        await carry_out(guarding(driver.dialect(user), held), driver, user)


async def create(connection: object) -> None:
    """Make the table ``wheel_lock_fences`` if there is none, for a migration. It does not commit."""
    driver = driver_for(connection, is_async=True)
    user: Any = connection
    if hasattr(user, "run_sync"):
        await user.run_sync(connections.create)
    else:
        await carry_out(creating(driver.dialect(user)), driver, user)
