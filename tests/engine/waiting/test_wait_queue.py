"""Wait queues: what waiting costs the server, how often a queue polls, and when it lets others go first."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tests.engine.rig import NIL, OK, START, Command, array, error, integer, names
from tests.engine.waiting_rig import LINGER_S, Wait, WaitingRig, message
from tests.support.backend import without_collection
from wheel_lock.engine.future import Future
from wheel_lock.engine.pacing import Pace
from wheel_lock.engine.requests.acquire import PlainAcquire
from wheel_lock.engine.waiting.decisions import DECISIONS, IN_FLIGHT, QueueAction, QueueEvent, QueueState
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.errors import LockAlreadyHeld, LossReason
from wheel_lock.lease import Owner
from wheel_lock.options import lock_options
from wheel_lock.protocol.keys import wake_channel


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
    waits = [rig.wait("a") for _ in range(1000)]
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
        rig.give_up(wait)
    rig.go_on(0.0, rig.agree)
    rig.assert_clean()


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


TICK_S = 0.01
AT_ONCE = 8


def flood(rig: WaitingRig, expires_at: float, wake_ups: int = 100) -> int:
    """Forge wake-ups while the holder's lease goes on as it was; return how many attempts they have caused."""
    tries = 0
    for _ in range(wake_ups):
        rig.wake("a")
        while commands := rig.server.take():
            tries += len(commands)
            left = array(round((expires_at - rig.now) * 1000))
            rig.say(*[NIL if command.what == "SET" else left for command in commands])
    return tries


def test_after_a_flood_it_is_one_try_a_tick(rig: WaitingRig) -> None:
    rig.wait_first("a", timeout=30.0, fallback=1000.0)  # nothing but a wake-up helps
    expires_at = rig.now + 30.0
    flood(rig, expires_at)
    tries = 0
    for _ in range(50):
        rig.go_on(TICK_S)
        tries += len(rig.refuse(round((expires_at - rig.now) * 1000)))
        tries += flood(rig, expires_at)
    assert 20 <= tries <= 51


def test_channels_without_listeners_are_not_worth_a_command_each(rig: WaitingRig) -> None:
    wait = rig.wait_first("a", fallback=1000.0)
    for _ in range(3):
        for number in range(200):
            rig.listener.say(message(b"other:%d" % number))
        rig.turn()
    rig.listener.say(message(b"x" * 100_000))
    rig.turn()
    heard = rig.listen()
    assert len(heard) <= 16
    assert {what for what, *_ in heard} == {"UNSUBSCRIBE"}
    assert rig.connector.listeners.attempts == 1
    rig.wake("a")
    rig.grant(wait)


def test_no_order_of_events_allows_more_than_a_try_a_tick_for_long() -> None:
    for seed in range(50):
        random_ = random.Random(seed)
        pace, now, allowed = Pace(TICK_S), 100.0, 0
        expires_at = now + 30.0
        for _ in range(5000):
            now += random_.choice((0.0, 0.0, 0.001, 0.02))
            if pace.allows(now):
                allowed += 1
                pace.tried(now)
                pace.refused(now, round((expires_at - now) * 1000) if random_.random() < 0.9 else None)
        assert allowed <= (now - 100.0) / TICK_S + 2 * AT_ONCE + 1


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

    with without_collection():  # finalisers of other tests' objects are not part of it
        sys.setprofile(note)
        try:
            rig.timer.turn()
        finally:
            sys.setprofile(None)
    assert rig.server.one("SET")
    assert len(calls) <= 55, calls


def test_after_a_lost_race_it_soon_asks_how_long_the_new_holder_has(rig: WaitingRig) -> None:
    wait = rig.wait_first("a", 30.0, fallback=None)
    rig.go_on(3.0, rig.be_taken())  # by now its polls are seconds apart
    rig.server.take()
    rig.wake("a")
    rig.reply("SET", NIL)
    rig.go_on(0.12)
    rig.reply("acquire", array(700))
    rig.go_on(0.68)
    assert rig.server.take() == []
    rig.go_on(0.04)
    rig.grant(wait)


