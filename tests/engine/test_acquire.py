"""Acquire: how it ends, and that no grant is left behind that nobody waits for."""

from __future__ import annotations

import pytest

from tests.engine.support import FINE, NIL, OK, START, TAKEN, Rig, array, error, integer, names
from wheel_lock.errors import (
    ContextClosed,
    LockServerError,
    LockTimeout,
    LockUnavailable,
    TooManyLocks,
    WheelLockError,
)
from wheel_lock.lease import State
from wheel_lock.lock_types import EXCLUSIVE, FAIR, FENCED, READ, REENTRANT, WRITE, Exclusive, semaphore
from wheel_lock.lock_types.base import LockType

REFUSED = ConnectionRefusedError("nobody listens")
BUSY = error("BUSY Redis is busy running a script.")


def test_a_free_lock_is_set_with_its_token_and_time_to_live(rig: Rig) -> None:
    attempt = rig.acquire("a")
    command = rig.server.one("SET")
    assert command.arguments == (b"a", attempt.lease.token, b"NX", b"PX", b"3000")
    assert not attempt.future.done
    rig.say(OK)
    assert attempt.future.result() is True
    assert rig.believes(attempt.lease)


def test_a_fenced_lock_gets_its_number(rig: Rig) -> None:
    attempt = rig.acquire("a", kind=FENCED)
    command = rig.server.one("acquire_fenced")
    assert command.pairs == [(b"a", attempt.lease.token)]
    rig.say(integer(1763700000000000))
    assert attempt.future.result() is True
    assert attempt.lease.fence == 1763700000000000


@pytest.mark.parametrize(("kind", "reply"), [(EXCLUSIVE, NIL), (FENCED, array(1500))])
def test_a_taken_lock_is_not_granted(rig: Rig, kind: Exclusive, reply: bytes) -> None:
    attempt = rig.acquire("a", kind=kind)
    rig.say(reply)
    assert attempt.future.result() is False
    assert attempt.lease.fence is None
    rig.go_on(10.0)
    assert len(rig.server.take()) == 1  # nothing was granted, so there is nothing to undo


