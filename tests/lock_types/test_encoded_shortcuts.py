"""What a lock type encodes by itself for the common path is, byte for byte, the command that it makes otherwise."""

from __future__ import annotations

import pytest

from tests.lease.leases import Terms
from wheel_lock.lease import Lease
from wheel_lock.lock_types import (
    EVERLASTING,
    EXCLUSIVE,
    FAIR,
    FENCED,
    FENCED_FAIR,
    FENCED_REENTRANT,
    FENCED_WRITE,
    READ,
    REENTRANT,
    WRITE,
    semaphore,
)
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.exclusive import CALLER_TOKEN, EVERLASTING_CALLER_TOKEN, WITH_CALLER_TOKEN
from wheel_lock.protocol.resp import MalformedReply, int_arg, lease_args, split_bulk_strings

TTL_MS = 30_000
TYPES = [
    *(EXCLUSIVE, FENCED, EVERLASTING, FAIR, FENCED_FAIR, REENTRANT, FENCED_REENTRANT, READ, WRITE, FENCED_WRITE),
    *(semaphore(2), CALLER_TOKEN, EVERLASTING_CALLER_TOKEN, WITH_CALLER_TOKEN[FENCED]),
]
types = pytest.mark.parametrize("lock_type", TYPES, ids=lambda lock_type: type(lock_type).__name__)


def new_lease(lock_type: LockType, name: str | bytes) -> Lease:
    key = name.encode() if isinstance(name, str) else name
    return Lease(name, lease_args(key, lock_type.token()), Terms())


@types
@pytest.mark.parametrize("name", ["order:42", "größe", b"\xff\r\n", "{user}:1", "a}b", "{}"])
def test_a_shortcut_is_the_command_itself(lock_type: LockType, name: str | bytes) -> None:
    lease = new_lease(lock_type, name)
    tried = lock_type.plain_try(lease, int_arg(TTL_MS))
    command = lock_type.acquire(lease, TTL_MS, again=False, waiter_ttl_ms=0)
    assert tried is None or command.script is None
    for capability in range(3):
        assert tried in (None, command.encode(capability, False))
        released = lock_type.keyed_release(lease, capability)
        command_to_release = lock_type.release(lease)
        assert released in (None, command_to_release.encode(capability, False))
        assert released is None or command_to_release.declared() is command_to_release


@types
def test_no_two_names_and_types_share_a_wait_queue_unless_they_exclude_each_other(lock_type: LockType) -> None:
    names = [b"a", b"{a}", b"a:2", b"reentrant:a", b"permit:a"]
    assert len({lock_type.queue_key(name) for name in names}) == len(names)
    simple = {EXCLUSIVE.queue_key(name) for name in names}
    shares = EXCLUSIVE.queue_key(b"a") == lock_type.queue_key(b"a")
    assert shares or simple.isdisjoint({lock_type.queue_key(name) for name in names})


@types
def test_a_quiet_release_is_the_release_without_its_channel_or_the_same(lock_type: LockType) -> None:
    lease = new_lease(lock_type, "order:42")
    aloud, quiet = lock_type.release(lease), lock_type.release_quietly(lease)
    assert quiet.script is aloud.script
    assert (quiet.keys, quiet.arguments) == (aloud.keys, aloud.arguments)
    before, after = split_bulk_strings(aloud.body), split_bulk_strings(quiet.body)
    assert after in (before, [*before[:-1], b""])
    if after != before:
        assert before[-1] == lock_type.wake_channel(lease.key)


@pytest.mark.parametrize(("held", "permits", "none_left"), [(1, -1, False), (2, -1, True), (2, 3, False), (3, 3, True)])
def test_no_permit_is_left_when_as_many_are_held_as_are_set_for_all_or_else_here(
    held: int, permits: int, none_left: bool
) -> None:
    assert semaphore(2).parse_locked([held, 0, 0, permits]) is none_left
    with pytest.raises(MalformedReply):
        semaphore(2).parse_locked([held, 0, 0])


def test_a_key_of_several_holders_is_not_watched() -> None:
    assert not any(lock_type.watchable for lock_type in (READ, WRITE, semaphore(2)))
