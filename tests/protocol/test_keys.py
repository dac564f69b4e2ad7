"""Names: our hash slots are those of the server, and a companion key can meet neither its lock nor a stranger's."""

from __future__ import annotations

import pytest
import redis.crc
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.redis_server import RedisServer
from wheel_lock.lock_types import FAIR, READ, WRITE, semaphore
from wheel_lock.lock_types.reentrant import REENTRANT
from wheel_lock.options import readable_text
from wheel_lock.protocol.keys import (
    SLOTS,
    companion,
    fence_key,
    guard_key,
    hash_slot,
    hash_tag,
    permits_key,
    queue_keys,
    redisson_channel,
    wake_channel,
)
from wheel_lock.protocol.owners import owner_head, owner_of, token_id
from wheel_lock.runtime.tokens import new_token

# Braces decide everything here, so most names are made of little else.
braced = st.lists(st.sampled_from([b"{", b"}", b"a", b"=", b"#", b"\0", b"\r\n", b"{}", b"}{"]), min_size=1).map(
    b"".join
)
names = st.binary(min_size=1, max_size=512) | braced.filter(lambda name: len(name) <= 512)
TRICKY = [b"{", b"}", b"{}", b"}{", b"{}a", b"{}{a}", b"{a}", b"a", b"{{a}}", b"{a", b"a}", b"}a{b}", b"a{}{b}", b"{{}"]


@given(key=st.binary() | braced)
def test_the_slot_is_the_one_that_redis_py_computes(key: bytes) -> None:
    for each in (key, b"", b"123456789", *TRICKY):
        assert hash_slot(each) == redis.crc.key_slot(each)


def test_the_slot_is_the_one_that_a_server_computes() -> None:
    with RedisServer("cluster-enabled yes") as cluster_node:
        client = cluster_node.client()
        for key in [*TRICKY, b"order:42", b"\0\xff\r\n", *map(fence_key, TRICKY)]:
            assert hash_slot(key) == client.execute_command("CLUSTER", "KEYSLOT", key)


@pytest.mark.parametrize(
    ("key", "tag"),
    [
        (b"plain", None),
        (b"", None),
        (b"{user}:1", b"user"),
        (b"a{user}b{other}", b"user"),
        (b"{}", None),
        (b"{}{user}", None),  # the first pair is empty, so the whole counts
        (b"{{user}}", b"{user"),
        (b"}{user}", b"user"),
        (b"{user", None),
        (b"user}", None),
    ],
)
def test_the_tag_is_what_stands_between_the_first_braces(key: bytes, tag: bytes | None) -> None:
    assert hash_tag(key) == tag


@given(name=names)
def test_a_companion_lives_in_the_slot_of_its_lock(name: bytes) -> None:
    for each in (name, b"", *TRICKY):
        assert redis.crc.key_slot(fence_key(each)) == redis.crc.key_slot(each)
        assert redis.crc.key_slot(companion(b"other:", each)) == redis.crc.key_slot(each)
        assert redis.crc.key_slot(guard_key(each, b"order:42")) == redis.crc.key_slot(each)


@given(one=names, other=names)
@example(b"a", b"{a}")
@example(b"{a}", b"={a}")
@example(b"}", b"#}")
def test_two_locks_never_share_a_companion(one: bytes, other: bytes) -> None:
    assert (fence_key(one) == fence_key(other)) == (one == other)
    assert fence_key(one) not in (one, other)
    assert fence_key(one).startswith(b"wheel_lock:fence:")


def test_no_two_short_names_share_a_companion() -> None:
    # The names that could be confused are short ones of braces and of the characters that mark the three forms.
    alphabet = b"{}=#a0"
    every = [b""]
    for _ in range(3):
        every += [name + bytes([letter]) for name in every for letter in alphabet]
    short = {name for name in every if 1 <= len(name) <= 3}
    assert len({fence_key(name) for name in short}) == len(short)


def companions(name: bytes) -> list[bytes]:
    """All keys that accompany locks of a name."""
    return [fence_key(name), permits_key(name), *queue_keys(name)]


def channels(name: bytes) -> list[bytes]:
    """All channels of the library's own on which waiters for a name are woken."""
    shared = {wake_channel(name), READ.wake_channel(name), WRITE.wake_channel(name)}
    return sorted(shared | {FAIR.wake_channel(name), semaphore(1).wake_channel(name)})


@given(one=names, other=names)
@example(b"a", b"{a}")
@example(b"a", b"a}b")
@example(b"a", b"a}{b")
@example(b"a", b"}")
@example(b"read:{a}", b"a")
@example(b":{a", b"a")
@example(b"{a}", b"}{a}")
@example(b"#{0}a", b"a")
def test_no_key_or_channel_of_a_lock_is_one_of_another(one: bytes, other: bytes) -> None:
    for made in (companions, channels):
        mine = made(one)
        assert len(set(mine)) == len(mine)
        assert (one == other) or not {*mine, one} & {*made(other), other} or other.startswith(b"wheel_lock:")


@given(one=names, other=names)
@example(b"a", b"{a}")
def test_only_redissons_channel_of_a_name_in_braces_is_that_without(one: bytes, other: bytes) -> None:
    # That is Redisson's rule. A message there only makes a waiter poll.
    shared = one == other or b"{%b}" % one == other or b"{%b}" % other == one
    assert shared or redisson_channel(one) != redisson_channel(other)
    assert one == other or REENTRANT.queue_key(one) != REENTRANT.queue_key(other)


def test_a_name_with_a_closing_brace_has_a_tag_that_stands_in_for_it() -> None:
    # Braces of our own around it would end at that brace, so a tag of the same slot is searched for.
    for number in range(20):
        name = b"}%d" % number
        assert hash_slot(fence_key(name)) == hash_slot(name) < SLOTS


# The owner at the head of a token, and the short id of a token


_PRINTABLE = st.characters(exclude_categories=("C", "Z")) | st.just(" ")


@given(st.text(_PRINTABLE, min_size=1, max_size=64))
def test_an_owner_comes_back_from_every_form_of_token(owner: str) -> None:
    try:
        head = owner_head(readable_text("owner", owner, most_bytes=64))
    except ValueError:
        assert not owner.isprintable() or len(owner.encode()) > 64
        return
    assert head.count(b":") == 1
    assert head.isascii()
    token = new_token()
    for stored in (head + token, head + token + token, b"r:" + head + token, head + token + b":17"):
        assert owner_of(stored) == owner


@given(st.binary(max_size=300))
def test_any_bytes_have_an_id_and_at_most_a_printable_owner(token: bytes) -> None:
    owner = owner_of(token)
    assert owner is None or owner.isprintable()
    assert len(token_id(token)) == 8


@pytest.mark.parametrize(
    "token", [b"", b"@", b"@:", b"@a:short", b"@%1b[2J:" + b"x" * 22, b"@" + b"a" * 65 + b":" + b"x" * 22, b"@%ff:x"]
)
def test_a_value_of_another_form_names_no_owner(token: bytes) -> None:
    assert owner_of(token) is None
