"""The reentrant lock: a hash named exactly as the lock, with one field, which is its holder.

That is the layout of Redisson's RLock (RedissonLock.java), and so is the message that a release publishes: a service in
Java and one in Python exclude each other on one name, and wake each other. Redisson's field is its client's id and the
number of a thread. Here it is a token and the number of the thread or task, because no two leases may have the same: what
is still under way for an old one must not find the new one. The count of nested acquires is kept in the process, which
knows it best; on the server it is always 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import Refusal
from wheel_lock.lock_types.exclusive import FENCE_TTL_MS, Exclusive
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, redisson_channel
from wheel_lock.protocol.resp import Reply, bulk, command, number
from wheel_lock.protocol.scripts import Call
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.protocol.tokens import TOKEN_CHARACTERS


class Reentrant(Exclusive):
    """One holder at a time, who may acquire it again."""

    name = "reentrant"
    key_type = "hash"
    renew = scripts.RENEW_REENTRANT
    acquire_many: scripts.Script | None = None

    def next_token(self, first: bytes) -> bytes:
        """Chance, and the number of the thread or task as before."""
        return self.token() + first[TOKEN_CHARACTERS:]

    def wake_channel(self, key: bytes) -> bytes:
        """Redisson's."""
        return redisson_channel(key)

    def line(self, key: bytes) -> bytes:
        """Not the channel: by Redisson's rule the locks ``a`` and ``{a}`` share one."""
        return b"reentrant:" + key

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, patience_ms: int) -> Call:
        """A script that knows its own field."""
        return Call(scripts.ACQUIRE_REENTRANT, 1, 3, lease.fragment + number(ttl_ms))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """0, or a list of the holder's remaining time."""
        return replies.acquired(reply)

    def release(self, lease: Lease) -> Call:
        """An owner-checked DEL."""
        return Call(scripts.RELEASE_REENTRANT, 1, 3, lease.fragment + bulk(self.wake_channel(lease.key)))

    def release_many(self, leases: Sequence[Lease]) -> Call:
        """Owner-checked DELs."""
        body = b"".join([lease.fragment + bulk(self.wake_channel(lease.key)) for lease in leases])
        return Call(scripts.RELEASE_REENTRANT_MANY, 0, 3 * len(leases), body)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Call:
        """An owner-checked PEXPIRE."""
        body = lease.fragment + replies.extension(time_ms, replace=replace)
        return Call(scripts.EXTEND_REENTRANT, 1, 5, body)

    def owned(self, lease: Lease) -> Call:
        """Whether the field is there."""
        return Call(None, 0, 0, command(b"HEXISTS", lease.key, lease.token))

    def read_owned(self, reply: Reply, lease: Lease) -> bool:
        """How many such fields there are; nothing where it is no hash."""
        return reply is not None and replies.count(reply) == 1

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Call:
        """Never called: a thread or task owns it, and no other may."""
        raise NotImplementedError

    def read_adopt(self, reply: Reply) -> LossReason | None:
        """Never called."""
        raise NotImplementedError


class FencedReentrant(Reentrant):
    """Reentrant, and each grant draws a number that only grows. Acquiring it again draws no other."""

    name = "fenced reentrant"
    fenced = True

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, patience_ms: int) -> Call:
        """The same script with a fence key."""
        key = lease.key
        body = bulk(key) + bulk(fence_key(key)) + bulk(lease.token) + number(ttl_ms) + number(FENCE_TTL_MS)
        return Call(scripts.ACQUIRE_REENTRANT, 2, 5, body)

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence, or a list of the holder's remaining time."""
        return replies.acquired(reply, fenced=True)


REENTRANT = Reentrant()
FENCED_REENTRANT = FencedReentrant()
