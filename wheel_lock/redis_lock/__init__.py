"""redis-py's own Lock, renewed: classes for the ``lock_class`` of ``Redis.lock`` and its relatives.

``client.lock("order:42", timeout=30, lock_class=Lock)`` is all that changes. These *are* redis-py's classes, with its
tokens, checks and messages; their commands go through the engine of ``LockContext.shared(client)``, so a lock that has a
timeout is renewed until it is released, lost or dropped, and a release wakes waiters. See docs/guide/redis-py.md.
"""

from wheel_lock.redis_lock.lock import GRANTS, AsyncLock, Lock
from wheel_lock.sync.process_end import BEFORE

__all__ = ["AsyncLock", "Lock"]


@BEFORE.append
def _leave_alone() -> None:
    """Keep the held grants at the server: a redis-py lock that was not released outlives its process."""
    for reference in GRANTS.valuerefs():  # a list that is made at once: another thread may go on
        grant = reference()
        if grant is not None and grant.is_held:
            grant.leave_alone()
