"""The end of a context, of its thread, of its process: nothing counts as held, losses are reported, nothing is left."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from tests.engine.rig import FINE, GONE, NIL, OK, REFUSED, Rig, array, failure, integer, names
from wheel_lock.engine import future
from wheel_lock.engine.future import Exit, Future, end_quietly
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.errors import ContextClosed, LockLost, LossReason
from wheel_lock.runtime.ends import End


def test_closing_sweeps_in_chunks_a_few_at_a_time() -> None:
    with Rig(batch_size=10) as rig:
        leases = rig.hold_many(names(200), 30.0)
        future = rig.close_engine()
        released: list[str] = []
        most = 0
        while not future.done:
            commands = rig.server.take()
            most = max(most, len(commands))
            for command in commands:
                assert command.what == "release_many"
                assert len(command.pairs) <= 10
                released += command.names
            rig.say(FINE * len(commands))
        assert released == names(200)
        assert most <= 8
        assert len(rig.losses) == len(leases)


def test_a_close_waits_for_the_first_connection_of_a_clean_up() -> None:
    with Rig(min_replicas=1) as rig:
        rig.launch.slow = True
        rig.acquire_many(["a"])
        rig.launch.held.pop(0)()  # the connection for acquires
        rig.turn()
        [granting] = rig.connector.servers
        assert [command.what for command in granting.take()] == ["acquire_many"]
        granting.say(FINE)
        rig.turn()
        assert [command.what for command in granting.take()] == ["WAIT"]
        closed = rig.close_engine()
        granting.say(integer(1))
        rig.go_on(0.1)
        assert not closed.done
        rig.launch.go_on()
        rig.go_on(0.05)
        assert [command.names for command in rig.connector.servers[-1].agree()] == [["a"]]
        rig.turn()
        assert closed.done


def test_a_close_waits_for_one_that_is_under_way_as_long_as_its_own_may_take(rig: Rig) -> None:
    rig.hold("a")
    first, second, brief = rig.close_engine(), rig.close_engine(), rig.close_engine(0.1)
    rig.go_on(0.15)
    assert [first.done, second.done, brief.done] == [False, False, True]
    rig.agree()
    assert first.done
    assert second.done
    assert rig.close_engine().done
    assert len(rig.losses) == 1


def test_a_close_of_the_parent_is_not_waited_for_in_a_forked_child(rig: Rig) -> None:
    lease = rig.hold("a")
    rig.close_engine()
    rig.engine.end(End.FORKED, RuntimeError("forked"))
    assert failure(rig.release(lease), LockLost, "'a'").reason is LossReason.CONTEXT_CLOSED
    assert rig.close_engine().done


@pytest.mark.parametrize("dies", [False, True])
def test_nothing_can_be_asked_of_a_closed_engine_even_if_its_thread_dies(rig: Rig, dies: bool) -> None:
    lease = rig.hold("a")
    rig.close_engine()
    rig.agree()
    if dies:
        die(rig)
    with pytest.raises(ContextClosed):
        rig.engine.submit(lambda: None)
    failure(rig.acquire("b").future, ContextClosed)
    failure(rig.release(lease), LockLost, "context closed")
    assert not rig.engine.busy
    assert rig.connector.attempts == 1


@pytest.mark.rig(batch_size=1)
@pytest.mark.parametrize("phase", ["not begun", "releasing", "hanging up"])
def test_a_close_is_over_in_the_last_turn_of_a_timer_that_stops(
    rig: Rig, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "_LOSSES_A_TURN", 1)
    leases = rig.hold_many(names(3 if phase == "hanging up" else 9), 30.0)
    if phase == "hanging up":
        rig.acquire("b", 30.0)
    rig.server.take()
    valid: list[bool] = []
    closed: Future[None] = Future(lambda: valid.extend(map(rig.is_valid, leases)))
    rig.timer.post(lambda: rig.engine.close(5.0, closed), rig.engine)
    if phase != "not begun":
        rig.timer.turn()
        assert "release_many" in rig.whats()
    if phase == "hanging up":
        rig.say(OK, *[FINE] * len(leases))
        rig.server.one("release_many")  # of the grant, which came too late
    assert not closed.done
    rig.end(End.STOPPED)
    rig.timer.turn()
    assert closed.done, "its caller would wait until its next check"
    assert closed.error is None
    assert valid == [False] * len(leases)
    assert rig.reasons == [(lease.name, LossReason.CONTEXT_CLOSED) for lease in leases]
    rig.server.take()
    assert rig.server.hung_up


# A context without references


@pytest.mark.parametrize("end", ["gone", "silent", "released before"])
def test_a_retired_engine_hangs_up_when_nothing_is_held_any_more(rig: Rig, end: str) -> None:
    lease = rig.hold("a")
    if end == "released before":
        rig.release(lease)
        rig.agree()
    rig.post(rig.engine.retire)
    rig.go_on(1.0)
    rig.server.take()
    if end == "gone":
        rig.say(array(1, GONE))
    elif end == "silent":
        rig.be_silent(3.0)
        rig.say(FINE)  # late; its owner-checked release is the last word
        rig.agree()
    rig.go_on(1.0)
    rig.server.take()
    assert rig.server.hung_up


def test_a_retired_engine_hangs_up_when_a_lock_object_that_is_left_was_refused(rig: Rig) -> None:
    rig.post(rig.engine.retire)
    rig.acquire("a")
    rig.reply("SET", NIL)
    rig.go_on(1.0)
    assert rig.server.take() == []
    assert rig.server.hung_up


def test_a_lock_object_that_is_left_and_used_again_and_again_needs_one_connection(rig: Rig) -> None:
    rig.post(rig.engine.retire)
    for _ in range(3):
        rig.release(rig.hold("a"))
        rig.agree()
        rig.go_on(0.1)
    assert rig.connector.attempts == 1


def test_a_subscription_that_a_retired_engine_keeps_does_nothing_until_it_is_needed_again(rig: Rig) -> None:
    rig.wakeups.listen(b"+switch-master", Mock())  # as to a Sentinel
    rig.post(rig.engine.retire)
    rig.go_on(1.0)
    assert rig.timer.next_due_at() is None
    rig.wakeups.resume()
    rig.turn()
    assert [command.what for command in rig.connector.listeners.servers[-1].take()] == ["SUBSCRIBE"]


def test_a_retired_engine_looks_no_more_for_a_server_that_was_silent(rig: Rig) -> None:
    rig.hold("a")
    rig.post(rig.engine.retire)
    rig.connector.refusal = REFUSED
    rig.go_on(10.0)
    assert rig.reasons == [("a", LossReason.NOT_CONFIRMED)]
    attempts = rig.connector.attempts
    rig.go_on(10.0)
    assert rig.connector.attempts == attempts


# The thread dies


def die(rig: Rig) -> None:
    rig.launch.slow = True  # so that an attempt to connect, should there be one, does not end before the test checks
    rig.timer._died(SystemExit("an exception thrown into the thread"))
    rig.turn()


def test_a_dead_thread_loses_every_lease_and_says_so(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    leases = rig.hold_many(names(3))
    die(rig)
    assert not any(rig.is_valid(lease) for lease in leases)
    assert rig.reasons == [(name, LossReason.THREAD_DIED) for name in names(3)]
    assert [record.levelname for record in caplog.records if "the thread" in record.getMessage()] == ["CRITICAL"]
    assert rig.stats().held == 0
    rig.server.take()
    assert rig.server.hung_up


# A forked child: what the engine does there can be called directly


def test_the_childs_copy_of_the_socket_is_closed_without_a_shutdown(rig: Rig) -> None:
    rig.hold("a")
    sock = rig.connector.sockets[0]
    keep = sock.dup()  # the parent's
    try:
        rig.fork()
        assert not rig.held  # it is the parent's
        assert sock.fileno() == -1
        rig.server.say(integer(1))
        assert keep.recv(10) == integer(1)
    finally:
        keep.close()


def test_the_thread_of_a_timer_goes_on_until_the_process_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future, "on_timer_thread", lambda: True)
    thread = threading.Thread(target=end_quietly, args=(Exit.SIGNAL,), daemon=True)
    thread.start()
    thread.join(10.0)
    assert not thread.is_alive()
