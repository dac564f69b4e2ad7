"""The state of the lock of a name at the server: its kind, its holders and its waiters, without acquiring anything.
And the release of a lock of any kind for its holders, by a caller that has seen who they are.

The name alone does not say which kind of lock it is, so the kind is derived from what the key holds. A string, a hash or a
sorted set of another application is recognised as foreign. The one exception is a string whose value has the form of a
token: it counts as a lock, as the locks of redis-py are.

In a forced release the server compares: a lock whose holders are not exactly the expected ones is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from wheel_lock.holder import Holder, Mode
from wheel_lock.lock_types.exclusive import EXCLUSIVE
from wheel_lock.lock_types.fair import FAIR
from wheel_lock.lock_types.reentrant import REENTRANT
from wheel_lock.lock_types.shared import READ, semaphore
from wheel_lock.options import MAX_COUNT, MAX_TOKEN_BYTES
from wheel_lock.protocol.keys import fence_key, permits_key, queue_keys, redisson_channel, wake_channel
from wheel_lock.protocol.owners import owner_of, token_id
from wheel_lock.protocol.resp import MalformedReply, Reply, bulk_string, error_text
from wheel_lock.protocol.scripts import FORCE_RELEASE, LOOK, Command

Kind = Literal[
    "free", "exclusive", "fair", "reentrant", "read-write", "semaphore", "redisson", "redisson read-write", "foreign",
    "unreadable",
]  # fmt: skip

MAX_HOLDERS = 64
"""The most holders that are returned; those of a sorted set that expire first."""

_MOST_BYTES = MAX_TOKEN_BYTES + 64  # a member has a letter in front, a field a number at the end
_MOST_MARKS = (
    100_000  # of waiters, read by the thousand until a writer is found: each acquire of a writer reads them all
)
_MOST_LISTENERS = 1 << 32
_CHANGED = -1
_PERMITS = semaphore(1)  # the number of permits does not change its channels
_HEAD = rb"(?:@[!-9;-~]+:)?"
_TOKEN = re.compile(
    _HEAD + rb"(?:[A-Za-z0-9+/]{22}|[A-Za-z0-9+/]{44}|[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
)
_FAIR_TOKEN = re.compile(_HEAD + rb"[A-Za-z0-9+/]{44}")
_FIELD = re.compile(_HEAD + rb"[A-Za-z0-9+/]{22}:[0-9]+")
_REDISSON_FIELD = re.compile(rb"[^:]+:[0-9]+(?::write)?")
_MEMBER = re.compile(rb"[rwp]:.{22,}", re.DOTALL)
_MODES: dict[bytes, Mode] = {b"r": "read", b"w": "write", b"p": "permit"}


@dataclass(frozen=True, slots=True)
class LockState:
    """The state of the lock of a name, as the server reports it.

    Attributes:
        kind: The kind of lock; ``foreign`` for data that belongs to no lock, ``unreadable`` if the user has no right to
            read the key. A string that is foreign may be a lock whose token a caller has chosen.
        key_type: The server's name for the type of the key: ``string``, ``hash``, ``none``, ...; empty if unknown.
        holders: The holders, at most 64; of a foreign string its value, as if it were a token.
        left_out: The number of holders that are not in ``holders``.
        remaining_s: The time in seconds after which the key expires; None if there is no key, or it does not expire.
        waiters: The number of waiters that are registered at the server, of a fair or read-write lock; None if the kind
            registers none.
        listeners: The number of connections that listen for wake-ups at this server; None if it could not be counted.
        fence: The last fence of the name; None if there is none.
        permits: The number of permits that has been set for all callers of a semaphore; None if none was set.
        problem: The first error of the server while it looked; None if there was none.
        values: The values behind ``holders``, as they are stored: secrets, not to be shown.
    """

    kind: Kind
    key_type: str
    holders: tuple[Holder, ...] = ()
    left_out: int = 0
    remaining_s: float | None = None
    waiters: int | None = None
    listeners: int | None = None
    fence: int | None = None
    permits: int | None = None
    problem: str | None = None
    values: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def is_held(self) -> bool:
        """True if the name is a lock that has a holder. False also for a key that is foreign or unreadable."""
        return self.kind not in ("free", "foreign", "unreadable") and bool(self.holders or self.left_out)


def is_fair_token(value: bytes) -> bool:
    """Return whether a value has the form of a fair lock's token."""
    return _FAIR_TOKEN.fullmatch(value) is not None


