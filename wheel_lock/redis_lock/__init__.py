"""redis-py's own Lock, renewed: classes for the ``lock_class`` of ``Redis.lock`` and its relatives.

``client.lock("order:42", timeout=30, lock_class=Lock)`` is all that changes. These *are* redis-py's classes, with its
tokens, checks and messages; what they send goes through the engine of ``LockContext.shared(client)``, so a lock that has a
timeout is renewed until it is released, lost or dropped, and who waits is woken by the release. docs/redis_py.md says more.
"""

import atexit

from wheel_lock.redis_lock.asyncio import AsyncLock
from wheel_lock.redis_lock.grants import GRANTS
from wheel_lock.redis_lock.sync import Lock

__all__ = ["AsyncLock", "Lock"]


@atexit.register  # and so called before what context.py, imported earlier, has registered: it releases what is held
def _at_exit() -> None:
    """Release nothing: a redis-py lock that nobody has released outlives its process."""
    for grant in GRANTS.held():
        grant.leave_alone()
