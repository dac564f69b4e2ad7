"""Lines: of the callers that wait for one name in a process only the first contends, and all get their turn in order."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.rig import NIL, OK, REFUSED, START, array, integer, runs
from tests.engine.waiting_rig import LINGER_S, Wait, WaitingRig

CHANNEL = "wheel_lock:wake:{a}"


# Who asks


def test_a_free_lock_is_simply_set_and_nobody_listens(rig: WaitingRig) -> None:
    wait = rig.wait("a")
    assert rig.server.one("SET").pairs == [(b"a", wait.request.lease.token)]
    rig.say(OK)
    assert wait.granted
    assert rig.connector.listeners.servers == []
    assert len(rig.lines) == 0
    assert rig.lines.in_flight == {}


def test_one_that_is_refused_subscribes_and_asks_once_more_when_that_holds(rig: WaitingRig) -> None:
    wait = rig.wait("a")
    rig.refuse()
    assert rig.server.take() == []
    assert rig.listen() == [("SUBSCRIBE", CHANNEL)]
    command = rig.server.one("acquire")
    assert command.names == ["a"]
    assert command.ttl_ms == 3000
    rig.say(integer(0))  # it had been released in between
    assert wait.granted
    assert wait.lease.token == command.pairs[0][1]


def test_one_that_polls_asks_by_itself(rig: WaitingRig) -> None:
    rig.wait_first("a")
    rig.commands.clear()
    poller = rig.wait("a", retry_every=0.05, blocking_timeout=0.5)
    assert rig.waiting == 1
    rig.go_on(0.6, rig.be_taken())
    assert poller.refused
    assert sum(command.what == "SET" for command in rig.commands) in range(10, 13)
    assert rig.listen() == []


# Order


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


# Handed over within the process


def test_the_message_of_the_processes_own_release_brings_no_second_try(rig: WaitingRig) -> None:
    first, second = rig.hold_first("a"), rig.wait("a")
    rig.wait("a")
    assert rig.let_go(first) == ["release", "SET"]
    rig.wake("a")  # before the reply
    rig.say(OK)
    assert second.granted
    rig.wake("a")  # and once more behind it
    assert rig.server.take() == []


@pytest.mark.parametrize("way", ["in bulk", "lost", "abandoned"])
def test_whatever_way_the_holder_ends_the_next_asks(rig: WaitingRig, way: str) -> None:
    first = rig.hold_first("a")
    second = rig.wait("a")
    if way == "in bulk":
        rig.release_many([first.lease])
        assert rig.whats() == ["release_many"]
        rig.say(array())
    elif way == "abandoned":
        rig.post(lambda: rig.engine.abandon(first.lease))
    else:
        rig.go_on(1.1)
        rig.reply("renew", array(1, 0))
    rig.grant(second)


def test_an_exported_lock_is_not_held_here_any_more(rig: WaitingRig) -> None:
    first, second = rig.hold_first("a"), rig.wait("a")
    rig.ask(lambda future: rig.engine.export(first.lease, future))
    adopted = rig.hold("a")  # stands for the one who adopts it
    rig.release(adopted)
    assert rig.whats() == ["release", "SET"]
    rig.say(integer(1), OK)
    assert second.granted


# What wakes the first


def test_it_looks_when_the_holders_lease_would_end(rig: WaitingRig) -> None:
    wait = rig.wait("a", fallback=100.0)
    rig.refuse()
    rig.listen()
    rig.refuse(remaining_ms=700)
    rig.go_to(START + 0.69)
    assert rig.server.take() == []
    rig.go_to(START + 0.72)
    rig.reply("acquire", array(2_000))  # it has been renewed
    rig.go_on(1.9)
    assert rig.server.take() == []
    rig.go_on(0.15)
    rig.grant(wait)


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


def test_a_lease_that_never_expires_is_looked_at_now_and_then(rig: WaitingRig) -> None:
    wait = rig.wait("a", fallback=1.0)
    rig.refuse()
    rig.listen()
    rig.refuse(remaining_ms=-1)
    rig.go_on(0.95)
    assert rig.server.take() == []
    rig.go_on(0.1)
    rig.grant(wait)


def test_who_has_said_how_often_he_looks_looks_also_at_what_is_held_here(rig: WaitingRig) -> None:
    rig.hold_first("a", 30.0)
    rig.wait("a", fallback=0.5)
    rig.go_on(0.55)
    rig.reply("acquire", array(29_000))
    assert rig.wait("a").goes_on
    rig.wake("a")
    assert rig.server.take() == [], "that it was refused is no news"
    rig.go_on(0.55)
    rig.server.one("acquire")


# Others get their chance


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


def test_a_rival_who_gets_it_in_between_ends_the_row(rig: WaitingRig) -> None:
    first, waits = crowd(rig)
    for wait in waits[:10]:
        rig.let_go(first, listeners=2)
        rig.say(OK)
        first = wait
    rig.let_go(first, listeners=2)
    rig.say(NIL)
    rig.wake("a")
    rig.grant(waits[10])
    assert hand_on(rig, waits[10], waits[11:], rivals=1) is waits[25]


def test_what_ends_while_the_line_yields_does_not_hurry_it(rig: WaitingRig) -> None:
    first, waits = crowd(rig, 20)
    hand_on(rig, first, waits, rivals=1)
    stray = rig.lease("a")
    rig.post(lambda: rig.lines.ended(stray))
    assert rig.server.take() == []
    rig.go_on(0.02)
    rig.grant(waits[15])


def test_one_who_comes_while_the_line_yields_and_nobody_listens_is_not_forgotten(rig: WaitingRig) -> None:
    first, waits = crowd(rig, 16)
    hand_on(rig, first, waits, rivals=1)
    rig.listener.close()
    rig.give_up(waits[15])
    late = rig.wait("a", fallback=100.0)
    rig.refuse()
    rig.go_on(0.05, rig.listen)
    rig.grant(late)


def test_one_who_comes_and_goes_while_the_line_yields_does_not_make_it_deaf(rig: WaitingRig) -> None:
    first, waits = crowd(rig, 20, fallback=100.0)
    hand_on(rig, first, waits, rivals=1)
    for wait in waits[15:]:
        rig.give_up(wait)
    late = rig.wait("a", fallback=100.0)
    rig.refuse()
    rig.refuse()
    rig.wake("a")
    rig.grant(late)


def test_a_last_try_while_the_line_yields_does_not_make_it_deaf(rig: WaitingRig) -> None:
    first = rig.hold_first("a", 30.0)
    waits = [rig.wait("a", fallback=100.0, blocking_timeout=0.009 if number == 15 else None) for number in range(20)]
    rig.go_on(0.005)
    hand_on(rig, first, waits, rivals=1)
    rig.go_on(0.006)
    rig.reply("acquire", array(30_000))
    assert waits[15].refused
    rig.wake("a")
    rig.grant(waits[16])


def test_a_release_elsewhere_while_a_try_is_under_way_does_not_begin_to_yield(rig: WaitingRig) -> None:
    first, waits = crowd(rig, 20, timeout=30.0, fallback=100.0)
    for wait in waits[:14]:
        rig.let_go(first, listeners=2)
        rig.say(OK)
        first = wait
    assert waits[13].granted
    rig.let_go(waits[13], listeners=2)  # the fifteenth; the next try is refused: a stranger was quicker
    rig.say(NIL)
    rig.wake("a")
    rig.server.one("SET")
    stray = rig.lease("a")
    for _ in range(20):
        rig.post(lambda: rig.lines.ended(stray))  # leases of this process that came by other ways
    rig.say(NIL)
    rig.reply("acquire", array(30_000))
    rig.wake("a")
    rig.grant(waits[14])


# What is left


def test_a_line_and_its_subscription_outlive_the_last_waiter_for_a_while_and_no_longer(rig: WaitingRig) -> None:
    first = rig.hold_first("a")
    rig.let_go(first)
    rig.go_on(LINGER_S - 0.1)
    assert rig.listen() == []
    rig.go_on(0.2)
    assert ("UNSUBSCRIBE", CHANNEL) in rig.listen()
    rig.assert_clean()


def test_who_comes_while_it_lingers_needs_no_new_subscription(rig: WaitingRig) -> None:
    rig.let_go(rig.hold_first("a"))
    again = rig.wait("a")
    assert runs(rig.refuse()) == [("SET", 1)]
    assert rig.listen() == []
    rig.server.one("acquire")  # what was published since its own try nobody has listened to
    rig.say(array(30_000))
    rig.go_on(LINGER_S + 1.0, rig.be_taken())
    assert rig.line("a") is not None, "somebody stands in it again"
    rig.server.take()
    rig.wake("a")
    rig.grant(again)
