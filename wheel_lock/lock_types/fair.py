"""The fair lock: first come, first served, across processes. An exclusive lock with a queue beside it.

The queue is a sorted set of waiters by ticket; another sorted set has the expiry of each waiter, prolonged by each attempt.
Expired waiters are skipped. A waiter's name is the start of its tokens, whose last 22 characters are new in each attempt.
A release publishes the name of the first waiter, so only that one is woken.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import FENCE_TTL_MS, Contention
from wheel_lock.lock_types.exclusive import OneHolder
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, queue_keys, wake_channel
from wheel_lock.protocol.resp import bulk_string, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.tokens import new_token


class Fair(OneHolder):
    """One holder at a time, in the order of arrival."""

    name = "fair"
    contention = Contention.SERVER_QUEUE
    registers_waiters = True

    def token(self, head: bytes = b"") -> bytes:
        return head + new_token() + new_token()  # the waiter's name, and a secret

    def wake_channel(self, key: bytes) -> bytes:
        return wake_channel(key, b"fair:")

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        key = lease.key
        keys = [key, *queue_keys(key), *([fence_key(key)] if self.fenced else [])]
        body = b"".join(map(bulk_string, keys)) + bulk_string(lease.token) + int_arg(ttl_ms) + int_arg(waiter_ttl_ms)
        body += bulk_string(self.wake_channel(key)) + int_arg(FENCE_TTL_MS)
        return Command(scripts.ACQUIRE_FAIR, len(keys), len(keys) + 5, body)

    def release_many(self, leases: Sequence[Lease]) -> Command:
        body = [
            lease.lease_args + b"".join(map(bulk_string, (*queue_keys(lease.key), self.wake_channel(lease.key))))
            for lease in leases
        ]
        return Command(scripts.RELEASE_FAIR, 0, 5 * len(leases), b"".join(body))


class FencedFair(Fair):
    """A fair lock of which each grant draws a fence."""

    name = "fenced fair"
    fenced = True


FAIR = Fair()
FENCED_FAIR = FencedFair()