def look_arguments(key: bytes, *, companions: bool = True, most: int = MAX_HOLDERS) -> tuple[list[bytes], list[bytes]]:
    """Return the keys and the other arguments of a call of LOOK.

    Args:
        key: The lock's name.
        companions: False to read only the key itself: for many names, and for a user who has no right to the
            companion keys. Fence, permits, listeners and the queue of a fair lock are unknown then.
        most: The most holders to return.
    """
    limits = [b"%d" % limit for limit in (most, _MOST_BYTES, _MOST_MARKS)]
    if not companions:
        return [key], limits
    channels = [wake_channel(key, group) for group in (b"", b"fair:", b"read:", b"write:", b"permit:")]
    alive = queue_keys(key)[1]
    return [key, fence_key(key), alive, permits_key(key)], [*limits, *channels, redisson_channel(key)]


def look(key: bytes, *, companions: bool = True, most: int = MAX_HOLDERS) -> Command:
    """Return the command that asks what the server has under ``key``; see :func:`look_arguments`."""
    keys, others = look_arguments(key, companions=companions, most=most)
    return Command(LOOK, len(keys), len(keys) + len(others), b"".join(map(bulk_string, keys + others)))


def parse_look(reply: Reply) -> LockState:
    """Return what the reply to :func:`look` says. Whatever the key holds, the result is a state.

    Raises:
        MalformedReply: It is not a reply to this command.
    """
    if type(reply) is not list or len(reply) != 11:
        raise MalformedReply(f"{reply!r:.40} is not a reply about a lock")
    key_type, pttl, found, total, foreign, waiters, fence, permits, listeners, mode, errors = reply
    if type(key_type) is not bytes or type(found) is not list or len(found) % 3 or type(errors) is not list:
        raise MalformedReply(f"{reply!r:.40} is not a reply about a lock")
    left_ms = pttl if type(pttl) is int and pttl >= 0 else None
    entries = list(zip(found[::3], found[1::3], found[2::3], strict=True))
    values = [value for value, _, _ in entries]
    if not all(type(value) is bytes for value in values):
        raise MalformedReply(f"{values!r:.40} are not values of a lock")
    number = _number(total) or 0
    kind = _kind(key_type, values, number, mode, foreign=foreign == 1)
    # A sorted set may exist without holders, so those that may not be read must not look like none.
    if errors and key_type != b"none" and (not entries or pttl is None):
        kind, entries, values = "unreadable", [], []
    marks = _number(waiters)
    if kind == "free" and key_type == b"zset" and marks:
        kind = "read-write"  # only its waiters are left
    holders = tuple(
        _holder(kind, value, left_ms if left is None else left, count, mode) for value, left, count in entries
    )
    if kind == "foreign" and key_type != b"string":
        holders, values = (), []
    heard = _number(listeners)
    problem = errors[0] if errors else None
    return LockState(
        kind=kind,
        key_type="" if key_type == b"" else error_text(key_type.decode("ascii", "backslashreplace"), 40),
        holders=holders,
        left_out=0 if kind in ("free", "foreign", "unreadable") else max(number - len(holders), 0),
        remaining_s=None if left_ms is None else left_ms / 1000,
        waiters=marks if kind in ("fair", "read-write") or marks else None,
        listeners=None if heard is None or heard > _MOST_LISTENERS else heard,
        fence=_digits(fence),
        permits=_digits(permits),
        problem=error_text(problem.decode("utf-8", "backslashreplace")) if type(problem) is bytes else None,
        values=tuple(values),
    )


