"""Lines: of the callers that wait for one name in a process only the first contends, and all get their turn in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.rig import OK, REFUSED, START, array
from tests.engine.waiting_rig import Wait, WaitingRig


def test_one_that_polls_asks_by_itself(rig: WaitingRig) -> None:
    rig.wait_first("a")
    rig.commands.clear()
    poller = rig.wait("a", retry_every=0.05, blocking_timeout=0.5)
    assert rig.waiting == 1
    rig.go_on(0.6, rig.be_taken())
    assert poller.refused
    assert sum(command.what == "SET" for command in rig.commands) in range(10, 13)
    assert rig.listen() == []


def test_a_thousand_waiters_cost_two_commands_per_grant(rig: WaitingRig) -> None:
    waits = [rig.waiter("a") for _ in range(1000)]
    for wait in waits:
        rig.timer.post(wait.acquisition.begin, rig.engine)
    rig.go_on(1.0, rig.be_taken())
    rig.wake("a")
    rig.commands.clear()
    for wait in waits[:200]:
        rig.go_on(0.0, rig.agree)
        assert [lease.name for lease in rig.held] == ["a"]
        assert wait.granted
        rig.release(wait.lease)
    assert len(rig.commands) <= 2 * 200
    for wait in waits[200:]:
        rig.timer.post(wait.acquisition.give_up, rig.engine)
    rig.go_on(0.0, rig.agree)
    rig.assert_clean()


def test_the_message_of_the_processes_own_release_brings_no_second_try(rig: WaitingRig) -> None:
    first, second = rig.hold_first("a"), rig.wait("a")
    rig.wait("a")
    assert rig.let_go(first) == ["release", "SET"]
    rig.wake("a")  # before the reply
    rig.say(OK)
    assert second.granted
    rig.wake("a")  # and once more behind it
    assert rig.server.take() == []


def test_its_looks_come_further_and_further_apart(rig: WaitingRig) -> None:
    rig.wait("a")
    looks: list[float] = []
    refuse = rig.be_taken()

    def note() -> None:
        before = len(rig.commands)
        refuse()
        looks.extend(rig.now - START for command in rig.commands[before:] if command.what == "acquire")

    rig.go_to(START + 30.0, note)
    expected = [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 11.4, 16.4, 21.4, 26.4]
    assert looks == pytest.approx(expected, abs=0.2)


def test_a_server_that_says_that_no_time_is_left_is_asked_once_a_tick_at_most(rig: WaitingRig) -> None:
    rig.wait("a")
    rig.go_on(1.0, rig.be_taken(remaining_ms=0))
    assert len(rig.commands) <= 110


def hand_on(rig: WaitingRig, first: Wait, waits: list[Wait], rivals: int) -> Wait:
    """Pass the lock on until the line yields; return who let go of it last."""
    for wait in waits:
        if rig.let_go(first, listeners=1 + rivals) == ["release"]:
            return first
        rig.say(OK)
        assert wait.granted
        first = wait
    raise AssertionError("it does not yield")


def crowd(rig: WaitingRig, count: int = 40, **terms: Any) -> tuple[Wait, list[Wait]]:
    """Who holds the lock, and those behind."""
    return rig.hold_first("a", terms.pop("timeout", 3.0)), [rig.wait("a", **terms) for _ in range(count)]


def test_after_sixteen_in_a_row_a_line_lets_other_processes_go_first(rig: WaitingRig) -> None:
    first, waits = crowd(rig)
    last = hand_on(rig, first, waits, rivals=1)
    assert waits.index(last) == 14, "one who was woken, fifteen more by hand"
    rig.wake("a")  # its own release
    assert rig.server.take() == [], "now somebody else may have it"
    rig.go_on(0.02)
    rig.reply("acquire", array(3_000))
    rig.wake("a")
    rig.grant(waits[15])


@pytest.mark.parametrize("listens", [True, False])
def test_without_rivals_it_does_not_yield_and_who_hears_what_it_cannot_hear_is_one(
    rig: WaitingRig, listens: bool
) -> None:
    first, waits = crowd(rig)
    if listens:
        with pytest.raises(AssertionError, match="does not yield"):
            hand_on(rig, first, waits, rivals=0)
    else:
        rig.connector.listeners.refusal = REFUSED
        rig.listener.close()
        rig.turn()
        assert hand_on(rig, first, waits, rivals=0) is waits[14]
