"""The release of a lock of any kind for its holders, by a caller that has seen who they are.

The server compares: a lock whose holders are not exactly the expected ones is not changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.lock_types.exclusive import EXCLUSIVE
from wheel_lock.lock_types.fair import FAIR
from wheel_lock.lock_types.holders import is_fair_token
from wheel_lock.lock_types.read_write import READ
from wheel_lock.lock_types.reentrant import REENTRANT
from wheel_lock.lock_types.semaphore import semaphore
from wheel_lock.protocol.keys import queue_keys
from wheel_lock.protocol.resp import MalformedReply, Reply, bulk_string
from wheel_lock.protocol.scripts import FORCE_RELEASE, Command

_CHANGED = -1
_PERMITS = semaphore(1)  # the number of permits does not change its channels


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
