"""The exclusive lock: a string key named exactly as the lock, whose value is the owner's token.

``SET name token NX PX ms``, as redis-py's own Lock does it, so that the two contend correctly on one name.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import NO_FENCE, REFUSED, Contention, Refusal
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key, wake_channel
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, bulk_string, command, exceptions, int_arg, set_if_free
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.protocol.tokens import new_token

FENCE_TTL_MS = 24 * 3600 * 1000  # so that the companion keys of names that are no longer used do not stay for ever


class Exclusive:
    """One holder at a time, not reentrant."""

    name = "exclusive"
    key_type = "string"
    args_per_lease = 2
    unique_tokens = True
    fenced = False
    contention = Contention.FIRST_WAITER
    registers_waiters = False
    renew = scripts.RENEW
    acquire_many: scripts.Script | None = scripts.ACQUIRE_MANY

    def token(self) -> bytes:
        """Nothing but chance."""
        return new_token()

    def next_token(self, first: bytes) -> bytes:
        """Nothing but chance."""
        return self.token()

    def wake_channel(self, key: bytes) -> bytes:
        """One for all exclusive locks of a name."""
        return wake_channel(key)

    def queue_key(self, key: bytes) -> bytes:
        """The channel, which is this lock's alone."""
        return self.wake_channel(key)

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A plain SET at first; a script that knows its own token when an earlier try's outcome is not known."""
        if waiter_ttl_ms:
            return Command(scripts.ACQUIRE, 1, 3, lease.lease_args + int_arg(ttl_ms))
        if again:
            return Command(scripts.ACQUIRE_MANY, 0, 3, int_arg(ttl_ms) + lease.lease_args)
        return Command(None, 0, 0, set_if_free(lease.lease_args, ttl_ms))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """OK or nil from SET; a list of exceptions, or of the holder's remaining time, from the scripts."""
        if waiting:
            return replies.acquired(reply)
        if again:
            failed = exceptions(reply, 1)
            if not failed:
                return NO_FENCE
            status = failed[0][1]
            if status != GONE:
                return status if isinstance(status, ServerError) else REFUSED
        elif reply == b"OK":
            return NO_FENCE
        elif reply is None:
            return REFUSED
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")

    def release(self, lease: Lease) -> Command:
        """An owner-checked DEL."""
        return Command(scripts.RELEASE, 1, 3, lease.lease_args + bulk_string(self.wake_channel(lease.key)))

    def parse_release(self, reply: Reply) -> int | LossReason | ServerError:
        """1 and more, 0 or -1."""
        return replies.released(reply)

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """Owner-checked DELs."""
        body = b"".join([lease.lease_args + bulk_string(self.wake_channel(lease.key)) for lease in leases])
        return Command(scripts.RELEASE_MANY, 0, 3 * len(leases), body)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Command:
        """An owner-checked PEXPIRE."""
        body = lease.lease_args + replies.extension(time_ms, replace=replace)
        return Command(scripts.EXTEND, 1, 5, body)

    def parse_extend(self, reply: Reply) -> int | LossReason | None:
        """The new time-to-live, 0, -1 or -2."""
        return replies.extended(reply)

    def locked(self, key: bytes) -> Command:
        """Whether the key is there."""
        return Command(None, 0, 0, command(b"EXISTS", key))

    def parse_locked(self, reply: Reply) -> bool:
        """How many such keys there are."""
        return replies.count(reply) > 0

    def owned(self, lease: Lease) -> Command:
        """What the key holds."""
        return Command(None, 0, 0, command(b"GET", lease.key))

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        """A token."""
        return replies.text(reply) == lease.token

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        """A SET of the new token, checked against the old one."""
        keys = [lease.key] if fence is None else [lease.key, fence_key(lease.key)]
        body = b"".join(map(bulk_string, [*keys, old_token, lease.token])) + int_arg(ttl_ms)
        if fence is None:
            return Command(scripts.ADOPT, 1, 4, body)
        return Command(scripts.ADOPT, 2, 7, body + int_arg(fence) + int_arg(FENCE_TTL_MS))

    def parse_adopt(self, reply: Reply) -> LossReason | None:
        """1, 0 or -1."""
        return replies.taken_over(reply)


class Fenced(Exclusive):
    """Exclusive, and each grant draws a number that only grows."""

    name = "fenced"
    fenced = True
    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A script that draws the fence."""
        name = lease.key
        body = (
            bulk_string(name)
            + bulk_string(fence_key(name))
            + bulk_string(lease.token)
            + int_arg(ttl_ms)
            + int_arg(FENCE_TTL_MS)
        )
        return Command(scripts.ACQUIRE_FENCED, 2, 6, body + int_arg(self.unique_tokens))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence, or a list of the holder's remaining time."""
        return replies.acquired(reply, fenced=True)


class Everlasting(Exclusive):
    """Exclusive, and without an expiry: held until it is released, also by a holder that crashed. For redis_lock."""

    name = "everlasting"
    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """The time-to-live that the engine keeps for it is not sent."""
        return Command(scripts.ACQUIRE, 1, 3, lease.lease_args + int_arg(0))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """0, or a list of the holder's remaining time."""
        return replies.acquired(reply)


EXCLUSIVE = Exclusive()
FENCED = Fenced()
EVERLASTING = Everlasting()
