"""What locks with fences protect: a register for each name, in SQLite and in Redis, behind the real guards.

Nothing goes wrong with it, so it shows what late holders write: each write is given to both guards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import redis

from tests.simulation.commands import Server
from tests.simulation.lua import Lua
from wheel_lock import StaleFence, guards
from wheel_lock.guards.redis import Guarded

if TYPE_CHECKING:
    from wheel_lock.guards import Fence

_LUA = Lua()


class _Client(redis.Redis):
    """A client of a server that is a model, for guards: it has no network."""

    def __init__(self) -> None:
        super().__init__()
        self._server = Server(lambda: 0, _LUA, flagged=True)
        self._session = self._server.connect(lambda data: None)

    def register_script(self, script: Any) -> Any:
        def run(keys: list[Any], args: list[Any]) -> Any:
            words = [self.get_encoder().encode(word) for word in (script, len(keys), *keys, *args)]
            return self._server.execute(self._session, [b"EVAL", *words])

        return run


class Register:
    """The registers of a world."""

    def __init__(self) -> None:
        self._client = _Client()
        self._database = sqlite3.connect(":memory:")
        guards.create(self._database)
        self._database.execute("CREATE TABLE register (name TEXT PRIMARY KEY, fence INTEGER)")

    def write(self, fence: Fence) -> list[bool]:
        """Write the fence into the register of its name, in both databases; return which of them let that happen."""
        return [self._passes(write, fence) for write in (self._write_row, self._write_key)]

    def _passes(self, write: Callable[[Fence], object], fence: Fence) -> bool:
        try:
            write(fence)
        except StaleFence:
            return False
        return True

    def _write_row(self, fence: Fence) -> None:
        with self._database:
            guards.guard(self._database, fence)
            self._database.execute("INSERT OR REPLACE INTO register VALUES (?, ?)", fence)

    def _write_key(self, fence: Fence) -> None:
        Guarded(self._client, fence).set(fence.name, fence.fence)

    def read(self, name: str) -> list[int]:
        """Return the fence of the latest write, in each of the databases; 0 if there was none."""
        row = self._database.execute("SELECT fence FROM register WHERE name = ?", (name,)).fetchone()
        key = self._client._server.data.get(name.encode())
        return [row[0] if row else 0, int(key) if isinstance(key, bytes) else 0]
