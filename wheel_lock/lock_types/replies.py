"""What the replies to several lock types have in common. Each parser raises MalformedReply for any other reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wheel_lock.errors import LossReason
from wheel_lock.protocol.resp import MalformedReply, Reply

NO_FENCE = 0
OTHER_FENCE = -2
"""The reply to an adoption whose text has another fence than the lock, and to a fence that is less than the last one."""


class Refusal(NamedTuple):
    """The reply to an acquire of a lock that another holds.

    Attributes:
        retry_ms: When the holder's lease ends unless it is renewed, in milliseconds from now; None if that was not
            requested, or the lease does not end.
        found: The type of the key if it is not that of the lock type, else None.
    """

    retry_ms: int | None
    found: str | None = None

    @property
    def is_data(self) -> bool:
        """True if the key belongs to no lock: it has another type, and does not expire."""
        return self.found is not None and self.retry_ms is None


REFUSED = Refusal(None)


def refusal(reply: Sequence[Reply]) -> Refusal:
    """Parse a refusal: milliseconds until the next attempt or -1 for an unknown time, and the key's type if another one."""
    retry_ms, found = reply if len(reply) == 2 else (reply[0] if len(reply) == 1 else None, b"")
    if type(retry_ms) is int and type(found) is bytes:
        return Refusal(retry_ms if retry_ms >= 0 else None, found.decode("ascii", "backslashreplace") or None)
    raise MalformedReply(f"{reply!r:.40} is not a reply to an acquire")


def reason(reply: Reply) -> LossReason:
    """Parse 0 (gone) or -1 (taken), the replies of an owner-checked script that changed nothing."""
    if type(reply) is int and reply == 0:
        return LossReason.KEY_GONE
    if type(reply) is int and reply == -1:
        return LossReason.TAKEN
    raise MalformedReply(f"{reply!r:.40} is not a reply to an owner-checked script")


def count(reply: Reply) -> int:
    """Parse an integer."""
    if type(reply) is not int:
        raise MalformedReply(f"expected an integer, got {reply!r:.40}")
    return reply


def text(reply: Reply) -> bytes | None:
    """Parse a string or nil."""
    if reply is not None and type(reply) is not bytes:
        raise MalformedReply(f"expected a string or nothing, got {reply!r:.40}")
    return reply
