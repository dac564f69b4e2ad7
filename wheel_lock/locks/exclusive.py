"""The exclusive lock: a string key named exactly as the lock, whose value is the owner's token.

``SET name token NX PX ms``, as redis-py's own Lock does it, so that the two contend correctly on one name.
"""

from __future__ import annotations

from wheel_lock.engine.kind import NO_FENCE, NO_GRANT
from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.options import MAX_SECONDS
from wheel_lock.protocol import scripts
from wheel_lock.protocol.names import fence_key
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, bulk, exceptions, number, set_if_free
from wheel_lock.protocol.scripts import Call

LONGEST_TTL_MS = int(4 * MAX_SECONDS * 1000)  # a server that says more has misunderstood
FENCE_TTL_MS = 24 * 3600 * 1000  # so that the companion keys of names that are no longer used do not stay for ever


class Exclusive:
    """One holder at a time, not reentrant; with ``fencing``, each grant draws a number that only grows."""

    arguments = 2
    renew = scripts.RENEW
    acquire_many: scripts.Script | None = scripts.ACQUIRE_MANY
    release_many = scripts.RELEASE_MANY

    def __init__(self, fencing: bool) -> None:
        self._fencing = fencing

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool) -> Call:
        """A plain SET at first; a script that knows its own token when an earlier try's outcome is not known."""
        if self._fencing:
            name = lease.key
            body = bulk(name) + bulk(fence_key(name)) + bulk(lease.token) + number(ttl_ms) + number(FENCE_TTL_MS)
            return Call(scripts.ACQUIRE_FENCED, 2, 5, body)
        if again:
            return Call(scripts.ACQUIRE_MANY, 0, 3, number(ttl_ms) + lease.fragment)
        return Call(None, 0, 0, set_if_free(lease.fragment, ttl_ms))

    def read_acquire(self, reply: Reply, *, again: bool) -> int | str:
        """OK or nil from SET; a list of exceptions, or a fence, from the scripts."""
        if self._fencing:
            if type(reply) is int and reply >= 0:
                return reply or NO_GRANT
        elif again:
            odd = exceptions(reply, 1)
            if not odd:
                return NO_FENCE
            verdict = odd[0][1]
            if verdict != GONE:
                return verdict if isinstance(verdict, str) else NO_GRANT
        elif reply == b"OK":
            return NO_FENCE
        elif reply is None:
            return NO_GRANT
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")

    def release(self, lease: Lease) -> Call:
        """An owner-checked DEL."""
        return Call(scripts.RELEASE, 1, 2, lease.fragment)

    def read_release(self, reply: Reply) -> LossReason | None:
        """1, 0 or -1."""
        if type(reply) is int and reply == 1:
            return None
        return _reason(reply)

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Call:
        """An owner-checked PEXPIRE."""
        body = lease.fragment + number(time_ms) + number(1 if replace else 0)
        return Call(scripts.EXTEND, 1, 4, body)

    def read_extend(self, reply: Reply) -> int | LossReason:
        """The new time-to-live, 0 or -1."""
        if type(reply) is int and 0 < reply <= LONGEST_TTL_MS:
            return reply
        return _reason(reply)


def _reason(reply: Reply) -> LossReason:
    if type(reply) is int and reply == 0:
        return LossReason.KEY_GONE
    if type(reply) is int and reply == -1:
        return LossReason.TAKEN
    raise MalformedReply(f"{reply!r:.40} is no reply to an owner-checked script")


EXCLUSIVE = Exclusive(fencing=False)
FENCED = Exclusive(fencing=True)
