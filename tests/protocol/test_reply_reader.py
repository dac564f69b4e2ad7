"""What a reader of replies lets through to hiredis, what it skips, and what it refuses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from functools import partial
from unittest.mock import Mock

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wheel_lock.protocol import reply_reader
from wheel_lock.protocol.reply_reader import NOTHING, TO_REQUESTS, TOO_LONG, Limits, ReplyReader, as_malformed
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.server_errors import ServerError

WIDE = Limits(1 << 20, 1 << 10, 1 << 14)
HIREDIS = partial(hiredis.Reader, replyError=ServerError, protocolError=MalformedReply, notEnoughData=NOTHING)


def read(chunks: Iterable[bytes], limits: Limits = TO_REQUESTS) -> list[Reply]:
    """The replies in a stream that arrives in these chunks."""
    reader = ReplyReader(HIREDIS(), limits)
    replies: list[Reply] = []
    for chunk in chunks:
        reader.feed(chunk)
        fresh = False
        while True:
            if (reply := reader.gets()) is not NOTHING:
                fresh = True
                replies.append(reply)
            elif reader.more(fresh):
                fresh = False
            else:
                break
    return replies


def one_by_one(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


PIECES = [
    *(b"*", b"$", b"\r\n", b"1", b"99", b"%3", b"~1", b">2", b"_", b"a", b"*4294967295\r\n", b"$5000\r\n", b"\n", b"\r")
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=300).map(b"".join)
VALUES = st.recursive(
    st.one_of(
        st.just(b"+OK\r\n"),
        st.integers(-(2**63), 2**63 - 1).map(lambda value: b":%d\r\n" % value),
        st.just(b"$-1\r\n"),
        st.just(b"*-1\r\n"),
        TEXTS.map(lambda text: b"$%d\r\n%b\r\n" % (len(text), text)),
    ),
    lambda inner: st.lists(inner, max_size=5).map(lambda items: b"*%d\r\n%b" % (len(items), b"".join(items))),
    max_leaves=12,
)


def total(reply: Reply) -> tuple[int, int]:
    """How many lists are in a reply that have items, and how many items all have."""
    if type(reply) is not list:
        assert not isinstance(reply, (dict, set))
        return 0, 0
    inner = [total(item) for item in reply]
    return bool(reply) + sum(lists for lists, _ in inner), len(reply) + sum(items for _, items in inner)


@given(
    st.lists(
        st.sampled_from(
            [
                *(b"*", b"$", b"+", b"-", b":", b",", b"=", b"0", b"1", b"9", b"a", b"\r\n", b"\r\n", b"\n", b":1\r\n"),
                *(b"$1\r\na\r\n", b"$1\r\naX", b"$1\r\naX+", b"$1000\r\n", b"x" * 1002, b"*2\r\n", b"*7\r\n"),
                *(b"*30\r\n", b"*25\r\n" + b":1\r\n" * 25, b"~1\r\n:1\r\n", b"%1\r\n:1\r\n:1\r\n", b">1\r\n:1\r\n"),
            ]
        ),
        max_size=12,
    ).map(b"".join),
    st.lists(st.integers(1, 30), max_size=20),
    st.sampled_from([0, 1, 256]),
)
@settings(max_examples=100)
def test_no_list_is_longer_than_the_limits(stream: bytes, sizes: list[int], few: int) -> None:
    """Whatever comes, in whatever pieces; short lists are not counted as long as there are few."""
    limits = Limits(1 << 20, 5, 20)
    places = [0, *itertools.accumulate(sizes)]
    chunks = [chunk for start, end in itertools.pairwise([*places, len(stream)]) if (chunk := stream[start:end])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reply_reader, "_FEW", few)
        try:
            replies = read(chunks, limits)
        except Exception:
            return
    for reply in replies:
        lists, items = total(reply)
        assert lists <= limits.arrays + few
        assert items <= limits.items + 9 * few


@given(st.lists(VALUES, min_size=1, max_size=4).map(b"".join), st.integers(0, 2**32), st.integers(0, 20))
def test_what_an_honest_server_says_is_read_as_hiredis_alone_reads_it(stream: bytes, seed: int, cuts: int) -> None:
    alone = HIREDIS()
    alone.feed(stream)
    meant = []
    while (reply := alone.gets()) is not NOTHING:
        meant.append(reply)
    some = random.Random(seed)
    places = [0, *sorted(some.randrange(len(stream) + 1) for _ in range(cuts)), len(stream)]
    chunks = [stream[start:end] for start, end in itertools.pairwise(places) if start < end]
    assert read(chunks, WIDE) == meant


@pytest.mark.parametrize(
    "replies",
    [
        [b"*4294967295\r\n", b"*100000000\r\n", b"*20000\r\n", b"*12345678901234567890123\r\n"],
        [b"*2\r\n:1\r\n*4294967295\r\n", b"$3\r\nabcXY*4294967295\r\n"],  # hiredis does not check the end of a text
        [b"%b$1000\r\n*4294967295\r\n" % begins for begins in (b"+", b"-", b":", b",", b"#", b"(", b"_", b"=")],
        [b"%1\r\n*0\r\n:1\r\n", b"*1\r\n%1\r\n*0\r\n:1\r\n", b"~1\r\n:1\r\n", b">1\r\n:1\r\n", b"|1\r\n:1\r\n:2\r\n"],
        [b"*1\r\n" * 300, b"*2\r\n:1\r\n" * 300, b"*10\r\n" * 9],
        [b"$4294967297\r\n", b"$9223372036854775807\r\n", b"$1234x\r\n", b"$-2\r\n", b"*-2\r\n", b"$01\r\na\r\n"],
        [b":99999999999999999999\r\n", b":-0\r\n", b":abc\r\n", b":\r\n"],
        [b"+a\nb\r\n", b"hello\r\n", b"\r\n"],
    ],
    ids=["lists", "in others", "after others", "RESP3", "deep", "sizes", "integers", "lines"],
)
def test_what_no_server_says_to_us_is_malformed(replies: list[bytes]) -> None:
    for reply in replies:
        for chunks in ([reply], one_by_one(reply)):
            with pytest.raises(MalformedReply):
                read(chunks)


def test_a_list_is_refused_before_anything_is_made_of_it() -> None:
    reader = Mock(gets=lambda: NOTHING, has_data=lambda: False, len=lambda: 0)
    with pytest.raises(MalformedReply):
        ReplyReader(reader, TO_REQUESTS).feed(b"*4294967295\r\n")
    reader.feed.assert_not_called()


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20])
@pytest.mark.parametrize("within", [False, True])
def test_a_text_that_is_too_long_is_skipped_and_what_follows_is_read(size: int, within: bool) -> None:
    stream = b"%b$%d\r\n%b\r\n:7\r\n" % (
        b"*2\r\n:1\r\n" if within else b"",
        size,
        b"*9\r\n%1\r\n"[:8] * (size // 8) + b"x" * (size % 8),
    )
    chunks = [stream[at : at + 100_000] for at in range(0, len(stream), 100_000)]
    assert read(chunks) == [[1, TOO_LONG] if within else TOO_LONG, 7]


@pytest.mark.parametrize("size", [999, 1000, 1 << 20])
def test_a_long_text_is_kept_whatever_is_in_it(size: int) -> None:
    text = (b"\r\n*4294967295\r\n%1\r\n" * size)[:size]
    assert read([b"$%d\r\n%b\r\n:7\r\n" % (size, text)]) == [text, 7]


def test_the_longest_reply_to_a_call_about_5000_leases_is_read() -> None:
    items = [b":%d\r\n$500\r\n%b\r\n" % (number, b"e" * 500) for number in range(5000)]
    stream = b"*%d\r\n%b" % (2 * len(items), b"".join(items))
    chunks = [stream[at : at + 10_000] for at in range(0, len(stream), 10_000)]
    (reply,) = read(chunks)
    assert reply == [item for number in range(5000) for item in (number, b"e" * 500)]


@pytest.mark.parametrize("size", [900, 9000])
def test_a_reply_without_an_end_is_given_up(size: int) -> None:
    chunks = [b"*10000\r\n", *[b"$%d\r\n%b\r\n" % (size, b"x" * size)] * (8_100_000 // size)]
    with pytest.raises(MalformedReply, match="more than 4194304 bytes"):
        read(chunks)
    with pytest.raises(MalformedReply, match="a line of more than"):
        read([b"+", *[b"x" * 1000] * 100])


def test_limits_are_of_one_reply() -> None:
    reply = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\n0\r\n"
    assert len(read([reply * 6000])) == 6000
    assert len(read([reply] * 6000)) == 6000


def test_whatever_a_parser_raises_is_malformed() -> None:
    for error in (
        MemoryError(),
        RecursionError("deep"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        TypeError("what"),
    ):
        assert type(error).__name__ in str(as_malformed(error))
    assert as_malformed(already := MalformedReply("so")) is already
