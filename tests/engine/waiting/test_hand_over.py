"""Handing a lock over: what lies between a release and the next grant, and what others hear of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

from tests.engine.rig import BUSY, NIL, NOSCRIPT, OK, Command, agreement, array, integer
from tests.engine.waiting_rig import Wait, WaitingRig, message
from wheel_lock.engine.future import Future
from wheel_lock.engine.waiting.multi_lock import MultiLockWaiter
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.lock_types.exclusive import Exclusive
from wheel_lock.options import lock_options

CHANNEL = b"wheel_lock:wake:{a}"
IN_A_ROW = 16


def release(rig: WaitingRig, wait: Wait, *more: Callable[[], object]) -> list[Command]:
    """Have the holder release the lock, and more happen in the same turn; return what was sent."""
    rig.timer.post(lambda: rig.engine.release(wait.lease, Future(lambda: None)), rig.engine)
    for work in more:
        rig.timer.post(work, rig.engine)
    rig.timer.turn()
    return rig.server.take()


def wakes(command: Command) -> bool:
    """Whether a release wakes those who listen."""
    assert command.what == "release"
    return command.arguments[2] == CHANNEL


def in_a_row(rig: WaitingRig, grants: int, rivals: int) -> tuple[Wait, list[Wait], list[bool]]:
    """Pass a lock on in this process so often; return its holder, those behind, and which releases woke others."""
    holder, waits, woke = rig.hold_first("a", 30.0), [rig.wait("a", 30.0) for _ in range(50)], []
    for _ in range(grants):
        let_go, acquire = release(rig, holder)
        woke.append(wakes(let_go))
        assert acquire.what == "SET"
        rig.say(integer(2 + rivals if woke[-1] else 1), OK)
        holder = waits.pop(0)
        assert holder.granted
    return holder, waits, woke


# What is done before the wake-up


def test_the_next_try_is_there_when_the_wake_up_comes(rig: WaitingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bytes] = []
    next_token = Exclusive.next_token

    def draw(lock_type: Exclusive, first: bytes) -> bytes:
        drawn.append(next_token(lock_type, first))
        return drawn[-1]

    monkeypatch.setattr(Exclusive, "next_token", draw)
    rig.wait_first("a", 30.0)
    for _ in range(3):
        before = len(drawn)
        rig.wake("a")
        tried = rig.server.one("SET")
        assert len(drawn) == before
        assert tried.pairs[0][1] == drawn[-1], "its token was drawn beforehand"
        rig.say(NIL)
        assert len(drawn) == before + 1, "and that of the next one after the refusal"


def test_from_a_wake_up_to_the_try_there_are_few_calls(rig: WaitingRig) -> None:
    rig.wait_first("a", 30.0)
    rig.wake("a")
    rig.reply("SET", NIL)  # what is made once has been made
    rig.listener.say(message(CHANNEL))
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        rig.timer.turn()
    finally:
        sys.setprofile(None)
    assert rig.server.one("SET")
    assert len(calls) <= 55, calls


def test_a_prepared_try_is_made_anew_where_names_move(rig: WaitingRig) -> None:
    wait = rig.wait_first("a", 30.0)
    rig.engine.router.stable = False
    elsewhere = rig.engine.router.renewer.group(EXCLUSIVE, 20.0, 20_000, None)
    rig.engine.router.group_of = lambda group, key: elsewhere  # type: ignore[method-assign]
    rig.wake("a")
    assert rig.server.one("SET").ttl_ms == 20_000
    rig.say(OK)
    assert wait.granted
    assert wait.lease.group is elsewhere


def test_a_try_that_is_prepared_before_the_first_one_has_leases_of_its_own(rig: WaitingRig) -> None:
    ahead = rig.wait_first("a", 30.0, blocking_timeout=1.0)
    behind = rig.wait("a", 30.0)
    rig.go_on(1.2, rig.be_taken())
    assert ahead.refused, "and for the next of the queue, which has not tried yet, a try is prepared"
    looks: list[Command] = []
    while not looks:
        rig.go_on(0.5)
        looks = rig.refuse(30_000)
    rig.wake("a")
    woken = rig.server.one("SET")
    assert woken.pairs[0][1] != looks[0].pairs[0][1], "a refused token is not used again"
    rig.say(OK)
    assert behind.granted
    rig.assert_clean()


# Tries after a wake-up


def test_after_lost_races_a_try_asks_who_holds_it_now(rig: WaitingRig) -> None:
    rig.wait_first("a", 30.0)
    tried = []
    for _ in range(8):
        rig.wake("a")
        tried += [command.what for command in rig.refuse(30_000)]
    assert tried == ["SET"] * 4 + ["acquire"] * 4


def test_after_a_lost_race_it_soon_asks_how_long_the_new_holder_has(rig: WaitingRig) -> None:
    wait = rig.wait_first("a", 30.0, fallback=None)
    rig.go_on(3.0, rig.be_taken())  # by now its looks are seconds apart
    rig.server.take()
    rig.wake("a")
    rig.reply("SET", NIL)
    rig.go_on(0.12)
    rig.reply("acquire", array(700))
    rig.go_on(0.68)
    assert rig.server.take() == []
    rig.go_on(0.04)
    rig.grant(wait)


# Which releases wake others


@pytest.mark.parametrize("rivals", [0, 1])
def test_what_is_passed_on_in_the_process_is_announced_at_the_beginning_of_each_row(
    rig: WaitingRig, rivals: int
) -> None:
    holder, _, woke = in_a_row(rig, IN_A_ROW - 1, rivals)
    assert woke == [True] + [False] * (IN_A_ROW - 2)
    let_go, *more = release(rig, holder)
    if rivals:
        assert wakes(let_go), "their turn"
        assert more == []
    else:
        assert not wakes(let_go)
        rig.say(integer(1), OK)


def test_without_rivals_one_of_sixteen_releases_looks_for_some(rig: WaitingRig) -> None:
    _, _, woke = in_a_row(rig, 3 * IN_A_ROW, rivals=0)
    assert woke == ([True] + [False] * (IN_A_ROW - 1)) * 3


def test_the_last_of_a_queue_is_released_aloud(rig: WaitingRig) -> None:
    holder, waits, _ = in_a_row(rig, 3, rivals=0)
    for wait in waits:
        rig.give_up(wait)
    [let_go] = release(rig, holder)
    assert wakes(let_go)


def test_what_follows_is_not_sent_after_all_and_others_are_woken(rig: WaitingRig) -> None:
    holder, (last, *others), _ = in_a_row(rig, 3, rivals=1)
    for wait in others:
        rig.give_up(wait)
    [let_go] = release(rig, holder, last.acquisition.give_up)
    assert not wakes(let_go)
    rig.turn()
    assert rig.server.one("PUBLISH").arguments == (CHANNEL, b"0")
    rig.say(integer(1), integer(1))
    rig.assert_clean()


def test_a_try_that_fails_behind_a_quiet_release_wakes_others(rig: WaitingRig) -> None:
    holder, waits, _ = in_a_row(rig, 3, rivals=1)
    let_go, acquire = release(rig, holder)
    assert not wakes(let_go)
    assert acquire.what == "SET"
    rig.say(integer(1), BUSY)
    assert all(wait.error is not None for wait in waits)
    assert [command.arguments for command in rig.server.take()] == [(CHANNEL, b"0")]


def test_a_release_that_is_repeated_wakes_others(rig: WaitingRig) -> None:
    holder, waits, _ = in_a_row(rig, 3, rivals=1)
    let_go, acquire = release(rig, holder)
    assert not wakes(let_go)
    assert acquire.what == "SET"
    rig.say(NOSCRIPT, NIL)
    again = rig.server.one("release")
    assert again.use_eval
    assert wakes(again)
    rig.wake("a")
    rig.server.one("SET")
    rig.say(integer(3), OK)
    assert waits[0].granted


def test_a_quiet_release_of_which_only_the_repetition_is_answered_wakes_others(rig: WaitingRig) -> None:
    holder, (behind, *others), _ = in_a_row(rig, 3, rivals=1)
    for wait in others:
        rig.give_up(wait)
    assert not wakes(release(rig, holder)[0])
    rig.give_up(behind)
    rig.server.take()
    rig.reconnect(0.1)
    said = rig.server.take()
    again = next(command for command in said if command.what == "release")
    assert wakes(again)
    rig.say(*[integer(0) if command is again else agreement(command) for command in said])
    [woken] = [command for command in rig.server.take() if command.what == "PUBLISH"]
    assert woken.arguments == (CHANNEL, b"0")


def test_a_wake_up_that_is_owed_waits_for_a_connection_and_is_sent_until_it_is_answered(rig: WaitingRig) -> None:
    holder, waits, _ = in_a_row(rig, 3, rivals=1)
    let_go, acquire = release(rig, holder)
    assert not wakes(let_go)
    assert acquire.what == "SET"
    rig.say(integer(1))
    rig.be_away()
    for wait in waits:
        rig.give_up(wait)
    rig.connector.refusal = None
    for _ in range(2):
        rig.go_on(1.0)
        [woken] = [command for command in rig.server.take() if command.what == "PUBLISH"]
        assert woken.arguments == (CHANNEL, b"0")
        rig.hang_up()
    rig.go_on(1.0, rig.agree)
    rig.assert_clean()


def test_a_wake_up_that_is_owed_to_a_server_that_stays_away_is_forgotten(rig: WaitingRig) -> None:
    holder, waits, _ = in_a_row(rig, 3, rivals=1)
    assert not wakes(release(rig, holder)[0])
    rig.say(integer(1))
    rig.be_away()
    for wait in waits:
        rig.give_up(wait)
    rig.go_on(40.0)  # the clean-up of the try lasts as long as what it may have been granted
    attempts = rig.connector.attempts
    rig.go_on(15.0)
    assert rig.connector.attempts == attempts, "nobody connects for its sake any more"
    assert not rig.engine.router.renewer.node.busy


def test_before_one_who_waits_for_several_names_a_release_wakes_others(rig: WaitingRig) -> None:
    holder, waits, _ = in_a_row(rig, 3, rivals=1)
    options, future = lock_options(3.0), Future[Sequence[Lease] | None](lambda: None)
    leases = [rig.lease("a"), rig.lease("b")]
    several = MultiLockWaiter(rig.engine.wait_queues, options, leases, False, True, None, future)
    rig.post(several.begin)
    rig.reply(None, array(1, 30_000))
    for wait in waits:
        rig.give_up(wait)
    rig.server.take()
    let_go, acquire = release(rig, holder)
    assert acquire.what == "acquire_all"
    assert wakes(let_go)
