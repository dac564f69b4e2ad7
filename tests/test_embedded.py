"""wheel_lock.testing: what users test their own code with. The API itself is tried on this server in tests/redis."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext, LockLost, LockServerError, LossReason, LostEvent, TooManyLocks
from wheel_lock.protocol import scripts
from wheel_lock.testing import EmbeddedServer, ManualClock, fake_context

ROOT = Path(__file__).parents[1]


def test_a_fake_context_is_a_context_with_a_server_of_its_own() -> None:
    with fake_context() as context:
        assert isinstance(context, LockContext)
        with context.lock("order:42", timeout=30.0, fencing=True) as lock:
            assert lock.is_held
            assert lock.fence
            assert context.server.client().get("order:42") == lock.token
        assert context.server.client(decode_responses=True).keys("order:*") == []


def test_an_error_reply_does_not_cost_the_connection() -> None:
    with fake_context(declare_keys=True) as context, context.lock("order:42", timeout=5.0, renew_every=0.05) as lock:
        view = context.server.client()
        view.set("wheel_lock:permits:{licence}", "plenty")
        with pytest.raises(LockServerError, match="holds no number of permits"):
            context.semaphore("licence", 2).acquire()
        eventually(lambda: lock.renewals >= 3)
        assert context.stats().connects == 1


def test_two_fake_contexts_know_nothing_of_each_other() -> None:
    with fake_context() as first, fake_context() as second, first.lock("order:42"):
        lock = second.lock("order:42")
        assert lock.acquire(blocking=False)
        lock.release()


def test_a_fake_context_takes_the_settings_of_a_context() -> None:
    with fake_context(max_held=1, batch_size=10) as context:
        first = context.lock("a")
        first.acquire()
        with pytest.raises(TooManyLocks):
            context.lock("b").acquire()
    with pytest.raises(ValueError, match="batch_size"):
        fake_context(batch_size=0)
    with pytest.raises(TypeError):
        fake_context(no_such_setting=1)


def test_a_clock_and_a_timer_cannot_both_be_given() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="not both"):
        fake_context(clock=clock, timer=HashedWheelTimer(clock=clock))


def test_a_clock_moved_by_hand_renews_without_any_waiting() -> None:
    clock = ManualClock()
    with fake_context(clock=clock) as context, context.lock("order:42", timeout=3.0, renew_every=1.5) as lock:
        clock.advance(10.0)
        assert lock.renewals == 6
        assert lock.is_held


def test_an_hour_of_many_locks_is_over_at_once() -> None:
    clock = ManualClock()
    with fake_context(clock=clock) as context:
        locks = context.acquire_many([f"shard:{number}" for number in range(50)], timeout=300.0)
        clock.advance(3600.0)
        assert context.stats().renewed >= 50 * 35
        assert context.stats().lost == 0
        context.release_many(locks.values())


def test_a_loss_can_be_staged() -> None:
    clock = ManualClock()
    events: list[LostEvent] = []
    with fake_context(clock=clock) as context:
        lock = context.lock("order:42", timeout=30.0, on_lost=events.append)
        lock.acquire()
        context.server.client().delete("order:42")
        clock.advance(10.0)
        assert lock.lost is LossReason.KEY_GONE
        eventually(lambda: events)
        with pytest.raises(LockLost):
            lock.release()


def test_a_suspended_machine_can_be_staged() -> None:
    clock = ManualClock()
    with fake_context(clock=clock) as context:
        lock = context.lock("order:42", timeout=30.0)
        lock.acquire()
        clock.jump(60.0)
        assert not lock.is_held
        assert lock.lost is LossReason.NOT_CONFIRMED


def test_the_timer_of_users_follows_the_clock() -> None:
    clock = ManualClock()
    timer = HashedWheelTimer(clock=clock)
    ran = threading.Event()
    timer.new_timeout(lambda timeout: ran.set(), delay=30.0)
    clock.advance(29.0)
    assert not ran.is_set()
    clock.advance(1.0)
    assert ran.wait(10.0)
    assert timer.stop() == set()


def test_a_clock_does_not_go_back() -> None:
    clock = ManualClock()
    for move in (clock.advance, clock.jump):
        with pytest.raises(ValueError, match="moved back"):
            move(-1.0)


def test_the_embedded_server_has_the_plain_form_of_the_scripts() -> None:
    with fake_context() as context, context.lock("order:42"):
        client = context.server.client()
        assert client.script_exists(*[script.plain.sha1 for script in scripts.ALL]) == [True] * len(scripts.ALL)
        assert not any(client.script_exists(*[script.flagged.sha1 for script in scripts.ALL]))


def test_the_embedded_server_ends_with_its_context() -> None:
    before = set(threading.enumerate())
    context = fake_context()
    with context.lock("order:42"):
        pass
    port = context.server.port
    context.close()
    context.close()
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=port, retry=Retry(NoBackoff(), 0)).ping()
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not [name for name in left if not name.startswith("wheel-lock")]


def test_several_contexts_can_contend_on_one_embedded_server() -> None:
    server = EmbeddedServer()
    with server, LockContext(server.client()) as first, LockContext.from_url(server.url) as second:
        with first.lock("order:42"):
            assert not second.lock("order:42").acquire(blocking=False)
        with second.lock("order:42"):
            pass
    server.close()


def test_a_program_that_forgets_to_close_its_fake_context_ends_all_the_same() -> None:
    text = "from wheel_lock.testing import fake_context; c = fake_context(); l = c.lock('x'); l.acquire(); print('end')"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=20.0)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
