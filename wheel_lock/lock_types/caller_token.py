"""Exclusive locks whose token the caller has chosen, so that others may have the same one.

A token made here is known to nobody else: a key that holds it was granted to that very try, whatever became of the
reply. Of a chosen token - a host's name, say - that cannot be said. So these never recognise a key as their own while
they acquire it, and never tidy up after a try whose outcome is not known: the key might be a namesake's. A try that is
never answered leaves its key to expire, as redis-py's own Lock does.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types.base import NO_FENCE, REFUSED, LockType, Refusal
from wheel_lock.lock_types.exclusive import EXCLUSIVE, FENCED, Exclusive, Fenced
from wheel_lock.protocol import scripts
from wheel_lock.protocol.resp import MalformedReply, Reply, command, set_if_free
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError


def _was_held(lease: Lease) -> bool:
    """Whether a release is the wish of its holder, or of who closes the context, and not a tidying-up."""
    return lease.state is not State.REFUSED and lease.loss in (None, LossReason.CONTEXT_CLOSED)


class _WithCallerToken(Exclusive):
    """What such locks have in common: they release what is held, and what has been refused or lost never."""

    unique_tokens = False

    def release_many(self, leases: Sequence[Lease]) -> Command:
        """Owner-checked DELs of what is held; what was refused, or has been lost, may be a namesake's by now."""
        return super().release_many([lease for lease in leases if _was_held(lease)])


class CallerToken(_WithCallerToken):
    """Exclusive, with a token that others may have chosen, too."""

    acquire_many: scripts.Script | None = None

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """A plain SET, also when it is tried again."""
        return Command(None, 0, 0, set_if_free(lease.lease_args, ttl_ms))

    def parse_acquire(self, reply: Reply, *, again: bool, waiting: bool) -> int | Refusal | ServerError:
        """OK or nil."""
        if reply == b"OK":
            return NO_FENCE
        if reply is None:
            return REFUSED
        raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


class FencedCallerToken(_WithCallerToken, Fenced):
    """Fenced, with a token that others may have chosen, too: its script does not recognise it."""


class EverlastingCallerToken(CallerToken):
    """The same without an expiry."""

    name = "everlasting"

    def acquire(self, lease: Lease, ttl_ms: int, *, again: bool, waiter_ttl_ms: int) -> Command:
        """The time-to-live that the engine keeps for it is not sent."""
        return Command(None, 0, 0, command(b"SET", lease.key, lease.token, b"NX"))


CALLER_TOKEN = CallerToken()
EVERLASTING_CALLER_TOKEN = EverlastingCallerToken()

WITH_CALLER_TOKEN: dict[LockType, LockType] = {EXCLUSIVE: CALLER_TOKEN, FENCED: FencedCallerToken()}
"""What a kind becomes when its caller gives a token."""
