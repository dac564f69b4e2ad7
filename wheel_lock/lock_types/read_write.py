"""The read-write lock: any number of readers, or one writer.

A waiting writer registers at the server, which keeps out new readers until the writer is granted, gives up, or its
registration expires. When a writer releases while readers wait it is the readers' turn, so neither can starve the other
(they alternate, as in the phase-fair locks of Brandenburg and Anderson, 2010).
"""

from __future__ import annotations

from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import FENCE_TTL_MS, Contention
from wheel_lock.lock_types.shared import SharedSet, parse_holders
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, wake_channel
from wheel_lock.protocol.resp import Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.tokens import new_token


class _ReadWrite(SharedSet):
    """Base class of both sides of a read-write lock."""

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