def test_rivals_have_their_turn_behind_what_is_passed_on_in_a_row(rig: WaitingRig) -> None:
    holder, _, woke = in_a_row(rig, IN_A_ROW - 1, rivals=1)
    assert woke == [True] + [False] * (IN_A_ROW - 2)
    (let_go,) = release(rig, holder)
    assert wakes(let_go), "their turn"
    rig.say(integer(2))
    rig.go_on(2 * TICK_S)
    assert rig.server.one("acquire")


def test_without_rivals_one_of_sixteen_releases_looks_for_some(rig: WaitingRig) -> None:
    _, _, woke = in_a_row(rig, 3 * IN_A_ROW, rivals=0)
    assert woke == ([True] + [False] * (IN_A_ROW - 1)) * 3


@pytest.mark.parametrize(
    ("is_there", "extends", "refused"), [(True, False, True), (True, True, True), (False, False, False)]
)
def test_who_waits_for_its_own_lock_is_refused_only_if_that_is_there(
    rig: WaitingRig, is_there: bool, extends: bool, refused: bool
) -> None:
    owner = Owner()
    lease = rig.hold("a", 30.0, owner=owner)
    wait = rig.wait("a", owner=owner)
    rig.reply("SET", NIL)
    rig.server.one("GET")
    if extends:
        rig.extend(lease, 1.0)
    rig.say(b"$%d\r\n%b\r\n" % (len(lease.token), lease.token) if is_there else NIL)
    assert isinstance(wait.error, LockAlreadyHeld) is refused


# The table by which it decides when to try


TRIES = {QueueAction.TRY, QueueAction.TRY_AT_PACE, QueueAction.TRY_PLAIN_AT_PACE, QueueAction.FOLLOW}
LOOKS = {QueueAction.LOOK, QueueAction.LOOK_LATER, QueueAction.PREPARE}
EVERY = [(state, event) for state in QueueState for event in QueueEvent]


@pytest.mark.parametrize(("state", "event"), EVERY)
def test_each_decision(state: QueueState, event: QueueEvent) -> None:
    action, following = DECISIONS[state][event]
    if state is QueueState.EMPTY:
        assert action is QueueAction.NOTHING, "nothing is sent without a waiter"
    if state is QueueState.HELD_HERE:
        assert action not in TRIES, "the lock is known to be held"
    if state in IN_FLIGHT and event is not QueueEvent.REFUSED:
        assert action is QueueAction.NOTHING, "a second try would be in flight"
        assert following is None or following in IN_FLIGHT
    if state not in IN_FLIGHT and event is QueueEvent.REFUSED:
        assert action is QueueAction.NOTHING, "no try is in flight"
    if event is QueueEvent.DUE and state is not QueueState.EMPTY and state not in IN_FLIGHT:
        assert action in TRIES | LOOKS, "otherwise nothing would come due again"
    if event is QueueEvent.REFUSED and state in IN_FLIGHT:
        assert action in TRIES | LOOKS, "the same"


@pytest.mark.parametrize("event", [QueueEvent.SUBSCRIBED, QueueEvent.MESSAGE, QueueEvent.RELEASED])
def test_a_wakeup_during_a_try_causes_another_one(event: QueueEvent) -> None:
    for state in IN_FLIGHT:
        following = DECISIONS[state][event].state or state
        assert DECISIONS[following][QueueEvent.REFUSED].action in TRIES


# Wake-ups: one connection that listens, whatever becomes of it. Waiters depend on it for speed only


PING_S = 2.0


def channels(heard: list[tuple[str, ...]]) -> list[str]:
    """What was subscribed to."""
    return [channel for what, *channels in heard if what == "SUBSCRIBE" for channel in channels]


