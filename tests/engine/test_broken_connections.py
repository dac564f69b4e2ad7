"""Replies that no server could have sent: everything is unknown, and it is asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.rig import FINE, NIL, OK, Rig, array, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.lock_types import FENCED
from wheel_lock.options import MAX_TTL_MS

NONSENSE = [
    *(b"hello\r\n", b"\x00\xff\xfe\r\n", b"\r\n", b"*abc\r\n", b"*99999999999999999999\r\n", b"$-7\r\n"),
    *(b":12a\r\n", b"$3\r\nabcdef\r\n"),
]


def acquire_again(rig: Rig) -> Future[Any]:
    """Acquire, have the connection break before the reply, and the second attempt sent."""
    attempt = rig.acquire("a")
    rig.reconnect()
    return attempt.future


WRONG_REPLIES: dict[str, tuple[Callable[[Rig], Future[Any]], list[bytes]]] = {
    "acquire": (
        lambda rig: rig.acquire("a").future,
        [b"+QUEUED\r\n", b"$3\r\nYES\r\n", integer(1), array(1, 0), array(2, 0), array("OK"), FINE],
    ),
    "acquire again": (acquire_again, [OK, NIL, integer(1), array(1, 0), array(2, 1), array(1, 1, 1, 1)]),
    "acquire fenced": (lambda rig: rig.acquire("a", kind=FENCED).future, [OK, NIL, FINE, integer(-1), b"$1\r\n5\r\n"]),
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
            assert all(rig.is_valid(lease) for lease in rig.held)
            assert rig.losses == []
