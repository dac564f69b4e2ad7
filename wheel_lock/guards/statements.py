"""The statements of a guard, for each kind of database, and what their results mean.

The rule is one statement: advance the fence of a name to that of the holder, unless it is larger. All databases here lock
the row until the transaction ends, whether it was changed or not, and compare with the row as it is then, not with a
snapshot (or fail, where the transaction has one). So a later holder waits for an earlier one that has passed its guard, and
an earlier one finds the later one's fence.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from wheel_lock.errors import NoFenceTable, StaleFence, WheelLockError, quoted
from wheel_lock.guards.fences import Fence

_MISSING_SQLSTATE = "42P01"  # PostgreSQL: undefined_table
_MISSING_CODE = 1146  # MySQL, MariaDB: ER_NO_SUCH_TABLE
_MISSING_TEXT = "no such table: wheel_lock_fences"  # SQLite


class Statement(NamedTuple):
    """One statement for a driver."""

    text: str  # with parameters as ``:name``
    parameters: Mapping[str, str | bytes | int] = {}  # in the order in which they first occur
    asks: Literal["rows", "id", "value"] | None = None  # for the number of affected rows, the last id, the only value


Steps: TypeAlias = Generator[Statement, int | None, None]
"""Yields statements, and is sent what they ask for; a failure of the driver is thrown in."""


class Dialect(NamedTuple):
    """The SQL of one kind of database."""

    create: str  # makes the table
    advance: Callable[[Fence], Steps]  # of a guard


def _by_rows(held: Fence) -> Steps:
    affected = yield Statement(
        "INSERT INTO wheel_lock_fences (name, fence) VALUES (:name, :fence) ON CONFLICT (name) DO UPDATE "
        "SET fence = excluded.fence WHERE wheel_lock_fences.fence <= excluded.fence",
        {"name": held.name, "fence": held.fence},
        "rows",
    )
    if affected == 1:
        return
    if affected != 0:
        raise WheelLockError(f"The driver says {affected!r} for the number of affected rows, so nothing is guarded")
    newer = None
    try:
        newer = yield Statement("SELECT fence FROM wheel_lock_fences WHERE name = :name", {"name": held.name}, "value")
    except Exception:
        pass  # it would only be in the message
    raise StaleFence(held.name, held.fence, newer)


def _by_last_id(held: Fence) -> Steps:
    # There is no WHERE, and the number of affected rows is the same for an equal fence and for a smaller one. The fence
    # that is in the row afterwards comes back as the last id. It is not read from a snapshot, as that of a SELECT would be.
    newer = yield Statement(
        "INSERT INTO wheel_lock_fences (name, fence) VALUES (:name, LAST_INSERT_ID(:fence)) "
        "ON DUPLICATE KEY UPDATE fence = LAST_INSERT_ID(GREATEST(fence, :fence))",
        {"name": held.name.encode(), "fence": held.fence},
        "id",
    )
    if newer is None or newer < held.fence:
        raise WheelLockError(f"The driver says {newer!r} for LAST_INSERT_ID(), so nothing is guarded")
    if newer > held.fence:
        raise StaleFence(held.name, held.fence, newer)


_COLUMNS = "CREATE TABLE IF NOT EXISTS wheel_lock_fences (name {} NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)"
_MYSQL = Dialect(_COLUMNS.format("VARBINARY(2048)") + " ENGINE=InnoDB", _by_last_id)
DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Dialect(_COLUMNS.format('TEXT COLLATE "C"'), _by_rows),
    "sqlite": Dialect(_COLUMNS.format("TEXT"), _by_rows),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
}


def dialect_named(name: str) -> Dialect:
    """Return the dialect of that name. Raises ValueError if there is none."""
    if name not in DIALECTS:
        raise ValueError(f"there is no guard for databases of the kind {name!r}, only for {', '.join(DIALECTS)}")
    return DIALECTS[name]


def creating(dialect: Dialect) -> Steps:
    """Make the table if there is none."""
    yield Statement(dialect.create)


def guarding(dialect: Dialect, held: Fence) -> Steps:
    """Advance the fence in the row, which stays locked until the transaction ends.

    Raises:
        StaleFence: A larger one is there.
        NoFenceTable: There is no table.
    """
    try:
        yield from dialect.advance(held)
    except Exception as error:
        if isinstance(error, WheelLockError) or not _misses_table(error):
            raise
        raise NoFenceTable(
            f"There is no table wheel_lock_fences to guard {quoted(held.name)} by: make it in a migration, with "
            "wheel_lock.guards.create(connection), or the app wheel_lock.guards.django",
            held.name,
        ) from error


def _misses_table(error: BaseException | None) -> bool:
    """Return True if ``error``, or what a library has wrapped in it, says that there is no such table."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if state == _MISSING_SQLSTATE or _MISSING_CODE in error.args[:1] or str(error).startswith(_MISSING_TEXT):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False
