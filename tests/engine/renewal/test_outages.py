"""What the log says of a node that is away or refuses: one warning after a second, one word when it is well again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.engine.rig import START, TICK_S, Rig, array, error, names
from tests.support.logged import Log
from wheel_lock.lease import State
from wheel_lock.runtime.ends import End


def refusing(rig: Rig, text: str) -> Callable[[], object]:
    """What a server does that answers every renewal with an error."""
    return lambda: rig.server.closed or rig.server.say(error(text) * len(rig.server.take()))


@pytest.mark.parametrize(("count", "held"), [(1, "1 lock is"), (2, "2 locks are")])
def test_a_node_that_is_away_is_warned_of_once_and_so_is_its_return(rig: Rig, log: Log, count: int, held: str) -> None:
    rig.hold_many(names(count), 30.0)
    rig.be_away(0.98)
    assert log.lines == []
    rig.go_on(5.0)
    text = f"the scripted server has been unreachable for 1.0 s, and {held} held there: not listening"
    assert log.lines == [("WARNING", text)]
    rig.connector.refusal = None
    rig.go_on(1.0, rig.agree)
    level, text = log.lines[-1]
    assert (level, len(log.lines)) == ("INFO", 2)
    assert text.startswith("the scripted server is well again after 6.")
    rig.go_on(60.0, rig.agree)
    assert len(log.lines) == 2
    assert all(name.startswith("wheel-lock-notifier") for name in log.threads)


def test_where_nothing_is_held_nothing_is_scheduled_and_nothing_said(rig: Rig, log: Log) -> None:
    rig.release(rig.hold("a", 30.0))
    rig.agree()
    rig.be_away(2.0)
    assert rig.timer.next_due_at() is None
    assert log.lines == []


def test_a_server_that_is_silent_is_warned_of_a_second_after_it_is_suspected(rig: Rig, log: Log) -> None:
    rig.hold("a", 30.0)
    rig.go_to(START + 10.0)
    rig.server.take()
    rig.be_silent(5.9)
    assert log.lines == []
    rig.go_on(0.2)
    assert log.levels == ["WARNING"]
    assert "it does not answer" in log.lines[0][1]
    rig.say(array())
    assert log.levels == ["WARNING", "INFO"]


@pytest.mark.parametrize("text", ["BUSY Redis is busy", "LOADING the dataset", "READONLY a replica", "MISCONF disk"])
def test_a_node_that_refuses_is_warned_of_once(rig: Rig, log: Log, text: str) -> None:
    rig.hold_many(names(3), 30.0)
    rig.go_to(START + 10.0 + TICK_S, refusing(rig, text))
    rig.go_on(0.9, refusing(rig, text))
    assert log.lines == []
    rig.go_on(5.0, refusing(rig, text))
    assert log.lines == [
        ("WARNING", f"the scripted server has refused to renew locks for 1.0 s, and 3 locks are held there: {text}")
    ]
    rig.go_on(1.0, rig.agree)
    assert log.levels == ["WARNING", "INFO"]


def test_refusals_lock_by_lock_count_as_well(rig: Rig, log: Log) -> None:
    leases = rig.hold_many(names(2), 30.0)

    def refuse_one() -> None:
        for command in rig.server.take():
            place = command.names.index("lock:1") + 1 if "lock:1" in command.names else None
            rig.server.say(array() if place is None else array(place, "READONLY a replica"))

    rig.go_to(START + 15.0, refuse_one)
    assert log.levels == ["WARNING"]
    assert "READONLY a replica" in log.lines[0][1]
    assert leases[0].state is State.HELD
    rig.go_on(2.0, rig.agree)
    assert log.levels == ["WARNING", "INFO"]


def test_a_node_that_comes_and_goes_is_spoken_of_at_most_once_a_second(rig: Rig, log: Log) -> None:
    rig.hold("a", 60.0)
    for _ in range(20):
        rig.be_away(0.3)
        rig.connector.refusal = None
        rig.go_on(0.7, rig.agree)
    assert log.lines == []


def test_a_loss_ends_the_outage_when_the_node_is_met_again(rig: Rig, log: Log) -> None:
    rig.hold("a", 3.0)
    rig.be_away(10.0)
    assert log.levels == ["WARNING", "WARNING"]
    assert log.lines[1][1] == "lost 1 lock: 'a': not confirmed in time"
    rig.go_on(2.0)  # until it is seen that the callback about the loss has not taken long
    assert rig.timer.next_due_at() is None
    rig.connector.refusal = None
    attempt = rig.acquire("b", 30.0)
    rig.agree()
    assert attempt.future.result()
    assert log.levels == ["WARNING", "WARNING", "INFO"]


def test_a_thread_that_dies_leaves_no_warning_behind(rig: Rig, log: Log) -> None:
    rig.hold("a", 30.0)
    rig.be_away(0.5)
    rig.end(End.DIED)
    rig.go_on(5.0)
    assert [text for _, text in log.lines if "unreachable" in text] == []
