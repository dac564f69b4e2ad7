"""Exclusive locks with a token that the caller has chosen, so that other owners may have the same token.

A token made here is unique: a key that holds it was granted to that attempt, whatever became of the reply. A chosen token
- a host's name, say - is not. So these lock types never recognise a key as their own while they acquire it, and never
clean up after an attempt with unknown outcome: the key might be a namesake's. An attempt without a reply leaves its key
to expire, as redis-py's own Lock does.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import EXCLUSIVE, FENCED, Exclusive, Fenced, Unqueued
from wheel_lock.lock_types.replies import Refusal
from wheel_lock.protocol.resp import Reply, command, int_arg, set_if_free
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError


def was_held(lease: Lease) -> bool:
    """Return whether a release is that of a holder, or of a closing context, and not a clean-up."""
    return lease.state is not State.REFUSED and lease.loss in (None, LossReason.CONTEXT_CLOSED)


class _WithCallerToken(Unqueued):
    """Base class of the lock types with caller tokens."""

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
