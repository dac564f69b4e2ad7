"""Read-write locks and semaphores: a sorted set under the lock's name, with a member for each holder.

A member's score is its own expiry by the server's clock, so each holder has a lease of its own, one that crashes blocks
the others for no longer than its own timeout, and only its owner removes it. It is one key, so it works on any topology.
The first character of a member is its type; protocol/lua/include/holders.lua keeps the scores of shared and of exclusive
holders apart.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import FENCE_TTL_MS, Contention, LockType
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, permits_key, wake_channel
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


class _ReadWrite(SharedSet):
    """Base class of both sides of a read-write lock: any number of readers, or one writer.

    A waiting writer registers at the server, which keeps out new readers until the writer is granted, gives up, or its
    registration expires. When a writer releases while readers wait it is the readers' turn, so neither can starve the other
    (they alternate, as in the phase-fair locks of Brandenburg and Anderson, 2010).
    """

    registers_waiters = True

    def token(self, head: bytes = b"") -> bytes:
        return super().token(head) + new_token()  # the waiter's name, and a secret

    def channels(self, key: bytes) -> tuple[bytes, bytes]:
        return wake_channel(key, b"read:"), wake_channel(key, b"write:")


class Read(_ReadWrite):
    """A read-write lock acquired for reading."""

    name = "read"
    prefix = b"r:"

    def wake_channel(self, key: bytes) -> bytes:
        return self.channels(key)[0]

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        return Command(scripts.ACQUIRE_READ, 1, 4, lease.lease_args + int_arg(ttl_ms) + int_arg(waiter_ttl_ms))

    def parse_locked(self, reply: Reply) -> bool:
        """Return whether there are readers."""
        return parse_holders(reply)[0] > 0


class Write(_ReadWrite):
    """A read-write lock acquired for writing."""

    name = "write"
    prefix = b"w:"
    contention = Contention.FIRST_WAITER

    def wake_channel(self, key: bytes) -> bytes:
        return self.channels(key)[1]

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        key = lease.key
        keys = [key, fence_key(key)] if self.fenced else [key]
        body = b"".join(map(bulk_string, keys)) + bulk_string(lease.token) + int_arg(ttl_ms) + int_arg(waiter_ttl_ms)
        return Command(scripts.ACQUIRE_WRITE, len(keys), len(keys) + 4, body + int_arg(FENCE_TTL_MS))

    def parse_locked(self, reply: Reply) -> bool:
        """Return whether there is a writer."""
        return parse_holders(reply)[1] > 0


class FencedWrite(Write):
    """A lock acquired for writing, of which each grant draws a fence."""

    name = "fenced write"
    fenced = True


READ = Read()
WRITE = Write()
FENCED_WRITE = FencedWrite()


@dataclass(frozen=True, slots=True)
class Permit(SharedSet):
    """One of several permits: a limited number of holders at a time, each with a lease of its own that is renewed.

    (The permits of Redisson's RPermitExpirableSemaphore expire, and are not renewed.) The number of permits is the caller's
    own, unless one has been set for all callers.

    Attributes:
        permits: The number of permits.
    """

    permits: int

    name = "permit"
    prefix = b"p:"

    def wake_channel(self, key: bytes) -> bytes:
        return wake_channel(key, b"permit:")

    def queue_key(self, key: bytes) -> bytes:
        # A queue for each number: a waiter with a greater one must not wait behind a waiter with a smaller one.
        return self.wake_channel(key) + b":%d" % self.permits

    def channels(self, key: bytes) -> tuple[bytes, bytes]:
        channel = self.wake_channel(key)
        return channel, channel

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        body = bulk_string(lease.key) + bulk_string(permits_key(lease.key)) + bulk_string(lease.token)
        return Command(scripts.ACQUIRE_PERMIT, 2, 5, body + int_arg(ttl_ms) + int_arg(self.permits))

    def locked(self, key: bytes) -> Command:
        return Command(scripts.LOOK_HOLDERS, 2, 3, bulk_string(key) + bulk_string(permits_key(key)) + bulk_string(b""))

    def parse_locked(self, reply: Reply) -> bool:
        held, _, _, permits = parse_holders(reply)
        return held >= (self.permits if permits < 0 else permits)

    def set_permits(self, key: bytes, permits: int | None) -> Command:
        """Return the command that sets the number of permits for all callers; None removes that number."""
        body = bulk_string(permits_key(key)) + bulk_string(b"" if permits is None else b"%d" % permits)
        return Command(scripts.SET_PERMITS, 1, 3, body + bulk_string(self.wake_channel(key)))


@functools.lru_cache(maxsize=1024)
def semaphore(permits: int) -> Permit:
    """Return the lock type of a semaphore; always the same for one number, so that its leases share calls."""
    return Permit(permits)
