"""The fair lock: first come, first served, across processes. An exclusive lock with a queue beside it.

The queue is a sorted set of waiters by ticket, and another one says until when each of them is taken to be alive: every
try prolongs that, and who is not heard of any more is skipped. A waiter goes by the first half of its tokens; the second
half is new for each try. A release publishes the name of who is first, so only that one is woken.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import Contention, Refusal
from wheel_lock.lock_types.exclusive import FENCE_TTL_MS, Exclusive
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, queue_keys, wake_channel
from wheel_lock.protocol.resp import Reply, bulk_string, int_arg
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.protocol.tokens import TOKEN_CHARACTERS, new_token


class Fair(Exclusive):
    """One holder at a time, in the order of arrival."""

    name = "fair"
    contention = Contention.SERVER_QUEUE
    registers_waiters = True
    acquire_many: scripts.Script | None = None

    def token(self) -> bytes:
        """The waiter's name, and a secret."""
        return new_token() + new_token()

    def next_token(self, first: bytes) -> bytes:
        """The waiter's name, and another secret."""
        return first[:TOKEN_CHARACTERS] + new_token()

    def wake_channel(self, key: bytes) -> bytes:
        """One of its own, on which waiters are called by name."""
        return wake_channel(key, b"fair:")

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A script that keeps the queue."""
        key = lease.key
        keys = [key, *queue_keys(key), *([fence_key(key)] if self.fenced else [])]
        body = b"".join(map(bulk_string, keys)) + bulk_string(lease.token) + int_arg(ttl_ms) + int_arg(waiter_ttl_ms)
        body += bulk_string(self.wake_channel(key)) + int_arg(FENCE_TTL_MS)
        return Command(scripts.ACQUIRE_FAIR, len(keys), len(keys) + 5, body)

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence or 0, or a list of the time after which to ask again."""
        return replies.acquired(reply, fenced=self.fenced)

    def release(self, lease: Lease) -> Command:
        """As in bulk."""
        return self.release_many([lease])

    def parse_release(self, reply: Reply) -> int | LossReason | ServerError:
        """A list of exceptions."""
        return replies.released_in_bulk(reply)

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """Owner-checked DELs; who waits leaves the queue."""
        body = b"".join([self._all_of(lease) for lease in leases])
        return Command(scripts.RELEASE_FAIR, 0, 5 * len(leases), body)

    def _all_of(self, lease: Lease) -> bytes:
        key = lease.key
        return lease.lease_args + b"".join(map(bulk_string, (*queue_keys(key), self.wake_channel(key))))


class FencedFair(Fair):
    """Fair, and each grant draws a number that only grows."""

    name = "fenced fair"
    fenced = True


FAIR = Fair()
FENCED_FAIR = FencedFair()
