"""What releases a lease with a caller token is not sent once the lease has lapsed: the key may be a namesake's by then."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.engine.rig import FINE, NOSCRIPT, OK, START, Attempt, Rig, error, failure, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost, LockUnavailable, LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types.base import LockType
from wheel_lock.lock_types.caller_token import CALLER_TOKEN, EVERLASTING_CALLER_TOKEN
from wheel_lock.options import MAX_SECONDS

LAPSED = LossReason.NOT_CONFIRMED
TOKEN = b"host-1"
WANTS_KEYS = error("ERR all the keys that the script uses should be passed using the KEYS array")
DEMOTED = error("READONLY You can't write against a read only replica.")


def hold(rig: Rig, name: str, timeout: float = 3.0, **terms: object) -> Lease:
    """Hold a lock with a token that another host may have chosen, too."""
    return rig.hold(name, timeout, kind=CALLER_TOKEN, token=TOKEN.decode(), **terms)


def sent_behind(rig: Rig, before: bytes) -> Counter[str]:
    """Return how often each lock is named in what has been sent since."""
    everything = rig.everything_sent()
    assert everything.startswith(before)
    return Counter(name for name in names(3) if name.encode() in everything[len(before) :])


def assert_lapsed(rig: Rig, lease: Lease, future: Future[None]) -> None:
    failure(future, LockLost, "not confirmed in time")
    assert lease.state is State.LOST
    assert rig.reasons == [(lease.name, LAPSED)]
    assert rig.stats().lost == 1


# One lock


@pytest.mark.parametrize("in_time", [True, False])
def test_a_release_that_waits_for_a_connection_is_sent_before_the_deadline_only(rig: Rig, in_time: bool) -> None:
    lease = hold(rig, "a")
    rig.be_away()
    future = rig.release(lease)
    rig.launch.slow = True
    rig.connector.refusal = None
    rig.go_to(START + (2.5 if in_time else 4.0))
    assert not future.done
    rig.connect()
    if in_time:
        assert rig.server.one("release").pairs == [(b"a", TOKEN)]
        rig.say(integer(1))
        assert future.result() is None
        assert rig.told == []
    else:
        assert rig.server.take() == []
        assert_lapsed(rig, lease, future)
    rig.go_on(5.0)
    assert rig.server.take() == []


def test_a_process_that_was_stopped_finds_its_connection_too_late(rig: Rig) -> None:
    lease = hold(rig, "a")
    rig.launch.slow = True
    rig.hang_up()
    future = rig.release(lease)
    rig.go_on(0.5)
    rig.clock.jump(4.0)  # in which the attempt to connect succeeds
    rig.connect()
    assert rig.server.take() == []
    assert_lapsed(rig, lease, future)


def test_without_a_connection_a_release_ends_with_the_time_limit_of_requests(rig: Rig) -> None:
    lease = hold(rig, "a")
    rig.be_away()
    future = rig.release(lease)
    rig.go_on(5.1)
    failure(future, LockUnavailable, "nobody listens")
    assert rig.told == []


@pytest.mark.parametrize("reply", [NOSCRIPT, DEMOTED])
def test_a_release_that_was_not_executed_is_not_repeated_behind_the_deadline(rig: Rig, reply: bytes) -> None:
    rig.connector.discovers = True
    lease = hold(rig, "a")
    future = rig.release(lease)
    rig.server.one("release")
    rig.clock.jump(4.0)
    rig.say(reply)
    rig.go_on(0.5)
    assert rig.server.take() == []
    assert_lapsed(rig, lease, future)


def test_nor_is_one_that_a_router_sends_again_after_a_pause(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.router, "redirect", lambda request, _: request.retry_after(4.0))
    lease = hold(rig, "a")
    future = rig.release(lease)
    rig.reply("release", error("TRYAGAIN the slot is being moved"))
    rig.go_on(4.5)
    assert rig.server.take() == []
    assert_lapsed(rig, lease, future)


def test_a_release_whose_reply_comes_behind_the_deadline_has_released(rig: Rig) -> None:
    lease = hold(rig, "a")
    future = rig.release(lease)
    rig.server.one("release")
    rig.be_silent(4.0)
    rig.say(integer(1))
    assert future.result() is None
    assert rig.told == []


def test_the_connection_goes_on_behind_a_release_that_is_not_sent(rig: Rig) -> None:
    first, second = hold(rig, "a"), hold(rig, "b", 30.0)
    rig.be_away()
    futures = [rig.release(first), rig.release(second)]
    rig.launch.slow = True
    rig.connector.refusal = None
    rig.go_to(START + 4.0)
    rig.connect()
    assert rig.server.one("release").pairs == [(b"b", TOKEN)]
    rig.say(integer(1))
    assert_lapsed(rig, first, futures[0])
    assert futures[1].result() is None
    assert rig.believes(rig.hold("c"))


def test_a_token_of_this_process_alone_is_released_also_behind_the_deadline(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.be_away()
    future = rig.release(lease)
    rig.launch.slow = True
    rig.connector.refusal = None
    rig.go_to(START + 4.0)
    rig.connect()
    rig.reply("release", integer(0))
    failure(future, LockLost, "key gone")


# Several


def test_a_release_of_many_that_waits_for_a_connection_leaves_out_what_has_lapsed(rig: Rig) -> None:
    lapsing, kept = hold(rig, "lock:0"), hold(rig, "lock:1", 30.0)
    rig.be_away()
    future = rig.release_many([lapsing, kept])
    sent = rig.everything_sent()
    rig.launch.slow = True
    rig.connector.refusal = None
    rig.go_to(START + 4.0)
    rig.connect()
    assert sent_behind(rig, sent) == {"lock:1": 1}
    rig.say(FINE)
    assert future.result() == {"lock:0": LAPSED}
    assert rig.reasons == [("lock:0", LAPSED)]
    assert (lapsing.state, kept.state) == (State.LOST, State.RELEASED)


def test_so_does_one_of_which_a_part_lapses_before_it_is_repeated(rig: Rig) -> None:
    first = hold(rig, "lock:0")
    rig.go_on(0.5)
    second = hold(rig, "lock:1")
    future = rig.release_many([first, second])
    assert rig.server.one("release_many").names == ["lock:0", "lock:1"]
    rig.clock.jump(2.6)
    rig.say(NOSCRIPT)
    assert rig.server.one("release_many").names == ["lock:1"]
    rig.say(FINE)
    assert future.result() == {"lock:0": LAPSED}
    assert rig.reasons == [("lock:0", LAPSED)]
    assert (first.state, second.state) == (State.LOST, State.RELEASED)


@pytest.mark.parametrize("reply", [NOSCRIPT, WANTS_KEYS])
def test_a_release_of_many_that_was_not_executed_is_not_repeated_behind_the_deadline(rig: Rig, reply: bytes) -> None:
    leases = [hold(rig, name) for name in names(3)]
    future = rig.release_many(leases)
    rig.server.one("release_many")
    rig.clock.jump(4.0)
    rig.say(reply)
    rig.go_on(1.0)
    assert rig.server.take() == []
    assert future.result() == dict.fromkeys(names(3), LAPSED)
    assert sorted(rig.reasons) == [(name, LAPSED) for name in names(3)]


@pytest.mark.parametrize("reply", [NOSCRIPT, WANTS_KEYS])
def test_nor_is_what_a_close_releases(rig: Rig, reply: bytes) -> None:
    for name in names(3):
        hold(rig, name)
    future = rig.close_engine(30.0)
    rig.server.one("release_many")
    rig.clock.jump(4.0)
    rig.say(reply)
    assert rig.server.take() == []
    assert future.done
    assert rig.server.hung_up
    assert sorted(rig.reasons) == [(name, LossReason.CONTEXT_CLOSED) for name in names(3)]


# Grants that come too late


def late_reply(rig: Rig, kind: LockType, timeout: float, given_up: bool) -> Attempt:
    """Return an acquire whose grant is read four seconds after it was sent."""
    attempt = rig.acquire("a", timeout, kind=kind, token=TOKEN.decode())
    rig.server.one("SET")
    if given_up:
        rig.post(attempt.request.give_up)
    rig.clock.jump(4.0)
    rig.say(OK)
    return attempt


@pytest.mark.parametrize("given_up", [False, True])
def test_a_grant_that_is_read_behind_its_deadline_is_left_to_expire(rig: Rig, given_up: bool) -> None:
    attempt = late_reply(rig, CALLER_TOKEN, 3.0, given_up)
    assert rig.server.take() == []
    assert not rig.held
    if not given_up:
        assert attempt.future.result() is False
    assert attempt.lease.state in (State.RELEASING, State.REFUSED)


def test_one_that_does_not_expire_is_released(rig: Rig) -> None:
    late_reply(rig, EVERLASTING_CALLER_TOKEN, MAX_SECONDS, True)
    assert rig.server.one("release_many").pairs == [(b"a", TOKEN)]


def test_one_that_its_caller_has_given_up_is_released_in_time(rig: Rig) -> None:
    attempt = rig.acquire("a", kind=CALLER_TOKEN, token=TOKEN.decode())
    rig.server.one("SET")
    rig.post(attempt.request.give_up)
    rig.go_on(1.0)
    rig.say(OK)
    assert rig.server.one("release_many").pairs == [(b"a", TOKEN)]
    rig.clock.jump(4.0)
    rig.say(NOSCRIPT)
    assert rig.server.take() == []
