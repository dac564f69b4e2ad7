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
from wheel_lock.protocol.resp import Reply, bulk_string, command, int_arg
from wheel_lock.protocol.scripts import Command
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

    def queue_key(self, key: bytes) -> bytes:
        """Not the channel: by Redisson's rule the locks ``a`` and ``{a}`` share one."""
        return b"reentrant:" + key

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A script that knows its own field."""
        return Command(scripts.ACQUIRE_REENTRANT, 1, 3, lease.lease_args + int_arg(ttl_ms))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """0, or a list of the holder's remaining time."""
        return replies.acquired(reply)

    def release(self, lease: Lease) -> Command:
        """An owner-checked DEL."""
        return Command(scripts.RELEASE_REENTRANT, 1, 3, lease.lease_args + bulk_string(self.wake_channel(lease.key)))

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """Owner-checked DELs."""
        body = b"".join([lease.lease_args + bulk_string(self.wake_channel(lease.key)) for lease in leases])
        return Command(scripts.RELEASE_REENTRANT_MANY, 0, 3 * len(leases), body)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Command:
        """An owner-checked PEXPIRE."""
        body = lease.lease_args + replies.extension(time_ms, replace=replace)
        return Command(scripts.EXTEND_REENTRANT, 1, 5, body)

    def owned(self, lease: Lease) -> Command:
        """Whether the field is there."""
        return Command(None, 0, 0, command(b"HEXISTS", lease.key, lease.token))

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        """How many such fields there are; nothing where it is no hash."""
        return reply is not None and replies.count(reply) == 1

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        """Never called: a thread or task owns it, and no other may."""
        raise NotImplementedError

    def parse_adopt(self, reply: Reply) -> LossReason | None:
        """Never called."""
        raise NotImplementedError


class FencedReentrant(Reentrant):
    """Reentrant, and each grant draws a number that only grows. Acquiring it again draws no other."""

    name = "fenced reentrant"
    fenced = True

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """The same script with a fence key."""
        key = lease.key
        body = (
            bulk_string(key)
            + bulk_string(fence_key(key))
            + bulk_string(lease.token)
            + int_arg(ttl_ms)
            + int_arg(FENCE_TTL_MS)
        )
        return Command(scripts.ACQUIRE_REENTRANT, 2, 5, body)

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence, or a list of the holder's remaining time."""
        return replies.acquired(reply, fenced=True)


REENTRANT = Reentrant()
FENCED_REENTRANT = FencedReentrant()
