"""The base of read-write locks and semaphores: a sorted set under the lock's name, with a member for each holder.

A member's score is its own expiry by the server's clock, so each holder has a lease of its own, one that crashes blocks
the others for no longer than its own timeout, and only its owner removes it. It is one key, so it works on any topology.
The first character of a member is its type; lua/include/holders.lua keeps the scores of shared and of exclusive holders
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import Contention, LockType
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command, Script
from wheel_lock.runtime.tokens import new_token


class SharedSet(LockType):
    """A lock whose holders are members of a sorted set."""

    key_type = "zset"
    contention = Contention.SHARED
    renew: Script = scripts.RENEW_HOLDERS
    change_ttl: Script = scripts.EXTEND_HOLDER
    prefix: ClassVar[bytes]  # of its members

    def token(self, head: bytes = b"") -> bytes:
        """Return a new member."""
        return self.prefix + head + new_token()

    def channels(self, key: bytes) -> tuple[bytes, bytes]:
        """Return the channels on which a release publishes: that of shared waiters, and that of exclusive ones."""
        raise NotImplementedError

    def release_many(self, leases: Sequence[Lease]) -> Command:
        body = b"".join([lease.lease_args + b"".join(map(bulk_string, self.channels(lease.key))) for lease in leases])
        return Command(scripts.RELEASE_HOLDERS, 0, 4 * len(leases), body)

    def locked(self, key: bytes) -> Command:
        return Command(scripts.LOOK_HOLDERS, 1, 2, bulk_string(key) + bulk_string(b""))

    def owned(self, lease: Lease) -> Command:
        return Command(scripts.LOOK_HOLDERS, 1, 2, lease.lease_args)

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        return parse_holders(reply)[2] == 1

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        """Return the call that replaces one member by another, such as a writer by a reader."""
        key = lease.key
        body = bulk_string(key) + bulk_string(old_token) + bulk_string(lease.token) + int_arg(ttl_ms)
        return Command(scripts.SWAP_HOLDER, 1, 5, body + bulk_string(self.channels(key)[0]))


def parse_holders(reply: Reply) -> tuple[int, int, int, int]:
    """Return the numbers of shared and of exclusive holders, 1 if the member exists, and the number of permits or -1."""
    if type(reply) is not list or len(reply) != 4:
        raise MalformedReply(f"{reply!r:.40} is not a reply about a lock's holders")
    shared, exclusive, mine, permits = map(replies.count, reply)
    return shared, exclusive, mine, permits
