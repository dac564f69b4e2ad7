"""Parsers of the replies that several lock types have in common. Each raises MalformedReply for any other reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wheel_lock.errors import LossReason
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, exceptions
from wheel_lock.protocol.server_errors import ServerError

NO_FENCE = 0
OTHER_FENCE = -2
"""The reply to an adoption whose text has another fence than the lock, and to a fence that is less than the last one."""

_MAX_LISTENERS = 1 << 32  # a reply with more is malformed
_TOO_LONG = -2
_UNCOUNTED = 2  # assumed number of listeners where they are not counted: other processes may listen


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


def acquired(reply: Reply, *, fenced: bool = False) -> int | Refusal:
    """Parse the reply of a script that acquires: the fence, 0 if none is drawn, or the list of a refusal."""
    if type(reply) is int and (reply > 0 if fenced else reply == 0):
        return reply or NO_FENCE
    if type(reply) is list:
        return refusal(reply)
    raise MalformedReply(f"{reply!r:.40} is not a reply to an acquire")


def refusal(reply: Sequence[Reply]) -> Refusal:
    """Parse a refusal: milliseconds until the next attempt or -1 for an unknown time, and the key's type if another one."""
    retry_ms, found = reply if len(reply) == 2 else (reply[0] if len(reply) == 1 else None, b"")
    if type(retry_ms) is int and type(found) is bytes:
        return Refusal(retry_ms if retry_ms >= 0 else None, found.decode("ascii", "backslashreplace") or None)
    raise MalformedReply(f"{reply!r:.40} is not a reply to an acquire")


def released(reply: Reply) -> int | LossReason:
    """Parse the reply of a release: 1 plus the number of subscribers that were woken, 0 or -1."""
    return reply - 1 if type(reply) is int and 1 <= reply <= _MAX_LISTENERS else reason(reply)


def released_in_bulk(reply: Reply) -> int | LossReason | ServerError:
    """Parse the reply of a batched release about one lease."""
    failed = exceptions(reply, 1)
    if not failed:
        return _UNCOUNTED
    status = failed[0][1]
    if isinstance(status, ServerError) and status.code != "WRONGTYPE":
        return status
    return LossReason.KEY_GONE if status == GONE else LossReason.TAKEN


def extended(reply: Reply) -> int | LossReason | None:
    """Parse the reply of an extension: the new time-to-live; 0 or -1; -2 (None) if it would be too long."""
    if type(reply) is int and 0 < reply <= MAX_TTL_MS:
        return reply
    return None if type(reply) is int and reply == _TOO_LONG else reason(reply)


def taken_over(reply: Reply) -> LossReason | None:
    """Parse the reply of an adoption: 1 (None), 0 or -1."""
    return None if type(reply) is int and reply == 1 else reason(reply)


def fence_written(reply: Reply) -> bool | LossReason:
    """Parse the reply to a quorum's fence: 1 (True), -2 (False: a larger one is there), 0 or -1."""
    return reply == 1 if type(reply) is int and reply in (1, OTHER_FENCE) else reason(reply)


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
