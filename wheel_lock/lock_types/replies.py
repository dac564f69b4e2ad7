"""What replies mean that several kinds of lock have in common."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import LossReason
from wheel_lock.lock_types.base import NO_FENCE, Refusal
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol.resp import GONE, MalformedReply, Reply, exceptions, int_arg
from wheel_lock.protocol.server_errors import ServerError

MOST_LISTENERS = 1 << 32  # a server that says more has misunderstood
TOO_LONG = -2
UNTOLD = 2  # listeners, where they are not counted: there may be others than ourselves


def extension(time_ms: int, *, replace: bool) -> bytes:
    """Encode the arguments of the extending scripts behind the token: time, mode, and the longest time-to-live."""
    return int_arg(time_ms) + int_arg(replace) + int_arg(MAX_TTL_MS)


def acquired(reply: Reply, *, fenced: bool = False) -> int | Refusal:
    """Read the reply of a script that acquires: a fence, or 0 where none is drawn; or a list, when to ask again."""
    if type(reply) is int and (reply > 0 if fenced else reply == 0):
        return reply or NO_FENCE
    if type(reply) is list:
        return refusal(reply)
    raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


def refusal(reply: Sequence[Reply]) -> Refusal:
    """Read when to ask again in milliseconds, -1 for an unknown time, and the key's type where it is another one."""
    retry_ms, found = reply if len(reply) == 2 else (reply[0] if len(reply) == 1 else None, b"")
    if type(retry_ms) is int and type(found) is bytes:
        return Refusal(retry_ms if retry_ms >= 0 else None, found.decode("ascii", "backslashreplace") or None)
    raise MalformedReply(f"{reply!r:.40} is no reply to an acquire")


def released(reply: Reply) -> int | LossReason:
    """Read 1 and more, by how many listeners were woken, or why there was nothing to release."""
    if type(reply) is int and 1 <= reply <= MOST_LISTENERS:
        return reply - 1
    return reason(reply)


def released_in_bulk(reply: Reply) -> int | LossReason | ServerError:
    """Read the reply of a batched release about one lease."""
    failed = exceptions(reply, 1)
    if not failed:
        return UNTOLD
    status = failed[0][1]
    if isinstance(status, ServerError) and status.code != "WRONGTYPE":
        return status
    return LossReason.KEY_GONE if status == GONE else LossReason.TAKEN


def extended(reply: Reply) -> int | LossReason | None:
    """Read the new time-to-live, why there is none, or None if it would be too long and is unchanged."""
    if type(reply) is int and 0 < reply <= MAX_TTL_MS:
        return reply
    if type(reply) is int and reply == TOO_LONG:
        return None
    return reason(reply)


def taken_over(reply: Reply) -> LossReason | None:
    """Read 1, or why it could not be taken over."""
    return None if type(reply) is int and reply == 1 else reason(reply)


def reason(reply: Reply) -> LossReason:
    """Read 0 or -1: why there was nothing that an owner could change."""
    if type(reply) is int and reply == 0:
        return LossReason.KEY_GONE
    if type(reply) is int and reply == -1:
        return LossReason.TAKEN
    raise MalformedReply(f"{reply!r:.40} is no reply to an owner-checked script")


def count(reply: Reply) -> int:
    """Read a number."""
    if type(reply) is not int:
        raise MalformedReply(f"expected an integer, got {reply!r:.40}")
    return reply


def text(reply: Reply) -> bytes | None:
    """Read a string, or nothing."""
    if reply is not None and type(reply) is not bytes:
        raise MalformedReply(f"expected a string or nothing, got {reply!r:.40}")
    return reply
