"""The check at the protected resource: a late holder cannot write.

A fence is a number that grows with each grant of a lock. A guard compares it where the data is, within the user's own
transaction, and refuses a holder that was overtaken:

>>> import sqlite3
>>> from wheel_lock import guards
>>> from wheel_lock.testing import fake_context
>>> database = sqlite3.connect(":memory:")
>>> guards.create(database)  # once, in a migration
>>> _ = database.execute("CREATE TABLE account (balance INTEGER)")
>>> with fake_context() as context, context.lock("account:42", fencing=True) as lock, database:
...     guards.guard(database, lock)  # first; raises StaleFence if a later holder has been here
...     _ = database.execute("INSERT INTO account VALUES (100)")

`guards.asyncio` has the same for asyncio, `guards.sqlalchemy` and `guards.django` what belongs to those, `guards.redis` is
for data in Redis, `guards.http` for services. No package of a database is imported before a connection of it is given.
"""

from wheel_lock.errors import NoFenceTable, StaleFence
from wheel_lock.guards import asyncio, http, redis
from wheel_lock.guards.connections import create, guard
from wheel_lock.guards.fences import Fence, Fenced, fence_of

__all__ = ["Fence", "Fenced", "NoFenceTable", "StaleFence", "asyncio", "create", "fence_of", "guard", "http", "redis"]
