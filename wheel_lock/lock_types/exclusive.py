"""The exclusive lock: a string key named exactly as the lock, whose value is the owner's token.

``SET name token NX PX ms``, as redis-py's own Lock does it, so that the two contend correctly on one name. For the same
reason a string without an expiry is a held lock and no error: redis-py's ``Lock`` without a timeout is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types import replies
from wheel_lock.lock_types.base import FENCE_TTL_MS, Contention, LockType
from wheel_lock.lock_types.replies import NO_FENCE, OTHER_FENCE, REFUSED, Refusal, reason
from wheel_lock.protocol import scripts
from wheel_lock.protocol.keys import fence_key
from wheel_lock.protocol.resp import (
    GONE,
    IF_FREE,
    SET,
    MalformedReply,
    Reply,
    bulk_string,
    command,
    exceptions,
    int_arg,
    name_in,
    set_if_free,
)
from wheel_lock.protocol.scripts import Command, Script
from wheel_lock.protocol.server_errors import ServerError

_MAX_LISTENERS = 1 << 32  # a reply with more is malformed


class OneHolder(LockType):
    """The base class of locks with one key and one holder, whose token is the value of the key."""

    key_type = "string"
    watchable = True
    contention = Contention.FIRST_WAITER
    renew: Script = scripts.RENEW
    change_ttl: Script = scripts.EXTEND

    def locked(self, key: bytes) -> Command:
        return Command(None, 0, 0, command(b"EXISTS", key))

    def parse_locked(self, reply: Reply) -> bool:
        return replies.count(reply) > 0

    def owned(self, lease: Lease) -> Command:
        return Command(None, 0, 0, command(b"GET", lease.key))

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        return replies.text(reply) == lease.token

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        keys = [lease.key] if fence is None else [lease.key, fence_key(lease.key)]
        body = b"".join(map(bulk_string, [*keys, old_token, lease.token])) + int_arg(ttl_ms)
        if fence is None:
            return Command(scripts.ADOPT, 1, 4, body)
        return Command(scripts.ADOPT, 2, 7, body + int_arg(fence) + int_arg(FENCE_TTL_MS))


class Unqueued(OneHolder):
    """The base class of those of which a release wakes all waiters, by one channel; their order is not kept."""

    release_one: Script = scripts.RELEASE
    release_batch: Script = scripts.RELEASE_MANY

    def queue_key(self, key: bytes) -> bytes:
        return key  # whoever acquires it by any of these types; those of all other types begin with wheel_lock:

    def release(self, lease: Lease) -> Command:
        return Command(self.release_one, 1, 3, lease.lease_args + bulk_string(self.wake_channel(lease.key)))

    def keyed_release(self, lease: Lease, capability: int) -> bytes | None:
        channel = self.wake_channel(name_in(lease.lease_args))
        return self.release_one.form(capability).call(
            1, 3, b"%b$%d\r\n%b\r\n" % (lease.lease_args, len(channel), channel)
        )

    def release_quietly(self, lease: Lease) -> Command:
        return Command(self.release_one, 1, 3, lease.lease_args + bulk_string(b""))

    def parse_release(self, reply: Reply) -> int | LossReason | ServerError:
        """Parse 1 plus the number of subscribers that were woken, 0 or -1."""
        return reply - 1 if type(reply) is int and 1 <= reply <= _MAX_LISTENERS else reason(reply)

    def release_many(self, leases: Sequence[Lease]) -> Command:
        body = b"".join([lease.lease_args + bulk_string(self.wake_channel(lease.key)) for lease in leases])
        return Command(self.release_batch, 0, 3 * len(leases), body)


class Exclusive(Unqueued):
    """One holder at a time, not reentrant."""

    name = "exclusive"

    def plain_try(self, lease: Lease, ttl: bytes) -> bytes | None:
        return SET + lease.lease_args + IF_FREE + ttl  # as set_if_free()

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """Return a plain SET, or a script that returns the holder's remaining time, or recognises its own token."""
        if waiter_ttl_ms:
            return Command(scripts.ACQUIRE, 1, 3, lease.lease_args + int_arg(ttl_ms))
        if again:
            return Command(scripts.ACQUIRE_MANY, 0, 3, int_arg(ttl_ms) + lease.lease_args)
        return Command(None, 0, 0, set_if_free(lease.lease_args, int_arg(ttl_ms)))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """Parse OK or nil from SET, a list of exceptions or the holder's remaining time from the scripts."""
        if waiting:
            return super().parse_acquire(reply, again=again, waiting=waiting)
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
        raise MalformedReply(f"{reply!r:.40} is not a reply to an acquire")


