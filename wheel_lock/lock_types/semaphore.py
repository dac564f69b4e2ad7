"""The semaphore: a limited number of holders at a time, each with a lease of its own that is renewed.

(The permits of Redisson's RPermitExpirableSemaphore expire, and are not renewed.) The number of permits is the caller's
own, unless one has been set for all callers.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from wheel_lock.lease import Lease
from wheel_lock.lock_types.shared import SharedSet, parse_holders
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import permits_key, wake_channel
from wheel_lock.protocol.resp import Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command


@dataclass(frozen=True, slots=True)
class Permit(SharedSet):
    """One of several permits.

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
        """Return whether no permit is left."""
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
