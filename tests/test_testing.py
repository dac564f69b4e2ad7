"""What users test their own code with: it has to do what its documentation shows."""

from __future__ import annotations

import itertools
import math
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import wheel_lock.testing
from tests.support.background import Background
from tests.support.timers import Member, NewTimer, ask, drain, nothing
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LockServerError, LossReason, LostEvent, Timeout
from wheel_lock.protocol import scripts
from wheel_lock.testing import EmbeddedServer, ManualClock, fake_context, settle

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def no_search_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """End a clock's search for what is due next where that does not end by itself."""
    looks = itertools.count()
    look = HashedWheelTimer.next_due_at

    def look_or_give_up(timer: HashedWheelTimer) -> float | None:
        assert next(looks) < 10_000, "the clock turns on the spot"
        return look(timer)

    monkeypatch.setattr(HashedWheelTimer, "next_due_at", look_or_give_up)
    monkeypatch.setattr(wheel_lock.testing, "_TURN_S", 2.0)  # only so that what fails fails soon


# ManualClock


@pytest.mark.parametrize("move", [ManualClock.advance, ManualClock.jump])
def test_a_clock_is_not_moved_back_or_by_what_is_no_time(
    move: Callable[[ManualClock, float], None], timer: HashedWheelTimer, clock: ManualClock
) -> None:
    assert timer.clock is clock
    for seconds in (-0.5, math.nan, math.inf):
        with pytest.raises(ValueError, match=repr(seconds)):
            move(clock, seconds)
    assert clock.now() == 1000.0


def test_what_was_set_just_before_is_heard_of_before_time_passes(timer: HashedWheelTimer, clock: ManualClock) -> None:
    # Word for word what the module's documentation shows. The thread may not have had a chance to run in between.
    ran: list[Timeout] = []
    for move in [clock.advance, clock.jump] * 20:
        timeout = timer.new_timeout(ran.append, delay=30.0)
        move(30.0)
        assert timeout.expired
    drain()
    assert len(ran) == 40


@pytest.mark.parametrize(("move", "expected"), [("advance", list(range(1001, 1011))), ("jump", [1010])])
def test_time_passes_from_one_due_moment_to_the_next_and_a_jump_is_one_step(
    timer: HashedWheelTimer, clock: ManualClock, move: str, expected: list[float]
) -> None:
    rung: list[float] = []

    def ring(now: float) -> None:
        rung.append(now)
        timer.call_at(now + 1.0, ring)

    timer.post(lambda: timer.call_at(1001.0, ring))
    ask(timer)
    getattr(clock, move)(10.0)
    assert rung == expected
    assert clock.now() == 1010.0


def test_a_timer_never_sees_the_clock_beyond_the_next_due_moment(new_timer: NewTimer, clock: ManualClock) -> None:
    # Two timers: each sees the moments of the other pass, in order.
    rung: list[tuple[str, float]] = []
    timers = [new_timer(clock=clock) for _ in range(2)]
    for timer, name, times in zip(timers, "ab", [(1001.0, 1003.0), (1002.0, 1004.0)], strict=True):
        for when in times:
            timer.post(
                lambda timer=timer, name=name, when=when: timer.call_at(  # type: ignore[misc]
                    when, lambda now: rung.append((name, now))
                )
            )
        ask(timer)
    clock.advance(10.0)
    assert rung == [("a", 1001.0), ("b", 1002.0), ("a", 1003.0), ("b", 1004.0)]


def test_a_timer_that_is_turned_by_hand_does_not_keep_time_from_passing(clock: ManualClock) -> None:
    idle = HashedWheelTimer(clock=clock)  # nor one that has not been started
    timer = HashedWheelTimer(clock=clock, threaded=False)
    timeout = timer.new_timeout(nothing, 1.0)
    timer.turn()
    clock.advance(5.0)
    assert clock.now() == 1005.0
    timer.turn()
    assert timeout.expired
    timer.stop()
    idle.stop()


def test_time_may_pass_in_a_message(timer: HashedWheelTimer, clock: ManualClock) -> None:
    # The timer's own thread cannot wait for other callers.
    ask(timer)
    timer.post(lambda: clock.advance(1.0))
    ask(timer)
    assert clock.now() == 1001.0


# settle


def test_settling_waits_for_what_was_posted_and_for_replies(timer: HashedWheelTimer) -> None:
    settle(timer)
    assert not timer.running
    seen: list[int] = []
    member = Member()
    timer.attach(member)
    member.busy = True
    timer.post(lambda: seen.append(1))
    threading.Timer(0.02, lambda: setattr(member, "busy", False)).start()
    settle(timer)
    assert seen == [1]
    assert not member.busy


def test_settling_gives_up_on_a_reply_that_does_not_come(timer: HashedWheelTimer) -> None:
    member = Member()
    timer.attach(member)
    member.busy = True
    ask(timer)
    settle(timer)


# EmbeddedServer


def test_an_embedded_server_that_is_closed_is_gone() -> None:
    server = EmbeddedServer()
    server.close()
    server.close()
    with pytest.raises(OSError, match=r"."):
        socket.create_connection(("127.0.0.1", server.port), timeout=1.0).close()
    assert not server._thread.is_alive()


