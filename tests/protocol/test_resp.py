"""RESP: what we encode a parser reads back as it was, and no malformed reply gets past the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wheel_lock.protocol.resp import (
    GONE,
    TAKEN,
    MalformedReply,
    bulk_string,
    command,
    exceptions,
    int_arg,
    lease_args,
    set_if_free,
    split_bulk_strings,
)
from wheel_lock.protocol.server_errors import ServerError


def parsed(data: bytes) -> list[Any]:
    """All that is in `data`, which must end where a value ends."""
    nothing = object()
    reader = hiredis.Reader(notEnoughData=nothing)
    reader.feed(data)
    found = []
    while (value := reader.gets()) is not nothing:
        found.append(value)
    assert not reader.has_data()
    return found


@given(value=st.integers())
def test_a_number_is_read_back_as_text(value: int) -> None:
    assert parsed(int_arg(value)) == [str(value).encode()]


@given(commands=st.lists(st.lists(st.binary(), min_size=1), max_size=5))
def test_commands_in_a_row_stay_apart(commands: list[list[bytes]]) -> None:
    assert parsed(b"".join(command(*arguments) for arguments in commands)) == commands


def test_an_argument_of_a_megabyte_is_read_back_as_it_was() -> None:
    data = bytes(range(256)) * 4096
    assert parsed(command(b"SET", b"key", data)) == [[b"SET", b"key", data]]


@given(name=st.binary(), token=st.binary())
@example(b"$3\r\nabc\r\n", b"0\r\n$0\r\n\r\n")
def test_a_fragment_is_two_arguments_and_splits_back(name: bytes, token: bytes) -> None:
    assert parsed(lease_args(name, token)) == [name, token]
    assert lease_args(name, token) == bulk_string(name) + bulk_string(token)
    assert split_bulk_strings(lease_args(name, token)) == [name, token]


@given(name=st.binary(), token=st.binary(), ttl_ms=st.integers(1, 10**12))
def test_an_acquire_is_the_set_that_redis_py_sends(name: bytes, token: bytes, ttl_ms: int) -> None:
    ttl = str(ttl_ms).encode()
    assert set_if_free(lease_args(name, token), bulk_string(ttl)) == command(b"SET", name, token, b"NX", b"PX", ttl)


# The reply of a batched script


def plain(found: Sequence[tuple[int, int | ServerError]]) -> list[tuple[int, int | str]]:
    """The exceptions, with the text of each error in its place."""
    return [(index, str(status) if isinstance(status, ServerError) else status) for index, status in found]


@given(st.dictionaries(st.integers(0, 99), st.sampled_from([GONE, TAKEN]) | st.text(max_size=20), max_size=100))
def test_each_exception_is_read_with_its_own_index(found: dict[int, int | str]) -> None:
    reply: list[object] = []
    for index, status in found.items():
        reply += [index + 1, status if isinstance(status, int) else status.encode()]
    assert plain(exceptions(reply, 100)) == list(found.items())


@pytest.mark.parametrize(
    ("reply", "leases", "found"),
    [
        ([], 3, []),
        ([], 0, []),
        ([2, hiredis.ReplyError("MOVED 1 host:1")], 2, [(1, "MOVED 1 host:1")]),
        ([1, b"ERR \xff"], 1, [(0, r"ERR \xff")]),
        ([1, b"0", 2, b"1"], 2, [(0, "0"), (1, "1")]),
    ],
    ids=["all well", "of none", "an error object", "no UTF-8", "texts that look like numbers"],
)
def test_a_status_is_what_the_server_means(reply: list[object], leases: int, found: list[tuple[int, str]]) -> None:
    assert plain(exceptions(reply, leases)) == found


NO_LISTS = [None, 0, 1, -1, True, b"", b"OK", "OK", hiredis.ReplyError("ERR"), {}, (), (1, 0), {1: 0}, 1.5]
NO_PAIRS = [[1], [1, 0, 2], [None], [[]]]
NO_INDICES = [0, -1, 6, 2**63, -(2**63), True, None, b"1", "1", 1.0, [], [1], hiredis.ReplyError("ERR")]
INVALID_STATUSES: list[object] = [2, -1, 2**63, True, False, None, 0.0, [], [b"ERR"], "text", {}]


@pytest.mark.parametrize(
    ("said", "replies"),
    [
        ("list", NO_LISTS),
        ("pairs", NO_PAIRS),
        ("index", [[*before, index, 0] for index in NO_INDICES for before in ([], [1, 0])]),
        ("index 3", [[3, 0, 2, 0, 3, 1]]),
        ("status", [[1, status] for status in INVALID_STATUSES]),
    ],
)
def test_what_is_not_a_list_of_pairs_of_an_index_and_a_status_is_malformed(said: str, replies: list[object]) -> None:
    for reply in replies:
        with pytest.raises(MalformedReply, match=said):
            exceptions(reply, 5)


def test_any_index_is_malformed_where_nothing_was_asked() -> None:
    with pytest.raises(MalformedReply, match="0 leases"):
        exceptions([1, 0], 0)


@given(
    reply=st.recursive(st.none() | st.booleans() | st.integers() | st.binary() | st.floats(), st.lists, max_leaves=8)
    | st.lists(st.integers(-1, 6) | st.binary() | st.none()),
    leases=st.integers(0, 5),
)
def test_a_hostile_reply_is_read_rightly_or_not_at_all(reply: object, leases: int) -> None:
    try:
        found = exceptions(reply, leases)
    except MalformedReply:
        return
    indices = [index for index, _ in found]
    assert len(set(indices)) == len(indices)
    assert all(0 <= index < leases for index in indices)
    assert all(status in (GONE, TAKEN) or isinstance(status, ServerError) for _, status in found)


def test_a_huge_malformed_reply_makes_a_short_message() -> None:
    for reply in ([b"x" * 1_000_000, 0], [1, ["x" * 1_000_000]], [1] * 999_999):
        with pytest.raises(MalformedReply) as caught:
            exceptions(reply, 5)
        assert len(str(caught.value)) < 200