def test_two_thousand_names_are_one_connection_and_one_subscription_each(rig: WaitingRig) -> None:
    waits = [rig.waiter(name) for name in names(2_000)]
    for number, wait in enumerate(waits, 1):
        rig.timer.post(wait.acquisition.begin, rig.engine)
        if number % 500 == 0:
            rig.go_on(0.0, rig.be_taken())
    assert rig.connector.listeners.attempts == 1
    assert sorted(channels(rig.heard)) == sorted(wake_channel(name.encode()).decode() for name in names(2_000))
    assert rig.waiting == 2_000
    rig.commands.clear()
    rig.wake("lock:1000")
    assert rig.server.one("SET").names == ["lock:1000"]
    rig.say(OK)
    assert waits[1000].granted

    # When the connection breaks they are subscribed to again, many per command, and each waiter polls once.
    rig.listener.close()
    rig.heard.clear()
    rig.go_on(0.05, rig.be_taken())
    assert len(channels(rig.heard)) == 2_000
    assert 4 <= len(rig.heard) <= 5
    assert 1_999 <= sum(command.what == "acquire" for command in rig.commands) <= 2 * 1_999
    for wait in waits:
        rig.timer.post(wait.acquisition.give_up, rig.engine)
    rig.go_on(LINGER_S + 0.1, rig.agree)
    rig.assert_clean()


def test_as_long_as_a_caller_listens_a_ping_is_sent_now_and_then(rig: WaitingRig) -> None:
    wait, serve = rig.wait_first("a"), rig.be_taken()
    rig.heard.clear()
    rig.go_on(5 * PING_S + 0.05, serve)
    assert rig.heard == [("PING",)] * 5
    rig.give_up(wait)
    rig.go_on(LINGER_S + PING_S, serve)
    rig.heard.clear()
    rig.go_on(20.0, serve)
    assert rig.heard == []
    assert rig.connector.listeners.attempts == 1


def test_who_may_not_subscribe_polls_and_it_is_logged_once(rig: WaitingRig, caplog: pytest.LogCaptureFixture) -> None:
    rig.wait("a")
    refuse = rig.be_taken()
    asked: list[str] = []

    def serve() -> None:
        for command in rig.listener.take():
            asked.append(command.what)
            rig.listener.say(
                b"+PONG\r\n" if command.what == "PING" else error("NOPERM No permissions to access a channel")
            )
        refuse()

    with caplog.at_level(logging.WARNING, "wheel_lock"):
        rig.refuse()
        rig.go_on(20.0, serve)
        rig.drain()
    assert rig.connector.listeners.attempts == 1, "a connection that answers is kept"
    assert len([record for record in caplog.records if "refuses to send wake-ups" in record.getMessage()]) == 1
    assert sum(command.what == "acquire" for command in rig.commands) in range(6, 12)
    assert asked.count("PING") == 10
    assert asked.count("SUBSCRIBE") <= 11


# The first try of a wait, which is made without the constructors of its base classes


def attributes(request: PlainAcquire) -> dict[str, object]:
    """Return what is set, but for what a first try has only when a waiter takes over."""
    slots = {slot for of in PlainAcquire.__mro__ for slot in getattr(of, "__slots__", ())} - {"future"}
    return {slot: getattr(request, slot) for slot in slots}


def test_it_is_what_the_constructors_make(rig: WaitingRig) -> None:
    first = rig.waiter("a").acquisition
    assert isinstance(first, FirstTry)
    usual = PlainAcquire(rig.engine.leases, first.leases, lock_options(3.0), Future(lambda: None))
    assert attributes(first) == attributes(usual) | {"leases": first.leases, "_options": first._options}


def test_one_that_was_removed_by_force_is_granted_by_its_repetition(rig: WaitingRig) -> None:
    wait = rig.waiter("a")
    first, lease = wait.acquisition, wait.request.lease
    assert isinstance(first, FirstTry)
    lease.loss = LossReason.KEY_GONE
    rig.post(lambda: first.go_on(rig.now, None, False))
    rig.go_on(1.5, rig.agree)
    assert wait.granted
    assert rig.is_valid(lease)
    assert lease.renewals == 1
