"""The exclusive lock: a string key named exactly as the lock, whose value is the owner's token.

``SET name token NX PX ms``, as redis-py's own Lock does it, so that the two contend correctly on one name.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.engine.kind import NO_FENCE, REFUSED, Refusal
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.options import MAX_SECONDS
from wheel_lock.protocol import scripts
from wheel_lock.protocol.names import fence_key, wake_channel
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, bulk, exceptions, number, set_if_free
from wheel_lock.protocol.scripts import Call

LONGEST_TTL_MS = int(4 * MAX_SECONDS * 1000)  # a server that says more has misunderstood
MOST_LISTENERS = 1 << 32  # likewise
FENCE_TTL_MS = 24 * 3600 * 1000  # so that the companion keys of names that are no longer used do not stay for ever


class Exclusive:
    """One holder at a time, not reentrant."""

    name = "exclusive"
    arguments = 2
    own_tokens = True
    renew = scripts.RENEW
    acquire_many: scripts.Script | None = scripts.ACQUIRE_MANY

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiting: bool) -> Call:
        """A plain SET at first; a script that knows its own token when an earlier try's outcome is not known."""
        if waiting:
            return Call(scripts.ACQUIRE, 1, 3, lease.fragment + number(ttl_ms))
        if again:
            return Call(scripts.ACQUIRE_MANY, 0, 3, number(ttl_ms) + lease.fragment)
        return Call(None, 0, 0, set_if_free(lease.fragment, ttl_ms))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | str:
        """OK or nil from SET; a list of exceptions, or of the holder's remaining time, from the scripts."""
        if waiting:
            return _read_waiting(reply)
        if again:
            odd = exceptions(reply, 1)
            if not odd:
                return NO_FENCE
            verdict = odd[0][1]
            if verdict != GONE:
                return verdict if isinstance(verdict, str) else REFUSED
        elif reply == b"OK":
            return NO_FENCE
        elif reply is None:
            return REFUSED
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")

    def release(self, lease: Lease) -> Call:
        """An owner-checked DEL."""
        return Call(scripts.RELEASE, 1, 3, lease.fragment + bulk(wake_channel(lease.key)))

    def read_release(self, reply: Reply) -> int | LossReason:
        """1 and more, 0 or -1."""
        if type(reply) is int and 1 <= reply <= MOST_LISTENERS:
            return reply - 1
        return _reason(reply)

    def release_many(self, leases: Sequence[Lease]) -> Call:
        """Owner-checked DELs."""
        body = b"".join([lease.fragment + bulk(wake_channel(lease.key)) for lease in leases])
        return Call(scripts.RELEASE_MANY, 0, 3 * len(leases), body)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Call:
        """An owner-checked PEXPIRE."""
        body = lease.fragment + number(time_ms) + number(1 if replace else 0)
        return Call(scripts.EXTEND, 1, 4, body)

    def read_extend(self, reply: Reply) -> int | LossReason:
        """The new time-to-live, 0 or -1."""
        if type(reply) is int and 0 < reply <= LONGEST_TTL_MS:
            return reply
        return _reason(reply)

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int) -> Call:
        """A SET of the new token, checked against the old one."""
        body = bulk(lease.key) + bulk(old_token) + bulk(lease.token) + number(ttl_ms)
        return Call(scripts.ADOPT, 1, 4, body)

    def read_adopt(self, reply: Reply) -> LossReason | None:
        """1, 0 or -1."""
        return None if type(reply) is int and reply == 1 else _reason(reply)


class Fenced(Exclusive):
    """Exclusive, and each grant draws a number that only grows."""

    name = "fenced"
    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiting: bool) -> Call:
        """A script that draws the fence."""
        name = lease.key
        body = bulk(name) + bulk(fence_key(name)) + bulk(lease.token) + number(ttl_ms) + number(FENCE_TTL_MS)
        return Call(scripts.ACQUIRE_FENCED, 2, 6, body + number(self.own_tokens))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | str:
        """The fence, or a list of the holder's remaining time."""
        if type(reply) is int and reply > 0:
            return reply
        return _read_waiting(reply, granted=None)


class Everlasting(Exclusive):
    """Exclusive, and without an expiry: held until it is released, also by a holder that crashed. For redis_lock."""

    name = "everlasting"
    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiting: bool) -> Call:
        """The time-to-live that the engine keeps for it is not sent."""
        return Call(scripts.ACQUIRE, 1, 3, lease.fragment + number(0))

    def read_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | str:
        """0, or a list of the holder's remaining time."""
        return _read_waiting(reply)


def _read_waiting(reply: Reply, granted: int | None = 0) -> int | Refusal:
    if type(reply) is int and reply == granted:
        return NO_FENCE
    if type(reply) is list and len(reply) == 1 and type(reply[0]) is int:
        return Refusal(reply[0] if reply[0] >= 0 else None)
    raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


def _reason(reply: Reply) -> LossReason:
    if type(reply) is int and reply == 0:
        return LossReason.KEY_GONE
    if type(reply) is int and reply == -1:
        return LossReason.TAKEN
    raise MalformedReply(f"{reply!r:.40} is no reply to an owner-checked script")


EXCLUSIVE = Exclusive()
FENCED = Fenced()
EVERLASTING = Everlasting()
