"""Acquire: how it ends, and that no grant is left behind that nobody waits for."""

from __future__ import annotations

import pytest

from tests.engine.rig import BUSY, FINE, NIL, OK, Rig, array, failure
from wheel_lock.errors import LockServerError, LockUnavailable, TooManyLocks
from wheel_lock.lock_types import EXCLUSIVE, FENCED, Exclusive


def test_an_acquire_that_finds_no_connection_times_out_with_the_reason(rig: Rig) -> None:
    rig.hold("b")
    rig.be_away()
    attempt = rig.acquire("a")
    rig.go_on(4.9)
    assert not attempt.future.done
    rig.go_on(0.11)
    failure(attempt.future, LockUnavailable, r"No connection to the scripted server: nobody listens \(lock 'a'\)")


def test_given_up_after_it_was_granted_it_is_released(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.say(OK)
    rig.go_on(1.2, rig.agree)
    rig.post(attempt.request.give_up)
    assert rig.server.one("release_many").pairs == [(b"a", attempt.lease.token)]
    assert not rig.believes(attempt.lease)


@pytest.mark.parametrize(
    ("kind", "reply", "said"),
    [(EXCLUSIVE, BUSY, "BUSY"), (FENCED, BUSY, "BUSY"), (EXCLUSIVE, array(1, "OOM no"), "OOM")],
)
def test_an_error_reply_to_a_second_try_does_not_leave_the_first_ones_grant_behind(
    rig: Rig, kind: Exclusive, reply: bytes, said: str
) -> None:
    attempt = rig.acquire("a", 30.0, kind=kind)
    rig.server.take()  # granted, and the reply is lost
    rig.reconnect()
    assert len(rig.server.take()) == 1
    rig.say(reply)
    failure(attempt.future, LockServerError, said)
    rig.go_on(0.1)
    pairs = [command.pairs for command in rig.server.take()]
    assert pairs == [[(b"a", attempt.lease.token)]], "a grant is left behind"


def test_no_more_than_max_held_are_held_or_being_acquired() -> None:
    with Rig(max_held=2) as rig:
        held = rig.hold("a")
        pending = rig.acquire("b")
        failure(rig.acquire("c").future, TooManyLocks, "the limit of this context is 2")
        rig.reply(None, NIL)
        assert pending.future.result() is False
        rig.hold("d")
        rig.release(held)
        rig.hold("e")
        assert [lease.name for lease in rig.held] == ["d", "e"]


def test_every_end_of_an_acquire_gives_its_place_back() -> None:
    with Rig(max_held=1) as rig:
        for end in (NIL, BUSY):
            rig.acquire("a")
            rig.say(end)
        rig.post(rig.acquire("a").request.give_up)
        rig.reply(None, OK, FINE)
        unanswered = rig.acquire("a")
        rig.be_silent(5.1)
        assert unanswered.future.done
        rig.reply(None, OK, FINE)
        assert rig.acquiring == 0
        rig.hold("a")
