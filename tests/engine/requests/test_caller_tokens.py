"""What releases a lease with a caller token is not sent once the lease has lapsed: the key may be a namesake's by then."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.rig import NOSCRIPT, OK, Rig, error, failure, integer, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Later
from wheel_lock.errors import LockLost, LockUnavailable, LossReason
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types.exclusive import CALLER_TOKEN

LAPSED = LossReason.NOT_CONFIRMED
TOKEN = b"host-1"
WANTS_KEYS = error("ERR all the keys that the script uses should be passed using the KEYS array")
DEMOTED = error("READONLY You can't write against a read only replica.")


def hold(rig: Rig, name: str, timeout: float = 3.0, **terms: object) -> Lease:
    """Hold a lock with a token that another host may have chosen, too."""
    return rig.hold(name, timeout, kind=CALLER_TOKEN, token=TOKEN.decode(), **terms)


def assert_lapsed(rig: Rig, lease: Lease, future: Future[None]) -> None:
    failure(future, LockLost, "not confirmed in time")
    assert lease.state is State.LOST
    assert rig.reasons == [(lease.name, LAPSED)]
    assert rig.stats().lost == 1


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


def test_one_without_an_answer_is_not_repeated(rig: Rig) -> None:
    future = rig.release(hold(rig, "a"))
    rig.server.one("release")
    rig.reconnect()
    assert rig.server.take() == []
    failure(future, LockUnavailable)


def test_nor_is_one_that_a_router_sends_again_after_a_pause(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.engine.router, "redirection", lambda request, _: Later(4.0))
    lease = hold(rig, "a")
    future = rig.release(lease)
    rig.reply("release", error("TRYAGAIN the slot is being moved"))
    rig.go_on(4.5)
    assert rig.server.take() == []
    assert_lapsed(rig, lease, future)


@pytest.mark.parametrize("closes", [False, True], ids=["a call", "a close"])
@pytest.mark.parametrize("reply", [NOSCRIPT, WANTS_KEYS])
def test_a_release_of_many_that_was_not_executed_is_not_repeated_behind_the_deadline(
    rig: Rig, reply: bytes, closes: bool
) -> None:
    leases = [hold(rig, name) for name in names(3)]
    future: Future[Any] = rig.close_engine(30.0) if closes else rig.release_many(leases)
    rig.server.one("release_many")
    rig.clock.jump(4.0)
    rig.say(reply)
    assert rig.server.take() == []
    assert rig.server.hung_up is closes
    rig.go_on(1.0)
    assert rig.server.take() == []
    assert future.result() == (None if closes else dict.fromkeys(names(3), LAPSED))
    reason = LossReason.CONTEXT_CLOSED if closes else LAPSED
    assert sorted(rig.reasons) == [(name, reason) for name in names(3)]


def test_what_has_lapsed_when_a_close_begins_has_its_own_reason(rig: Rig) -> None:
    lapsed, extending = hold(rig, "lapsed"), hold(rig, "extending")
    rig.extend(extending, 0.5)
    rig.server.take()
    rig.post(lambda: (rig.clock.jump(4.0), rig.engine.close(30.0, Future(lambda: None))))
    assert rig.reasons == [(lease.name, LAPSED) for lease in (lapsed, extending)]
    assert rig.server.take() == []


def test_a_grant_that_comes_too_late_to_be_lost_in_time_is_released(rig: Rig) -> None:
    attempt = rig.acquire("a", kind=CALLER_TOKEN, token=TOKEN.decode())
    rig.clock.jump(2.96)
    rig.reply("SET", OK)
    assert attempt.future.result() is False
    assert rig.whats() == ["release_many"]


def test_a_grant_that_too_few_replicas_have_is_released() -> None:
    with Rig(min_replicas=1) as rig:
        attempt = rig.acquire("a", kind=CALLER_TOKEN, token=TOKEN.decode())
        rig.reply("SET", OK)
        rig.reply("WAIT", integer(0))
        failure(attempt.future, LockUnavailable, "replicas")
        assert rig.whats() == ["release_many"]


def test_a_clean_up_of_what_was_lost_is_not_sent(rig: Rig) -> None:
    lease = hold(rig, "a")
    rig.post(lambda: rig.engine.leases.mark_lost([lease], LossReason.ABANDONED))
    rig.post(lambda: rig.engine.leases.clean_up([lease]))
    assert rig.server.take() == []
