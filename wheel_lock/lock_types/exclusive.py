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
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, bulk, command, exceptions, number, set_if_free
from wheel_lock.protocol.scripts import Call
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.protocol.tokens import new_token

FENCE_TTL_MS = 24 * 3600 * 1000  # so that the companion keys of names that are no longer used do not stay for ever


class Exclusive:
    """One holder at a time, not reentrant."""

    name = "exclusive"
    key_type = "string"
    arguments = 2
    own_tokens = True
    fenced = False
    contention = Contention.ONE
    announces = False
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

    def line(self, key: bytes) -> bytes:
        """The channel, which is this lock's alone."""
        return self.wake_channel(key)

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, patience_ms: int) -> Call:
        """A plain SET at first; a script that knows its own token when an earlier try's outcome is not known."""
        if patience_ms:
            return Call(scripts.ACQUIRE, 1, 3, lease.fragment + number(ttl_ms))
        if again:
            return Call(scripts.ACQUIRE_MANY, 0, 3, number(ttl_ms) + lease.fragment)
        return Call(None, 0, 0, set_if_free(lease.fragment, ttl_ms))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """OK or nil from SET; a list of exceptions, or of the holder's remaining time, from the scripts."""
        if waiting:
            return replies.acquired(reply)
        if again:
            odd = exceptions(reply, 1)
            if not odd:
                return NO_FENCE
            verdict = odd[0][1]
            if verdict != GONE:
                return verdict if isinstance(verdict, ServerError) else REFUSED
        elif reply == b"OK":
            return NO_FENCE
        elif reply is None:
            return REFUSED
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")

    def release(self, lease: Lease) -> Call:
        """An owner-checked DEL."""
        return Call(scripts.RELEASE, 1, 3, lease.fragment + bulk(self.wake_channel(lease.key)))

    def read_release(self, reply: Reply) -> int | LossReason | ServerError:
        """1 and more, 0 or -1."""
        return replies.released(reply)

    def release_many(self, leases: Sequence[Lease]) -> Call:
        """Owner-checked DELs."""
        body = b"".join([lease.fragment + bulk(self.wake_channel(lease.key)) for lease in leases])
        return Call(scripts.RELEASE_MANY, 0, 3 * len(leases), body)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Call:
        """An owner-checked PEXPIRE."""
        body = lease.fragment + replies.extension(time_ms, replace=replace)
        return Call(scripts.EXTEND, 1, 5, body)

    def read_extend(self, reply: Reply) -> int | LossReason | None:
        """The new time-to-live, 0, -1 or -2."""
        return replies.extended(reply)

    def locked(self, key: bytes) -> Call:
        """Whether the key is there."""
        return Call(None, 0, 0, command(b"EXISTS", key))

    def read_locked(self, reply: Reply) -> bool:
        """How many such keys there are."""
        return replies.count(reply) > 0

    def owned(self, lease: Lease) -> Call:
        """What the key holds."""
        return Call(None, 0, 0, command(b"GET", lease.key))

    def read_owned(self, reply: Reply, lease: Lease) -> bool:
        """A token."""
        return replies.text(reply) == lease.token

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Call:
        """A SET of the new token, checked against the old one."""
        keys = [lease.key] if fence is None else [lease.key, fence_key(lease.key)]
        body = b"".join(map(bulk, [*keys, old_token, lease.token])) + number(ttl_ms)
        if fence is None:
            return Call(scripts.ADOPT, 1, 4, body)
        return Call(scripts.ADOPT, 2, 7, body + number(fence) + number(FENCE_TTL_MS))

    def read_adopt(self, reply: Reply) -> LossReason | None:
        """1, 0 or -1."""
        return replies.taken_over(reply)


class Fenced(Exclusive):
    """Exclusive, and each grant draws a number that only grows."""

    name = "fenced"
    fenced = True
    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, patience_ms: int) -> Call:
        """A script that draws the fence."""
        name = lease.key
        body = bulk(name) + bulk(fence_key(name)) + bulk(lease.token) + number(ttl_ms) + number(FENCE_TTL_MS)
        return Call(scripts.ACQUIRE_FENCED, 2, 6, body + number(self.own_tokens))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """The fence, or a list of the holder's remaining time."""
        return replies.acquired(reply, fenced=True)


class Everlasting(Exclusive):
    """Exclusive, and without an expiry: held until it is released, also by a holder that crashed. For redis_lock."""

    name = "everlasting"
    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, patience_ms: int) -> Call:
        """The time-to-live that the engine keeps for it is not sent."""
        return Call(scripts.ACQUIRE, 1, 3, lease.fragment + number(0))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """0, or a list of the holder's remaining time."""
        return replies.acquired(reply)


EXCLUSIVE = Exclusive()
FENCED = Fenced()
EVERLASTING = Everlasting()
