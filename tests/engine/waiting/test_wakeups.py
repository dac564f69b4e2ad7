"""Wake-ups: one connection that listens, whatever becomes of it. Waiters depend on it for speed only."""

from __future__ import annotations

import logging

import pytest

from tests.engine.rig import OK, error, names
from tests.engine.waiting_rig import LINGER_S, WaitingRig
from wheel_lock.protocol.keys import wake_channel

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
