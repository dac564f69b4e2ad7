"""What read-write locks and semaphores have in common: a sorted set under the lock's name, with a member for each holder.

A member's score is its own expiry by the server's clock, so each holder has a lease of its own, one that crashes blocks
the others for no longer than its own timeout, and only its owner removes it. It is one key, so it works on any topology.
The first character of a member says what it is; lua/include/holders.lua tells how the scores of those who may share and of
those who may not are kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import Contention, Refusal
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.protocol.tokens import new_token


class SharedSet:
    """A lock whose holders are members of a sorted set."""

    name: str
    key_type = "zset"
    args_per_lease = 2
    unique_tokens = True
    fenced = False
    contention = Contention.SHARED
    registers_waiters = False
    renew = scripts.RENEW_HOLDERS
    acquire_many: scripts.Script | None = None
    prefix: ClassVar[bytes]  # of its members

    def token(self) -> bytes:
        """A member."""
        return self.prefix + new_token()

    def next_token(self, first: bytes) -> bytes:
        """Another member."""
        return self.token()

    def wake_channel(self, key: bytes) -> bytes:
        raise NotImplementedError

    def queue_key(self, key: bytes) -> bytes:
        """The channel, which is this lock's alone."""
        return self.wake_channel(key)

    def channels(self, key: bytes) -> tuple[bytes, bytes]:
        """The channels that a release may publish on: of those who may share the lock, and of the others."""
        raise NotImplementedError

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        raise NotImplementedError

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """0, or a list of the time after which to ask again."""
        return replies.acquired(reply)

    def release(self, lease: Lease) -> Command:
        """As in bulk."""
        return self.release_many([lease])

    def parse_release(self, reply: Reply) -> int | LossReason | ServerError:
        """A list of exceptions."""
        return replies.released_in_bulk(reply)

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """ZREMs of the holders' own members."""
        body = b"".join([lease.lease_args + b"".join(map(bulk_string, self.channels(lease.key))) for lease in leases])
        return Command(scripts.RELEASE_HOLDERS, 0, 4 * len(leases), body)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Command:
        """A ZADD of a member that has not expired."""
        return Command(scripts.EXTEND_HOLDER, 1, 5, lease.lease_args + replies.extension(time_ms, replace=replace))

    def parse_extend(self, reply: Reply) -> int | LossReason | None:
        """The new time-to-live, 0, -1 or -2."""
        return replies.extended(reply)

    def locked(self, key: bytes) -> Command:
        """Who is there."""
        return Command(scripts.LOOK_HOLDERS, 1, 2, bulk_string(key) + bulk_string(b""))

    def parse_locked(self, reply: Reply) -> bool:
        raise NotImplementedError

    def owned(self, lease: Lease) -> Command:
        """Who is there, and whether the lease's own member is."""
        return Command(scripts.LOOK_HOLDERS, 1, 2, bulk_string(lease.key) + bulk_string(lease.token))

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        """The third number."""
        return read_look(reply)[2] == 1

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        """A member in the place of another."""
        key = lease.key
        body = (
            bulk_string(key)
            + bulk_string(old_token)
            + bulk_string(lease.token)
            + int_arg(ttl_ms)
            + bulk_string(self.channels(key)[0])
        )
        return Command(scripts.SWAP_HOLDER, 1, 5, body)

    def parse_adopt(self, reply: Reply) -> LossReason | None:
        """1, 0 or -1."""
        return replies.taken_over(reply)


def read_look(reply: Reply) -> tuple[int, int, int, int]:
    """Read how many share it, how many hold it alone, whether a member is there, and the number of permits or -1."""
    if type(reply) is not list or len(reply) != 4:
        raise MalformedReply(f"{reply!r:.40} is no look at a lock's holders")
    shared, alone, mine, permits = map(replies.count, reply)
    return shared, alone, mine, permits
