"""Handing a lock over: what lies between a release and the next grant, and what others hear of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType

import pytest

from tests.engine.rig import NIL, NOSCRIPT, OK, Command, array, integer
from tests.engine.waiting_rig import Wait, WaitingRig, message
from wheel_lock.engine.future import Future
from wheel_lock.engine.waiting.multi_lock import MultiLockWaiter
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE
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
