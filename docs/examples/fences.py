"""A resource that refuses a stale fence: the one thing that protects it from a holder who does not know that he is late.

A lock is a lease. A process that is stopped for longer than its lease lasts - a pause, a suspended machine - goes on
with the line after its last look at the lock, while somebody else holds it already. What it writes then must be refused
by what it writes to: that remembers the largest fence it has seen.

Run it as it is (an embedded server, extra ``demo``), or with the URL of a Redis server: python fences.py redis://...
"""

from __future__ import annotations

import sqlite3
import sys

import redis

from wheel_lock import LockContext
from wheel_lock.testing import EmbeddedServer


class Ledger:
    """A table whose rows carry the fence of their last writer. The check and the write are one statement."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE TABLE ledger (account TEXT PRIMARY KEY, balance INTEGER, fence INTEGER)")
        self._database.execute("INSERT INTO ledger VALUES ('42', 0, 0)")

    def write(self, account: str, balance: int, fence: int) -> bool:
        """Write, unless somebody with a larger fence has; return whether it was written."""
        changed = self._database.execute(
            "UPDATE ledger SET balance = ?, fence = ? WHERE account = ? AND fence <= ?",
            (balance, fence, account, fence),
        )
        return changed.rowcount == 1

    def close(self) -> None:
        self._database.close()


def main(url: str) -> None:
    ledger = Ledger()
    with LockContext.from_url(url) as context, redis.Redis.from_url(url) as client:
        slow = context.lock("account:42", timeout=10.0, fencing=True)
        slow.acquire()
        slow_fence = slow.fence
        client.delete("account:42")  # as if the lease had run out while its holder was stopped

        with context.lock("account:42", timeout=10.0, fencing=True) as quick:
            assert slow_fence is not None
            assert quick.fence is not None
            print(f"fences grow: {quick.fence > slow_fence}")
            print(f"the new holder writes: {ledger.write('42', 100, quick.fence)}")
            print(f"the late one writes: {ledger.write('42', -1, slow_fence)}")
    ledger.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with EmbeddedServer() as server:
            main(server.url)
