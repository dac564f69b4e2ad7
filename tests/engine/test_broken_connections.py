"""Connections that break at any byte, and replies that make no sense: everything is unknown, the engine lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.rig import (
    BUSY,
    FINE,
    NIL,
    NOSCRIPT,
    OK,
    START,
    Command,
    Rig,
    ScriptedServer,
    agreement,
    array,
    error,
    integer,
    names,
)
from wheel_lock.engine.future import Future
from wheel_lock.lease import State
from wheel_lock.lock_types import FENCED
from wheel_lock.options import MAX_TTL_MS
from wheel_lock.protocol.resp import command

NONSENSE = [
    *(b"hello\r\n", b"\x00\xff\xfe\r\n", b"\r\n", b"*abc\r\n", b"*99999999999999999999\r\n", b"$-7\r\n"),
    *(b":12a\r\n", b"$3\r\nabcdef\r\n"),
]


@pytest.mark.parametrize("reset", [False, True])
def test_a_renewal_whose_reply_breaks_off_at_any_byte_is_unknown_and_tried_again(reset: bool) -> None:
    reply = array(1, 0, 2, "MISCONF no disk")
    for cut in range(len(reply)):
        with Rig() as rig:
            leases = rig.hold_many(["a", "b", "c"])
            deadlines = [lease.deadline for lease in leases]
            rig.go_on(1.0)
            if not reset:
                rig.server.take()  # unread bytes make a reset of the end
            rig.server.say(reply[:cut])
            rig.hang_up()
            assert [lease.state for lease in leases] == [State.OVERDUE] * 3
            assert [lease.deadline for lease in leases] == deadlines
            assert rig.stats().unknown == 3
            rig.go_on(0.1, rig.agree)
            assert [lease.state for lease in leases] == [State.HELD] * 3
            assert rig.told == []


def test_several_replies_that_break_off_at_any_byte_go_to_their_own_requests() -> None:
    replies = [FINE, integer(1), OK, NIL]
    whole = b"".join(replies)
    ends = [len(b"".join(replies[: number + 1])) for number in range(len(replies))]
    for cut in range(len(whole) + 1):
        with Rig() as rig:
            renewed, released = rig.hold("renewed"), rig.hold("released")
            rig.go_on(1.0)
            rig.server.take()
            release = rig.release(released)
            granted, refused = rig.acquire("granted"), rig.acquire("refused")
            # The first renewal is of both leases, and one of them is being released.
            rig.server.say(whole[:cut])
            rig.hang_up()
            assert renewed.state is (State.HELD if cut >= ends[0] else State.OVERDUE)
            assert [future.done for future in (release, granted.future, refused.future)] == [
                cut >= end for end in ends[1:]
            ]
            rig.go_on(0.1)
            repeated = [sent.what for sent in rig.server.take()]
            assert sorted(repeated) == sorted(
                what
                for what, end in zip(["renew", "release", "acquire_many", "acquire_many"], ends, strict=True)
                if cut < end or what == "renew"  # what is held is verified on the new connection
            )


def test_a_renewal_of_which_the_server_has_read_any_number_of_bytes_is_unknown() -> None:
    with Rig() as rig:
        rig.hold("a")
        rig.go_on(1.0)
        length = len(rig.everything_sent()) - len(command(b"SET", b"a", b"x" * 22, b"NX", b"PX", b"3000"))
    for cut in range(length):
        with Rig() as rig:
            lease = rig.hold("a")
            rig.go_on(1.0)
            rig.server.read(cut)
            rig.hang_up()
            assert lease.state is State.OVERDUE
            assert rig.believes(lease)
            rig.go_on(0.1, rig.agree)
            assert lease.state is State.HELD


# Replies that no server could have sent


def test_a_renewals_reply_that_makes_no_sense_drops_the_connection_and_proves_nothing() -> None:
    for reply in (
        *(OK, NIL, integer(0), integer(1), b"$1\r\n0\r\n", b"*-1\r\n", array(1), array(1, 0, 2), array(0, 0)),
        *(array(3, 0), array(-1, 0), array(2**62, 0), array(1, 2), array(1, -1), array(1, 0, 1, 0)),
        *(b"*2\r\n:1\r\n$-1\r\n", b"*2\r\n:1\r\n*0\r\n", b"*2\r\n$1\r\n1\r\n:0\r\n"),
        *(b"*1\r\n*2\r\n:1\r\n:0\r\n", b"%1\r\n:1\r\n:0\r\n", b"#t\r\n", *NONSENSE),
    ):
        with Rig() as rig:
            leases = rig.hold_many(["a", "b"])
            deadlines = [lease.deadline for lease in leases]
            rig.go_on(1.0)
            old = rig.server
            rig.say(reply)
            old.take()
            assert old.hung_up
            assert [lease.state for lease in leases] == [State.OVERDUE] * 2
            assert [lease.deadline for lease in leases] == deadlines
            assert all(rig.believes(lease) for lease in leases)
            rig.go_on(0.1, rig.agree)
            assert [lease.state for lease in leases] == [State.HELD] * 2
            assert rig.told == []


WRONG_REPLIES: dict[str, tuple[Callable[[Rig], Future[Any]], list[bytes]]] = {
    "acquire": (
        lambda rig: rig.acquire("a").future,
        [b"+QUEUED\r\n", b"$3\r\nYES\r\n", integer(1), array(1, 0), array(2, 0), array("OK"), FINE],
    ),
    "acquire fenced": (
        lambda rig: rig.acquire("a", kind=FENCED).future,
        [OK, NIL, FINE, integer(-1), b"$1\r\n5\r\n"],
    ),
    "acquire many": (
        lambda rig: rig.acquire_many(names(3)).future,
        [OK, NIL, integer(1), array(4, 1), array(1, 1, 1, 1), array(1, 7)],
    ),
    "release": (
        lambda rig: rig.release(rig.hold("a")),
        [OK, NIL, FINE, integer(1 << 40), integer(-2), b"$1\r\n1\r\n", b"#t\r\n"],
    ),
    "extend": (
        lambda rig: rig.extend(rig.hold("a"), 5.0, replace=True),
        [OK, NIL, FINE, integer(-3), integer(MAX_TTL_MS + 1), b"$4\r\n5000\r\n"],
    ),
}


@pytest.mark.parametrize("what", WRONG_REPLIES)
def test_a_reply_that_makes_no_sense_decides_nothing_and_it_is_asked_again(what: str) -> None:
    begin, replies = WRONG_REPLIES[what]
    for reply in (*replies, *NONSENSE):
        with Rig() as rig:
            future = begin(rig)
            held = {lease: lease.deadline for lease in rig.held}
            rig.reply(None, reply)
            assert not future.done
            assert {lease: lease.deadline for lease in rig.held} == held
            rig.go_on(0.1, rig.agree)
            assert future.result() in (True, None)
            assert len(rig.held) == {"acquire many": 3, "release": 0}.get(what, 1)
            assert all(rig.believes(lease) for lease in rig.held)
            assert rig.told == []


def test_a_reply_that_nothing_was_asked_for_drops_the_connection() -> None:
    for reply in (OK, FINE, integer(1), error("ERR who knows"), *NONSENSE):
        with Rig() as rig:
            lease = rig.hold("a")
            old = rig.server
            rig.say(reply)
            old.take()
            assert old.hung_up
            rig.go_on(2.0, rig.agree)
            assert rig.connector.attempts == 2
            assert rig.believes(lease)
            assert lease.renewals >= 1


def test_one_reply_too_many_does_not_answer_what_is_asked_next(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.reply("SET", NIL, OK)
    assert attempt.future.result() is False
    again = rig.acquire("a")
    rig.go_on(0.2)
    assert not again.future.done
    assert again.lease.state is State.PENDING


@pytest.mark.parametrize("after_reply", [False, True])
def test_an_end_of_file_is_noticed_with_and_without_a_last_reply(rig: Rig, after_reply: bool) -> None:
    lease = rig.hold("a")
    rig.go_on(1.0)
    rig.server.take()
    if after_reply:
        rig.server.say(FINE)
    rig.reconnect(0.1, rig.agree)
    assert rig.connector.attempts == 2
    assert lease.renewals == 1 + after_reply  # once more to verify it on the new connection


def test_a_random_server_never_kills_the_engine_and_never_makes_a_lease_outlive_its_deadline(rig: Rig) -> None:
    import random

    source = random.Random(7)
    alphabet: list[Callable[[Command], bytes]] = [
        agreement,
        agreement,
        agreement,
        lambda sent: array(1, 0),
        lambda sent: array(1, 1),
        lambda sent: NIL,
        lambda sent: BUSY,
        lambda sent: NOSCRIPT,
        lambda sent: source.randbytes(source.randrange(1, 12)),
        lambda sent: agreement(sent)[:-1],
        lambda sent: b"",
    ]
    hung_up: set[ScriptedServer] = set()

    def babble() -> None:
        for server in rig.connector.servers:
            for sent in server.take():
                server.say(source.choice(alphabet)(sent))
            if source.random() < 0.01 and server not in hung_up:
                hung_up.add(server)
                server.close()

    for number in range(40):
        rig.acquire(f"lock:{number % 7}", source.choice([0.3, 1.0, 3.0]))
        for lease in list(rig.held):
            if source.random() < 0.2:
                rig.release(lease)
        rig.go_on(source.random() / 2, babble)
        assert all(lease.deadline > rig.now - 0.02 for lease in rig.held)
    hung_up.update(rig.connector.servers)
    for server in rig.connector.servers:
        server.close()
    rig.go_on(4.0, rig.agree)
    survivor = rig.hold("after all", 3.0)
    rig.go_on(10.0, rig.agree)
    assert survivor.renewals >= 8
    assert rig.now > START + 10
