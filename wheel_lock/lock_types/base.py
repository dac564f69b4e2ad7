"""The interface of a lock type, and what all lock types have in common."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease
from wheel_lock.lock_types.replies import NO_FENCE, Refusal, reason, refusal
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol import keys
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, exceptions, int_arg
from wheel_lock.protocol.scripts import Command, Script
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.tokens import new_token, with_new_secret

FENCE_TTL_MS = 24 * 3600 * 1000  # expiry of companion keys of names that are no longer used
_TOO_LONG = -2
_UNCOUNTED = 2  # assumed number of listeners where they are not counted: other processes may listen


class Contention(enum.Enum):
    """Which of a process's waiters for one name contend for the lock at the server."""

    FIRST_WAITER = enum.auto()  # the first, for all of them; the lock's holder may be in this process
    SHARED = enum.auto()  # the first; after its grant the next one contends, because there may be room
    SERVER_QUEUE = enum.auto()  # each for itself, because the server keeps the order


class LockType:
    """A lock type: the commands of its leases, and how their replies are parsed. Stateless.

    Attributes:
        name: The name of the type in an exported lease, and in messages.
        key_type: The server's name for the type of the lock's key.
        args_per_lease: The number of arguments of the batched scripts per lease.
        unique_tokens: True if only this process knows a lease's token, so that a key with that token is this lease's.
        dies_with_holder: True if a lock of this type may be released when the process of its holder has ended.
        fenced: True if each grant draws a fence.
        contention: Which of several waiters contend at the server.
        registers_waiters: True if a refused waiter leaves a registration at the server, which a release of its lease
            removes. Each attempt renews the registration, which otherwise expires.
        watchable: True if only the lease's end changes its key, apart from its own renewals: one key, one holder.
        renew: The script for batched renewal; it replies with its exceptions.
        change_ttl: The script that :meth:`extend` calls.
    """

    name: str
    key_type: str
    args_per_lease: int = 2
    unique_tokens: bool = True
    dies_with_holder: bool = True
    fenced: bool = False
    contention: Contention
    registers_waiters: bool = False
    watchable: bool = False
    renew: Script
    change_ttl: Script

    def token(self, head: bytes = b"") -> bytes:
        """Return a new token, for the first attempt of an acquire.

        Args:
            head: What names the context's owner in its tokens, see protocol/owners.py; empty if nothing does.
        """
        return head + new_token()

    def next_token(self, first: bytes) -> bytes:
        """Return the token of another attempt of the acquire whose first token is ``first``.

        Only its secret is new: if waiters are registered both begin with the waiter's name.
        """
        return with_new_secret(first)

    def wake_channel(self, key: bytes) -> bytes:
        """Return the channel on which waiters for this type of lock are woken."""
        return keys.wake_channel(key)

    def queue_key(self, key: bytes) -> bytes:
        """Return the key of the wait queue, unique to the lock in this process."""
        return self.wake_channel(key)

    def plain_try(self, lease: Lease, ttl: bytes) -> bytes | None:
        """Return the first attempt to acquire, encoded, if that is a plain command; None if it is the call of a script.

        Args:
            lease: The lease to grant.
            ttl: Its time-to-live in milliseconds, as an encoded argument.
        """
        return None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """Return the command that acquires.

        Args:
            lease: The lease to grant.
            ttl_ms: Its time-to-live in milliseconds.
            again: True if the outcome of an earlier attempt is not known.
            waiter_ttl_ms: The time in milliseconds after which a refused waiter's registration expires; 0 if the caller
                does not wait, and the holder's remaining time is not needed.
        """
        raise NotImplementedError

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """Return the fence of the grant (NO_FENCE if none is drawn), the refusal, or the server's error."""
        if type(reply) is int and (reply > 0 if self.fenced else reply == 0):
            return reply or NO_FENCE
        if type(reply) is list:
            return refusal(reply)
        raise MalformedReply(f"{reply!r:.40} is not a reply to an acquire")

    def release(self, lease: Lease) -> Command:
        """Return the command that releases."""
        return self.release_many([lease])

    def keyed_release(self, lease: Lease, capability: int) -> bytes | None:
        """Return :meth:`release`, encoded for a server's capability, if it always declares its keys; else None."""
        return None

    def release_quietly(self, lease: Lease) -> Command:
        """Return the command that releases and, if the lock type can do without, wakes no waiters.

        For a release that is followed in the same write by the next acquire: what it woke elsewhere would be too late.
        """
        return self.release(lease)

    def parse_release(self, reply: Reply) -> int | LossReason | ServerError:
        """Return the number of subscribers that were woken, why there was nothing to release, or the server's error."""
        failed = exceptions(reply, 1)
        if not failed:
            return _UNCOUNTED
        status = failed[0][1]
        if isinstance(status, ServerError) and status.code != "WRONGTYPE":
            return status
        return LossReason.KEY_GONE if status == GONE else LossReason.TAKEN

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """Return the command that releases many; it replies with its exceptions."""
        raise NotImplementedError

    def extend(self, lease: Lease, time_ms: int, *, replace: bool) -> Command:
        """Return the command that adds ``time_ms`` to the time-to-live, or replaces that."""
        body = lease.lease_args + int_arg(time_ms) + int_arg(replace) + int_arg(MAX_TTL_MS)
        return Command(self.change_ttl, 1, 5, body)

    def parse_extend(self, reply: Reply) -> int | LossReason | None:
        """Return the new time-to-live in milliseconds, why the lease has ended, or None if it would be too long."""
        if type(reply) is int and 0 < reply <= MAX_TTL_MS:
            return reply
        return None if type(reply) is int and reply == _TOO_LONG else reason(reply)

    def locked(self, key: bytes) -> Command:
        """Return the command that asks whether the lock is held; of a semaphore, whether no permit is left."""
        raise NotImplementedError

    def parse_locked(self, reply: Reply) -> bool:
        """Return the answer to :meth:`locked`."""
        raise NotImplementedError

    def owned(self, lease: Lease) -> Command:
        """Return the command that asks whether the lock has the token of ``lease``."""
        raise NotImplementedError

    def parse_owned(self, reply: Reply, lease: Lease) -> bool:
        """Return the answer to :meth:`owned`."""
        raise NotImplementedError

    def adopt(self, lease: Lease, old_token: bytes, ttl_ms: int, fence: int | None = None) -> Command:
        """Return the command that replaces ``old_token`` by the token of ``lease``.

        Args:
            lease: The new lease.
            old_token: The token of the exporter's lease.
            ttl_ms: The time-to-live in milliseconds.
            fence: The fence in the exported text, which the server checks; None if the lock has none.
        """
        raise NotImplementedError

    def parse_adopt(self, reply: Reply) -> LossReason | None:
        """Return None if the token was replaced, else the reason."""
        return None if type(reply) is int and reply == 1 else reason(reply)
