"""Hash slots, and the names of companion keys and channels.

A companion key must be in the hash slot of its lock, on every server and for every legal name, because one script
uses both. Redis hashes the part of a key between its first ``{`` and the first ``}`` after it, if that part is not
empty, and the whole key otherwise (Redis cluster specification).
"""

from __future__ import annotations

import binascii
import functools
import itertools

SLOTS = 16384
_FENCE = b"wheel_lock:fence:"
_WAKE = b"wheel_lock:wake:"
_QUEUE = b"wheel_lock:queue:"
_ALIVE = b"wheel_lock:alive:"
_PERMITS = b"wheel_lock:permits:"
_GUARD = b"wheel_lock:guard:"
_REDISSON = b"redisson_lock__channel:"
OPENING, CLOSING = b"{}"  # as integers: to look for one of them costs a tenth of a search for bytes


def hash_tag(key: bytes) -> bytes | None:
    """Return the part of ``key`` that Redis hashes instead of the whole; None if it hashes the whole.

    >>> hash_tag(b"a{user}b"), hash_tag(b"plain"), hash_tag(b"{}x")
    (b'user', None, None)
    """
    opening = key.find(b"{")
    if opening < 0:
        return None
    closing = key.find(b"}", opening + 1)
    return key[opening + 1 : closing] if closing > opening + 1 else None


def hash_slot(key: bytes) -> int:
    """Return the cluster slot of ``key``: CRC16 (XMODEM) modulo 16384.

    >>> hash_slot(b"foo"), hash_slot(b"{foo}bar")
    (12182, 12182)
    """
    tag = hash_tag(key)
    return binascii.crc_hqx(key if tag is None else tag, 0) % SLOTS


def fence_key(name: bytes) -> bytes:
    """Return the key that holds the last fence of the lock ``name``, in the lock's own slot."""
    return companion(_FENCE, name)


def wake_channel(name: bytes, group: bytes = b"") -> bytes:
    """Return the channel on which a release of the lock ``name`` wakes its waiters, in the lock's own slot.

    Args:
        name: The lock's name.
        group: The group of waiters, if the lock has several.
    """
    if name and OPENING not in name and CLOSING not in name:  # as companion() does: each release passes here
        return _WAKE + group + b"{" + name + b"}"
    return companion(_WAKE + group, name)


def redisson_channel(name: bytes) -> bytes:
    """Return the channel on which Redisson publishes releases (RedissonLock.getChannelName, RedissonObject.prefixName)."""
    return _REDISSON + (name if OPENING in name else b"{" + name + b"}")


def queue_keys(name: bytes) -> tuple[bytes, bytes]:
    """Return the two keys of a fair lock's queue, in the lock's own slot: the waiters, and their expiries."""
    return companion(_QUEUE, name), companion(_ALIVE, name)


def permits_key(name: bytes) -> bytes:
    """Return the key that holds the number of permits of the semaphore ``name``, if that has been set."""
    return companion(_PERMITS, name)


def guard_key(key: bytes, name: bytes) -> bytes:
    """Return the key, in the slot of ``key``, that holds the newest fence of the lock ``name`` seen by guards there.

    Keys with one hash tag share it.

    >>> guard_key(b"balance:42", b"account:42"), guard_key(b"{42}:balance", b"account:42")
    (b'wheel_lock:guard:{balance:42}account:42', b'wheel_lock:guard:{42}account:42')
    """
    tag = hash_tag(key)
    if tag is None:
        tag = key if key and CLOSING not in key else _tags()[hash_slot(key)]
    return _GUARD + b"{" + tag + b"}" + name


def companion(prefix: bytes, name: bytes) -> bytes:
    """Return a key (or a channel) that starts with ``prefix``, is unique to ``name``, and shares its hash slot.

    Args:
        prefix: Must contain no brace.
        name: The lock's name.
    """
    # The character after the prefix differs between the three forms: {a} and a are two names, and so need two keys.
    if hash_tag(name) is not None:
        return prefix + b"=" + name  # the name's own tag determines the slot
    if name and CLOSING not in name:
        return prefix + b"{" + name + b"}"
    # A closing brace in the name would end the tag early, so another tag with the same slot takes its place.
    return prefix + b"#{" + _tags()[hash_slot(name)] + b"}" + name


@functools.cache
def _tags() -> dict[int, bytes]:
    """Return the shortest hexadecimal number of each slot. Computed once, in about 0.1 s."""
    tags: dict[int, bytes] = {}
    candidates = itertools.count()
    while len(tags) < SLOTS:
        tag = b"%x" % next(candidates)
        tags.setdefault(binascii.crc_hqx(tag, 0) % SLOTS, tag)
    return tags