def test_an_embedded_server_closes_on_a_client_that_is_still_connected() -> None:
    server = EmbeddedServer()
    with server.client(retry=Retry(NoBackoff(), 0)) as client:
        client.set("key", "value")
        Background(server.close).result()
        with pytest.raises(redis.ConnectionError):
            client.get("key")


# fake_context


def test_a_fake_context_needs_nothing_and_leaves_nothing() -> None:
    with fake_context() as context, fake_context() as other:
        assert isinstance(context, LockContext)
        assert context.timer is HashedWheelTimer.shared()
        with context.lock("order:42", timeout=30.0, fencing=True) as lock, other.lock("order:42", blocking=False):
            assert lock.is_held
            assert lock.fence
            with context.server.client() as client:
                assert client.get("order:42") == lock.token
        port = context.server.port
    assert context.closed
    assert not HashedWheelTimer.shared().stopped
    with pytest.raises(OSError, match=r"."):
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    context.close()


def test_with_a_clock_it_has_a_timer_of_its_own_that_ends_with_it(clock: ManualClock) -> None:
    with fake_context(clock=clock) as context:
        timer = context.timer
        assert timer.clock is clock
        assert timer is not HashedWheelTimer.shared()
        with context.lock("order:42"):
            pass
    assert timer.stopped


def test_with_a_timer_it_lives_on_that_and_leaves_it_alone(timer: HashedWheelTimer) -> None:
    with fake_context(timer=timer) as context:
        assert context.timer is timer
        with context.lock("order:42"):
            pass
    assert not timer.stopped


def test_a_clock_and_a_timer_are_one_too_many(timer: HashedWheelTimer, clock: ManualClock) -> None:
    with pytest.raises(ValueError, match="clock or a timer"):
        fake_context(clock=clock, timer=timer)


def test_options_are_those_of_a_context() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="batch_size"):
        fake_context(batch_size=0)
    with pytest.raises(TypeError):
        fake_context(no_such_option=1)
    assert threading.active_count() <= before + 1  # the notifier, at most
    with fake_context(max_held=1) as context, context.lock("a"), pytest.raises(wheel_lock.TooManyLocks):
        context.lock("b").acquire()


def test_a_minute_of_renewals_takes_no_time(clock: ManualClock) -> None:
    # The time-to-live is far longer than this test takes, as the server goes by its own clock.
    with fake_context(clock=clock) as context, context.lock("order:42", timeout=30.0) as lock:
        clock.advance(60.0)
        assert lock.is_held
        assert lock.renewals == 6
        assert context.stats().renewed == 6
        assert lock.remaining() > 15.0


def test_a_lock_that_is_not_renewed_is_lost_on_time(clock: ManualClock) -> None:
    losses: list[LostEvent] = []
    with fake_context(clock=clock) as context:
        lock = context.lock("order:42", timeout=30.0, renew=False, on_lost=losses.append)
        assert lock.acquire()
        clock.advance(29.0)
        assert lock.is_held
        clock.advance(1.0)
        assert not lock.is_held
        assert lock.lost is LossReason.RENEWAL_LIMIT
        drain()
        assert [(event.name, event.reason) for event in losses] == [("order:42", LossReason.RENEWAL_LIMIT)]
        assert losses[0].at <= losses[0].deadline


def test_an_error_reply_does_not_cost_the_connection() -> None:
    with fake_context(declare_keys=True) as context, context.lock("order:42", timeout=5.0, renew_every=0.05) as lock:
        view = context.server.client()
        view.set("wheel_lock:permits:{licence}", "plenty")
        with pytest.raises(LockServerError, match="holds no number of permits"):
            context.semaphore("licence", 2).acquire()
        eventually(lambda: lock.renewals >= 3)
        assert context.stats().connects == 1


def test_a_suspended_machine_can_be_staged(clock: ManualClock) -> None:
    with fake_context(clock=clock) as context:
        lock = context.lock("order:42", timeout=30.0)
        lock.acquire()
        clock.jump(60.0)
        assert not lock.is_held
        assert lock.lost is LossReason.NOT_CONFIRMED


def test_the_embedded_server_has_the_plain_form_of_the_scripts() -> None:
    with fake_context() as context, context.lock("order:42"):
        client = context.server.client()
        assert client.script_exists(*[script.plain.sha1 for script in scripts.ALL]) == [True] * len(scripts.ALL)
        assert not any(client.script_exists(*[script.flagged.sha1 for script in scripts.ALL]))


def test_a_program_that_forgets_to_close_its_fake_context_ends_all_the_same() -> None:
    text = "from wheel_lock.testing import fake_context; c = fake_context(); l = c.lock('x'); l.acquire(); print('end')"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=20.0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_without_its_package_the_embedded_server_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    monkeypatch.delitem(sys.modules, "wheel_lock.embedded", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r"needs fakeredis: pip install 'wheel-lock\[testing\]'"):
        fake_context()