def _kind(key_type: bytes, values: Sequence[bytes], total: int, mode: Reply, *, foreign: bool) -> Kind:
    if key_type == b"none":
        return "free"
    if key_type == b"string" and values and _TOKEN.fullmatch(values[0]):
        return "fair" if is_fair_token(values[0]) else "exclusive"
    if key_type == b"hash":
        if mode in (b"read", b"write") and all(map(_REDISSON_FIELD.fullmatch, values)):
            return "redisson read-write"
        if total == len(values) == 1:
            if _FIELD.fullmatch(values[0]):
                return "reentrant"
            if _REDISSON_FIELD.fullmatch(values[0]):
                return "redisson"
    if key_type == b"zset" and not foreign:
        if not total:
            return "free"
        matches = [_MEMBER.fullmatch(value) for value in values]
        if matches and all(matches):
            return "semaphore" if values[0].startswith(b"p:") else "read-write"
    return "foreign" if key_type else "unreadable"


def _holder(kind: Kind, value: bytes, left_ms: Reply, count: Reply, mode: Reply) -> Holder:
    what: Mode = "exclusive"
    if kind in ("read-write", "semaphore"):
        what = _MODES.get(value[:1], "exclusive")
    elif kind == "redisson read-write":
        what = "write" if mode == b"write" and value.endswith(b":write") else "read"
    remaining_s = left_ms / 1000 if type(left_ms) is int else None
    return Holder(owner_of(value), token_id(value), remaining_s, _digits(count) or 1, what)


def _number(reply: Reply) -> int | None:
    return reply if type(reply) is int and reply >= 0 else None


def _digits(reply: Reply) -> int | None:
    """Return the number that a stored text spells; None if it spells none below 2**53."""
    if type(reply) is not bytes or not reply.isdigit() or len(reply) > 16:
        return None
    number = int(reply)
    return number if number <= MAX_COUNT else None


def force_release_arguments(key: bytes, key_type: str, holders: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return the keys and the other arguments of a call of FORCE_RELEASE.

    Args:
        key: The lock's name.
        key_type: The type of that key: ``string``, ``hash`` or ``zset``; see ``LockState.key_type``.
        holders: All expected holders as they are stored; see ``LockState.values``.

    Raises:
        ValueError: Keys of this type are not locks, or there are no holders.
    """
    if not holders:
        raise ValueError("a lock without holders cannot be released")
    keys = [key]
    if key_type == "string":
        if is_fair_token(holders[0]):  # else a right to the queue's keys is not needed
            keys += queue_keys(key)
        channels = (EXCLUSIVE.wake_channel(key), FAIR.wake_channel(key))
    elif key_type == "hash":
        channels = (REENTRANT.wake_channel(key), b"")
    elif key_type == "zset":
        channels = (_PERMITS if holders[0].startswith(_PERMITS.prefix) else READ).channels(key)
    else:
        raise ValueError(f"a lock is a string, a hash or a zset, not {key_type!r:.80}")
    return keys, [key_type.encode(), *channels, *holders]


def force_release(key: bytes, key_type: str, holders: Sequence[bytes]) -> Command:
    """Return the command that releases a lock for its holders; see :func:`force_release_arguments`."""
    keys, others = force_release_arguments(key, key_type, holders)
    return Command(FORCE_RELEASE, len(keys), len(keys) + len(others), b"".join(map(bulk_string, keys + others)))


def parse_force_release(reply: Reply) -> int | None:
    """Return the number of holders that were removed, 0 if there is none, or None if they are not the expected ones.

    Raises:
        MalformedReply: It is not a reply to this command.
    """
    if type(reply) is not int or reply < _CHANGED:
        raise MalformedReply(f"{reply!r:.40} is not a reply to a forced release")
    return None if reply == _CHANGED else reply
