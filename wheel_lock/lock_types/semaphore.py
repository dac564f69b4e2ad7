"""The semaphore: at most so many holders at a time, each with a lease of its own that is renewed.

(The permits of Redisson's RPermitExpirableSemaphore expire, and are not.) How many there are is what each who acquires
says, unless somebody has set it for all of them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from wheel_lock.lease import Lease
from wheel_lock.lock_types.shared import SharedSet, read_look
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import permits_key, wake_channel
from wheel_lock.protocol.resp import Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command


@dataclass(frozen=True, slots=True)
class Permit(SharedSet):
    """One of several permits.

    Attributes:
        permits: How many there are.
    """

    permits: int

    name = "permit"
    prefix = b"p:"

    def wake_channel(self, key: bytes) -> bytes:
        """One of its own."""
        return wake_channel(key, b"permit:")

    def queue_key(self, key: bytes) -> bytes:
        """One for each number: who goes by more permits must not stand behind who goes by fewer."""
        return self.wake_channel(key) + b":%d" % self.permits

    def channels(self, key: bytes) -> tuple[bytes, bytes]:
        """The same for all."""
        channel = self.wake_channel(key)
        return channel, channel

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A script that counts."""
        key, token = lease.key, lease.token
        body = (
            bulk_string(key)
            + bulk_string(permits_key(key))
            + bulk_string(token)
            + int_arg(ttl_ms)
            + int_arg(self.permits)
        )
        return Command(scripts.ACQUIRE_PERMIT, 2, 5, body)

    def locked(self, key: bytes) -> Command:
        """Who is there, and how many may be."""
        return Command(scripts.LOOK_HOLDERS, 2, 3, bulk_string(key) + bulk_string(permits_key(key)) + bulk_string(b""))

    def parse_locked(self, reply: Reply) -> bool:
        """Whether no permit is left."""
        held, _, _, permits = read_look(reply)
        return held >= (self.permits if permits < 0 else permits)

    def set_permits(self, key: bytes, permits: int | None) -> Command:
        """The command that sets the number for all, or for nobody."""
        value = b"" if permits is None else b"%d" % permits
        return Command(
            scripts.SET_PERMITS,
            1,
            3,
            bulk_string(permits_key(key)) + bulk_string(value) + bulk_string(self.wake_channel(key)),
        )


@functools.lru_cache(maxsize=1024)
def semaphore(permits: int) -> Permit:
    """Return the kind of a semaphore with so many permits; the same one each time, so that its leases share calls."""
    return Permit(permits)