class Fenced(Unqueued):
    """An exclusive lock of which each grant draws a fence; if the lease has one already, none that is less."""

    name = "fenced"
    fenced = True

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        name = lease.key
        body = bulk_string(name) + bulk_string(fence_key(name)) + bulk_string(lease.token)
        body += int_arg(ttl_ms) + int_arg(FENCE_TTL_MS) + int_arg(self.unique_tokens)
        if lease.fence is None:
            return Command(scripts.ACQUIRE_FENCED, 2, 6, body)
        return Command(scripts.ACQUIRE_FENCED, 2, 7, body + int_arg(lease.fence))

    def write_fence(self, lease: Lease, fence: int) -> Command:
        """Return the call that writes the fence of a quorum where it has granted ``lease``."""
        name = lease.key
        body = bulk_string(name) + bulk_string(fence_key(name)) + bulk_string(lease.token)
        return Command(scripts.WRITE_FENCE, 2, 5, body + int_arg(fence) + int_arg(FENCE_TTL_MS))

    def parse_write_fence(self, reply: Reply) -> bool | LossReason:
        """Parse 1 (True), -2 (False: a larger one is there), 0 or -1."""
        return reply == 1 if type(reply) is int and reply in (1, OTHER_FENCE) else reason(reply)


class Everlasting(Unqueued):
    """An exclusive lock without an expiry: held until it is released, also by a holder that crashed. For redis_lock."""

    name = "everlasting"
    dies_with_holder = False

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """Return the script's call. The time-to-live that the engine keeps for the lease is not sent."""
        return Command(scripts.ACQUIRE, 1, 3, lease.lease_args + int_arg(0))


EXCLUSIVE = Exclusive()
FENCED = Fenced()
EVERLASTING = Everlasting()


def was_held(lease: Lease) -> bool:
    """Return whether a release is that of a holder, or of a closing context, and not a clean-up."""
    return lease.state is not State.REFUSED and lease.loss in (None, LossReason.CONTEXT_CLOSED)


class _WithCallerToken(Unqueued):
    """Base class of the lock types with a token that the caller has chosen, so that other owners may have the same.

    A token made here is unique: a key that holds it was granted to that attempt, whatever became of the reply. A chosen
    token - a host's name, say - is not. So these lock types never recognise a key as their own while they acquire it, and
    never clean up after an attempt with unknown outcome: the key might be a namesake's. An attempt without a reply leaves
    its key to expire, as redis-py's own Lock does.
    """

    unique_tokens = False
    dies_with_holder = False  # the key may be a namesake's

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """Return the call about the leases that are held; the key of a refused or lost one may be a namesake's."""
        return super().release_many([lease for lease in leases if was_held(lease)])


class CallerToken(_WithCallerToken, Exclusive):
    """An exclusive lock with a caller token."""

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """Return a plain SET, also for another attempt."""
        return Command(None, 0, 0, set_if_free(lease.lease_args, int_arg(ttl_ms)))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """Parse OK or nil."""
        return super().parse_acquire(reply, again=False, waiting=False)


class FencedCallerToken(_WithCallerToken, Fenced):
    """A fenced lock with a caller token: its script does not recognise that."""


class EverlastingCallerToken(CallerToken):
    """A lock with a caller token and without an expiry."""

    name = "everlasting"

    def plain_try(self, lease: Lease, ttl: bytes) -> None:
        return None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """Return a plain SET. The time-to-live that the engine keeps for the lease is not sent."""
        return Command(None, 0, 0, command(b"SET", lease.key, lease.token, b"NX"))


CALLER_TOKEN = CallerToken()
EVERLASTING_CALLER_TOKEN = EverlastingCallerToken()

WITH_CALLER_TOKEN: dict[LockType, LockType] = {EXCLUSIVE: CALLER_TOKEN, FENCED: FencedCallerToken()}
"""The lock type with a caller token, by the one with its own tokens."""
