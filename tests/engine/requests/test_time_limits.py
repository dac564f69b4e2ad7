"""Callers' own time limits: they bound the whole call, whatever has become of the server, and concern no other caller."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.rig import FINE, OK, START, TAKEN, TICK_S, array, error, failure, names
from tests.engine.waiting_rig import WaitingRig
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Later
from wheel_lock.engine.waiting import many
from wheel_lock.errors import LockTimeout, LockUnavailable


def ends_at(rig: WaitingRig, future: Future[Any]) -> float:
    """When a wait ends, as it does within a minute, while the server goes on as it is."""
    while not future.done:
        assert rig.now < START + 60
        rig.go_on(TICK_S)
    return rig.now - START


def warm(rig: WaitingRig) -> None:
    """Have a connection that stands, and nothing held."""
    lease = rig.hold("warm-up")
    rig.release(lease)
    rig.agree()


def test_a_caller_that_is_refused_again_and_again_hears_why_although_the_last_try_has_no_answer(
    rig: WaitingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm(rig)
    monkeypatch.setattr(rig.engine.router, "redirection", lambda request, error: Later(0.05))
    wait = rig.wait("a", blocking_timeout=0.5)
    rig.say(error("CLUSTERDOWN Hash slot not served"))
    ends_at(rig, wait.future)
    assert isinstance(wait.error, LockUnavailable)
    assert "CLUSTERDOWN Hash slot not served: the cluster has slots without a master" in str(wait.error)


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_who_waits_behind_another_is_refused_by_the_next_answer(rig: WaitingRig, behind: int) -> None:
    rig.wait("a")
    others = [rig.wait("a", blocking_timeout=1.3) for _ in range(behind)]
    ends: list[float] = []
    refuse = rig.be_taken()
    rig.go_on(2.0, lambda: (refuse(), ends.extend(rig.now - START for other in others if other.refused and not ends)))
    assert all(other.refused for other in others)
    assert all(end <= 1.3 + 3 * TICK_S for end in ends)


@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_grant_of_many_behind_their_limit_is_undone(rig: WaitingRig, breaks: bool, given_up: bool) -> None:
    warm(rig)
    attempt = rig.acquire_many(names(3), 30.0, limit_s=2.0)
    if given_up:
        rig.post(attempt.bulk.give_up)
    else:
        assert 2.0 <= ends_at(rig, attempt.future) + 1e-6 <= 2.0 + 3 * TICK_S
        failure(attempt.future, LockTimeout, "within 2 s")
    rig.server.take()
    if breaks:
        rig.reconnect()
        assert {command.what for command in rig.server.agree()} == {"release_many"}
    else:
        rig.say(FINE, FINE)
    rig.go_on(0.1)
    rig.assert_clean()


def test_many_that_are_refused_are_waited_for(rig: WaitingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_PART", 1)
    call = rig.wait_for_each("abc", 30.0)
    rig.go_on(1.0, rig.be_taken())
    assert not call._future.done
    rig.go_on(10.0, rig.agree)
    assert call._future.result() is None
    assert sorted(lease.name for lease in call.granted) == ["a", "b", "c"]


def test_the_limit_of_a_bulk_acquire_that_is_done_means_nothing(rig: WaitingRig) -> None:
    attempt = rig.acquire_many(names(3), 30.0, limit_s=0.5)
    rig.agree()
    assert attempt.future.done
    rig.go_on(1.0, rig.agree)
    assert len(rig.held) == 3


@pytest.mark.parametrize(("connects_at", "ends_s"), [(0.1, 0.3), (0.3, 0.3)])
def test_what_others_hold_is_waited_for_until_the_callers_limit(
    rig: WaitingRig, connects_at: float, ends_s: float
) -> None:
    """The first attempt, which waits for a connection, may take half a second. Later waits have no such extra time."""
    rig.launch.slow = True
    call = rig.wait_for_each("ab", 30.0, limit_s=0.2)
    rig.go_on(connects_at)
    rig.connect()
    assert rig.server.one("acquire_many").names == ["a", "b"]
    rig.say(array(1, TAKEN, 2, TAKEN))
    assert ends_s <= ends_at(rig, call._future) + 1e-6 <= ends_s + 3 * TICK_S


@pytest.mark.parametrize("timeout", [3.0, 30.0])
def test_a_grant_behind_the_hold_limit_is_the_callers_to_know_of(rig: WaitingRig, timeout: float) -> None:
    wait = rig.wait("a", timeout, max_hold=1.0)
    rig.jump(1.5)
    rig.reply("SET", OK)
    failure(wait.future, LockTimeout, "max_hold")


def test_a_bulk_acquire_waits_for_a_server_that_was_there(rig: WaitingRig) -> None:
    warm(rig)
    rig.be_away()
    attempt = rig.acquire_many(names(2))
    rig.go_on(1.0)
    assert not attempt.future.done