def test_the_servers_error_is_the_callers(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.say(error("OOM command not allowed when used memory > 'maxmemory'."))
    with pytest.raises(LockServerError, match=r"OOM command not allowed .* \(lock 'a'\)"):
        attempt.future.result()
    rig.go_on(10.0)
    assert len(rig.server.take()) == 1


def test_an_unanswered_acquire_times_out_and_is_released_on_the_same_road(rig: Rig) -> None:
    attempt = rig.acquire("a", 30.0)
    rig.server.one("SET")
    rig.launch.slow = True
    rig.go_to(START + 5.01)
    with pytest.raises(LockTimeout, match=r"did not answer within 5 s \(lock 'a'\)"):
        attempt.future.result()
    assert rig.server.one("release_many").pairs == [(b"a", attempt.lease.token)]
    rig.say(OK, FINE)  # it was granted after all
    assert not rig.believes(attempt.lease)
    assert attempt.lease.state is State.REFUSED
    assert not rig.engine.leases.held


def test_an_acquire_that_finds_no_connection_times_out_with_the_reason(rig: Rig) -> None:
    rig.connector.refusal = REFUSED
    attempt = rig.acquire("a")
    rig.go_to(START + 4.9)
    assert not attempt.future.done
    rig.go_to(START + 5.01)
    with pytest.raises(LockUnavailable, match=r"No connection to the scripted server: nobody listens \(lock 'a'\)"):
        attempt.future.result()


def test_the_time_limit_includes_reconnecting(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.go_on(3.0)
    rig.server.close()
    rig.connector.refusal = REFUSED
    rig.go_to(START + 5.01)
    with pytest.raises(LockUnavailable):
        attempt.future.result()


# Given up by the caller, at each stage


def test_given_up_while_it_waits_for_a_connection_it_is_never_sent(rig: Rig) -> None:
    rig.launch.slow = True
    attempt = rig.acquire("a")
    rig.post(attempt.request.give_up)
    rig.launch.go_on()
    rig.turn()
    assert rig.server.take() == []
    assert attempt.lease.state is State.REFUSED
    assert rig.engine.leases.acquiring == 0


def test_given_up_after_it_was_sent_it_is_released_owner_checked(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.post(attempt.request.give_up)
    acquire, release = rig.server.take()
    assert (acquire.what, release.what) == ("SET", "release_many")
    assert release.pairs == acquire.pairs == [(b"a", attempt.lease.token)]
    rig.say(OK, FINE)
    assert not rig.believes(attempt.lease)
    assert not rig.engine.leases.held
    rig.go_on(10.0)
    assert rig.server.take() == []


def test_given_up_in_the_turn_in_which_it_was_sent_it_is_released_after_it(rig: Rig) -> None:
    rig.hold("other")
    attempt = rig.acquire("a")
    rig.timer.post(attempt.request.give_up, rig.engine)
    rig.turn()
    assert [command.what for command in rig.server.take()] == ["SET", "release_many"]


def test_given_up_in_the_turn_in_which_the_grant_arrives_it_is_released(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.server.one("SET")
    rig.server.say(OK)
    rig.post(attempt.request.give_up)  # the reply is read first, in the same turn
    assert attempt.future.result() is True
    assert rig.server.one("release_many").pairs == [(b"a", attempt.lease.token)]
    assert not rig.believes(attempt.lease)
    rig.say(FINE)
    assert attempt.lease.state is State.RELEASED
    assert rig.told == []


def test_given_up_after_it_was_granted_it_is_released(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.say(OK)
    rig.go_on(1.2, rig.agree)
    rig.post(attempt.request.give_up)
    assert rig.server.one("release_many").pairs == [(b"a", attempt.lease.token)]
    assert not rig.believes(attempt.lease)


@pytest.mark.parametrize("ending", ["refused", "error", "released", "given up"])
def test_given_up_after_it_is_over_nothing_is_sent(rig: Rig, ending: str) -> None:
    attempt = rig.acquire("a")
    if ending == "given up":
        rig.post(attempt.request.give_up)
    rig.say({"refused": NIL, "error": BUSY}.get(ending, OK))
    if ending == "released":
        rig.release(attempt.lease)
    rig.agree()
    rig.turn()
    rig.server.take()
    rig.post(attempt.request.give_up)
    assert rig.server.take() == []
    assert rig.engine.leases.acquiring == 0


def test_given_up_on_a_broken_connection_the_release_goes_out_on_the_next(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.server.close()
    rig.connector.refusal = REFUSED
    rig.turn()
    rig.post(attempt.request.give_up)
    rig.connector.refusal = None
    rig.go_on(1.0)
    assert rig.server.one("release_many").pairs == [(b"a", attempt.lease.token)]


def test_a_release_of_what_was_given_up_is_tried_until_the_key_has_expired_and_no_longer(rig: Rig) -> None:
    attempt = rig.acquire("a", 3.0)
    rig.server.close()
    rig.connector.refusal = REFUSED
    rig.turn()
    rig.post(attempt.request.give_up)
    rig.go_to(START + 3.5)
    attempts = rig.connector.attempts
    rig.go_to(START + 20.0)
    assert rig.connector.attempts <= attempts + 1, "nothing is held and nobody waits, so nobody needs a connection"
    assert not rig.engine.busy


# Sent again


@pytest.mark.parametrize("kind", [EXCLUSIVE, FENCED])
def test_an_error_reply_to_a_second_try_does_not_leave_the_first_ones_grant_behind(rig: Rig, kind: Exclusive) -> None:
    attempt = rig.acquire("a", 30.0, kind=kind)
    rig.server.take()  # granted, and the reply is lost
    rig.server.close()
    rig.go_on(0.1)
    assert len(rig.server.take()) == 1
    rig.say(BUSY)
    with pytest.raises(LockServerError, match="BUSY"):
        attempt.future.result()
    rig.go_on(0.1)
    assert [command.pairs for command in rig.server.take()] == [[(b"a", attempt.lease.token)]], (
        "no grant is left behind"
    )


@pytest.mark.parametrize("kind", [FENCED, REENTRANT, READ, WRITE, FAIR, semaphore(2)], ids=lambda kind: kind.name)
def test_an_error_reply_to_a_script_is_followed_by_a_release_for_it_may_have_come_half_way(
    rig: Rig, kind: LockType
) -> None:
    attempt = rig.acquire("a", 30.0, kind=kind)
    rig.server.take()
    rig.say(BUSY)
    with pytest.raises(LockServerError, match="BUSY"):
        attempt.future.result()
    [clean_up] = rig.server.take()
    assert clean_up.what.startswith("release")
    assert clean_up.arguments[:2] == (b"a", attempt.lease.token)
    rig.say(FINE)
    assert not rig.engine.busy


def test_an_error_reply_to_a_plain_set_is_an_answer(rig: Rig) -> None:
    attempt = rig.acquire("a", 30.0)
    rig.server.one("SET")
    rig.say(BUSY)
    with pytest.raises(LockServerError, match="BUSY"):
        attempt.future.result()
    assert rig.server.take() == []
    assert not rig.engine.busy


def test_an_entry_error_in_a_second_try_does_not_leave_the_first_ones_grant_behind(rig: Rig) -> None:
    attempt = rig.acquire("a", 30.0)
    rig.server.close()
    rig.go_on(0.1)
    rig.server.one("acquire_many")
    rig.say(array(1, "OOM command not allowed when used memory > 'maxmemory'."))
    with pytest.raises(LockServerError, match="OOM"):
        attempt.future.result()
    rig.go_on(0.1)
    assert [command.pairs for command in rig.server.take()] == [[(b"a", attempt.lease.token)]], (
        "no grant is left behind"
    )


def test_a_second_try_that_finds_another_owner_is_refused(rig: Rig) -> None:
    attempt = rig.acquire("a")
    rig.server.close()
    rig.go_on(0.1)
    rig.say(array(1, TAKEN))
    assert attempt.future.result() is False


def test_a_server_that_hangs_up_on_every_acquire_is_not_asked_in_a_tight_loop(rig: Rig) -> None:
    attempt = rig.acquire("a")

    def hang_up() -> None:
        for server in rig.connector.servers:
            if not server.closed and server.take():
                server.close()

    rig.go_on(6.0, hang_up)
    with pytest.raises(WheelLockError):
        attempt.future.result()
    assert rig.connector.attempts <= 24  # pauses of 20 ms, doubled up to half a second, each a quarter more or less


# How many


def test_no_more_than_max_held_are_held_or_being_acquired() -> None:
    with Rig(max_held=2) as rig:
        held = rig.hold("a")
        pending = rig.acquire("b")
        with pytest.raises(TooManyLocks, match="the limit of this context is 2"):
            rig.acquire("c").future.result()
        rig.server.take()
        rig.say(NIL)
        assert pending.future.result() is False
        rig.hold("d")
        rig.release(held)
        rig.hold("e")
        assert [lease.name for lease in rig.engine.leases.held] == ["d", "e"]


def test_what_a_bulk_acquire_is_asking_for_counts_too() -> None:
    with Rig(max_held=5) as rig:
        bulk = rig.acquire_many(names(5))
        single = rig.acquire("one more")
        another = rig.acquire_many(["and", "more"])
        rig.go_on(0.1, rig.agree)
        assert bulk.future.done
        assert len(rig.engine.leases.held) <= 5
        for future in (single.future, another.future):
            with pytest.raises(TooManyLocks):
                future.result()


def test_a_bulk_acquire_that_would_be_too_much_sends_nothing() -> None:
    with Rig(max_held=5) as rig:
        rig.hold("a")
        bulk = rig.acquire_many(names(5))
        with pytest.raises(TooManyLocks):
            bulk.future.result()
        assert rig.server.take() == []
        rig.hold_many(names(4))


def test_every_end_of_an_acquire_gives_its_place_back() -> None:
    with Rig(max_held=1) as rig:
        for end in (NIL, BUSY):
            rig.acquire("a")
            rig.say(end)
        rig.post(rig.acquire("a").request.give_up)
        rig.server.take()
        rig.say(OK, FINE)
        unanswered = rig.acquire("a")
        rig.launch.slow = True
        rig.go_on(5.1)
        assert unanswered.future.done
        rig.server.take()
        rig.say(OK, FINE)
        assert rig.engine.leases.acquiring == 0
        rig.hold("a")


def test_a_closed_engine_grants_nothing(rig: Rig) -> None:
    rig.ask(lambda future: rig.engine.close(1.0, future))
    with pytest.raises(ContextClosed):
        rig.engine.submit(lambda: None)
    lease = rig.acquire("a")
    with pytest.raises(ContextClosed):
        lease.future.result()
