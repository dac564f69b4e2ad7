"""The reentrant lock: a hash named exactly as the lock, with one field, which is its holder.

Its layout, and the message that a release publishes, are those of Redisson's RLock (RedissonLock.java): a service in
Java and one in Python exclude each other on one name, and wake each other. Redisson's field is its client's id and the
number of a thread. Here it is a token and the number of the thread or task, because no two leases may have the same: a
command under way for an old lease must not find the new one. The hold count is kept in the process, and is always 1 at
the server.
"""

from __future__ import annotations

from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import FENCE_TTL_MS
from wheel_lock.lock_types.exclusive import Unqueued
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, redisson_channel
from wheel_lock.protocol.resp import Reply, bulk_string, command, int_arg
from wheel_lock.protocol.scripts import Command, Script


class Reentrant(Unqueued):
    """One holder at a time, which may acquire the lock again."""

    name = "reentrant"
    key_type = "hash"
    renew: Script = scripts.RENEW_REENTRANT
    change_ttl: Script = scripts.EXTEND_REENTRANT
    release_one: Script = scripts.RELEASE_REENTRANT
    release_batch: Script = scripts.RELEASE_REENTRANT_MANY

    def wake_channel(self, key: bytes) -> bytes:
        return redisson_channel(key)

    def queue_key(self, key: bytes) -> bytes:
        return b"wheel_lock:reentrant:" + key  # not the channel: by Redisson's rule the locks a and {a} share one

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        return Command(scripts.ACQUIRE_REENTRANT, 1, 3, lease.lease_args + int_arg(ttl_ms))

    def owned(self, lease: Lease) -> Command:
        return Command(None, 0, 0, command(b"HEXISTS", lease.key, lease.token))

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        """Parse the number of such fields, or nil for a key of another type."""
        return reply is not None and replies.count(reply) == 1


class FencedReentrant(Reentrant):
    """A reentrant lock of which each grant draws a fence. Acquiring it again draws no other."""

    name = "fenced reentrant"
    fenced = True

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        body = bulk_string(lease.key) + bulk_string(fence_key(lease.key)) + bulk_string(lease.token)
        return Command(scripts.ACQUIRE_REENTRANT, 2, 5, body + int_arg(ttl_ms) + int_arg(FENCE_TTL_MS))


REENTRANT = Reentrant()
FENCED_REENTRANT = FencedReentrant()
