"""A quorum of five masters of which some are dead, hung, or have forgotten everything."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
import redis

from tests.redis.support import Background
from tests.support.waiting import eventually
from tests.topology.masters import LONG_S, Masters
from wheel_lock import (
    HashedWheelTimer,
    LockContext,
    LockNotAcquired,
    LockTimeout,
    LockUnavailable,
    LossReason,
    LostEvent,
)
from wheel_lock.quorum.context import QuorumContext
from wheel_lock.quorum.nodes import History, NodeConnector

pytestmark = pytest.mark.slow


@pytest.fixture
def context(masters: Masters) -> Iterator[QuorumContext]:
    with masters.context(close_timeout=1.0) as context:
        yield context


def acquirable(context: QuorumContext) -> bool:
    try:
        with context.lock("order:42", timeout=2.0, blocking_timeout=0.2):
            return True
    except (LockUnavailable, LockTimeout, LockNotAcquired):
        return False


def test_with_two_dead_it_is_acquired_renewed_and_released(masters: Masters, context: QuorumContext) -> None:
    told: list[LostEvent] = []
    with context.lock("before", timeout=0.6, on_lost=told.append) as lock:
        masters.servers[0].kill()
        masters.servers[1].kill()
        time.sleep(1.5)
        assert lock.is_held
        with context.lock("after", timeout=0.6, on_lost=told.append) as another:
            time.sleep(1.0)
            assert another.is_held
            assert another.locked()
            assert another.owned()
            assert another.extend(0.6, replace_ttl=True)
        assert lock.is_held
    assert told == []
    eventually(lambda: masters.count("before") + masters.count("after") == 0)


def test_with_two_hung_nothing_is_delayed(masters: Masters, context: QuorumContext) -> None:
    with context.lock("warm"):
        pass
    masters.servers[1].pause()
    masters.servers[3].pause()
    began = time.monotonic()
    with context.lock("order:42", timeout=1.0) as lock:
        assert lock.extend(1.0, replace_ttl=True)
        for number in range(5):
            with context.lock(f"order:{number}", timeout=5.0):
                pass
        assert time.monotonic() - began < 1.5
        time.sleep(2.0)
        assert lock.is_held
        assert lock.locked()
        assert context.lock("order:42").acquire(blocking=False) is False
    assert time.monotonic() - began < 5.0
    living = [stats for server, stats in zip(masters.servers, context.node_stats().values(), strict=True)
              if server not in (masters.servers[1], masters.servers[3])]  # fmt: skip
    assert max(stats.renewal_lag_max_s for stats in living) < 0.6
    masters.servers[1].resume()
    masters.servers[3].resume()
    eventually(lambda: masters.count("order:42") == 0, timeout_s=LONG_S)


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_with_three_down_it_is_lost_in_time(masters: Masters, context: QuorumContext, how: str) -> None:
    told: list[LostEvent] = []
    lock = context.lock("order:42", timeout=0.8, on_lost=told.append)
    lock.acquire()
    eventually(lambda: masters.count("order:42") == 5)
    for server in masters.servers[:3]:
        getattr(server, how)()
    eventually(lambda: bool(told), timeout_s=2.0)
    assert told[0].at <= told[0].deadline
    assert told[0].reason is LossReason.NOT_CONFIRMED
    assert not lock.is_held
    for server in masters.servers[3:]:
        with redis.Redis(port=server.port) as client:
            eventually(lambda client=client: not client.exists("order:42"))  # type: ignore[misc]
    time.sleep(0.5)
    assert len(told) == 1
    for server in masters.servers[:3]:
        server.resume() if how == "pause" else server.start()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_with_three_down_an_acquire_fails_soon_and_leaves_nothing(
    masters: Masters, context: QuorumContext, how: str
) -> None:
    with context.lock("warm", timeout=2.0):
        pass
    for server in masters.servers[:3]:
        getattr(server, how)()
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises((LockUnavailable, LockTimeout), match=r"Only \d of 5 nodes answered"):
            context.lock("order:42", timeout=2.0).acquire()
        assert time.monotonic() - began < 1.0
    for server in masters.servers[3:]:
        with redis.Redis(port=server.port) as client:
            eventually(lambda client=client: not client.exists("order:42"))  # type: ignore[misc]
    if how == "pause":
        for server in masters.servers[:3]:
            server.resume()
        eventually(lambda: masters.count("order:42") == 0)
    else:
        for server in masters.servers[:3]:
            server.start()

    eventually(lambda: acquirable(context), timeout_s=LONG_S)  # those that came back empty count again after a while


def test_a_grant_that_comes_after_the_failure_is_undone(masters: Masters) -> None:
    with masters.context(node_timeout=0.1) as context:
        with context.lock("warm"):
            pass
        for server in masters.servers[:3]:
            server.pause()
        with pytest.raises(LockTimeout):
            context.lock("order:42", timeout=30.0).acquire()
        for server in masters.servers[:3]:
            server.resume()  # and carries out what it was sent
        time.sleep(0.2)
        eventually(lambda: masters.count("order:42") == 0)


def test_a_lock_is_whole_again_when_a_master_comes_back(masters: Masters, context: QuorumContext) -> None:
    with context.lock("order:42", timeout=0.6) as lock:
        eventually(lambda: masters.count("order:42") == 5)
        for server in masters.servers[:2]:
            server.kill()
            server.start()
        eventually(lambda: masters.count("order:42") == 5, timeout_s=LONG_S)
        assert lock.is_held
        time.sleep(0.8)  # from here on those count again
        masters.servers[3].kill()
        masters.servers[4].kill()
        time.sleep(1.0)
        assert lock.is_held
        assert lock.owned()


def test_a_master_that_restarted_empty_helps_nobody_to_a_second_grant(masters: Masters) -> None:
    with masters.context() as first, masters.context() as second:
        with first.lock("warm", timeout=6.0), second.lock("warm too", timeout=6.0):
            pass
        for server in masters.servers[3:]:
            server.pause()  # so that the first holder has just three
        holder = first.lock("order:42", timeout=6.0, renew_every=4.0)
        assert holder.acquire()
        time.sleep(0.8)  # the others have not voted in time
        for server in masters.servers[3:]:
            server.resume()
        eventually(lambda: masters.count("order:42") == 3)
        masters.servers[0].restart()
        restarted = time.monotonic()
        contender = second.lock("order:42", timeout=6.0)
        both = False
        # The restarted one and the two that never granted it would be three.
        while time.monotonic() - restarted < 1.5:
            if not contender.is_held:
                contender.acquire(blocking=False)
            both = both or (contender.is_held and holder.is_held)
        assert not both
        # The restarted one is asked as soon as it is connected to, and may have granted the name to the contender by then.
        eventually(lambda: holder.lost in (LossReason.KEY_GONE, LossReason.TAKEN), timeout_s=LONG_S)


def test_it_counts_again_after_the_longest_timeout(masters: Masters) -> None:
    with masters.context(longest_timeout=1.5) as context:
        with context.lock("warm", timeout=1.0):
            pass
        for server in masters.servers[:3]:
            server.restart()
        began = time.monotonic()
        lock = context.lock("order:42", timeout=1.0)
        assert lock.acquire(blocking=False) is False
        eventually(lambda: masters.count("order:42") == 0)
        assert lock.acquire(blocking_timeout=LONG_S)
        assert time.monotonic() - began >= 1.4
        lock.release()


def test_a_young_master_counts_at_once_only_where_it_is_trusted() -> None:
    now = 100.0
    trusting, careful = History(lambda: now, True), History(lambda: now, False)
    for history in (trusting, careful):
        history.seen("a", 7)
    assert trusting.counts_from(30.0) < now
    assert careful.counts_from(30.0) == 124.0  # what it says of its age may be a second too much
    now = 200.0
    for history in (trusting, careful):
        history.seen("a", 107)
        assert history.counts_from(30.0) < now
        history.seen("b", 0)
        assert history.counts_from(30.0) == 230.0
    now = 300.0
    trusting.seen(None, 0)
    assert trusting.counts_from(30.0) == 330.0


def test_the_death_of_the_thread_loses_it(masters: Masters) -> None:
    timer = HashedWheelTimer()
    told: list[LostEvent] = []
    with masters.context(timer=timer) as context:
        lock = context.lock("order:42", timeout=1.0, on_lost=told.append)
        lock.acquire()

        def die() -> None:
            raise SystemExit

        timer.post(die)
        eventually(lambda: not lock.is_held)
        eventually(lambda: len(told) == 1)
        assert lock.lost in (LossReason.THREAD_DIED, LossReason.NOT_CONFIRMED)
        eventually(lambda: acquirable(context), timeout_s=LONG_S)
    timer.stop()


def test_the_end_of_the_interpreter_releases_it(masters: Masters) -> None:
    ports = [server.port for server in masters.servers]
    masters.servers[2].pause()
    program = textwrap.dedent(f"""
        import redis
        from wheel_lock import LockContext
        context = LockContext.quorum([redis.Redis(port=port) for port in {ports}])
        lock = context.lock("order:42", thread_local=False)
        assert lock.acquire()
    """)
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)
    assert time.monotonic() - began < 5.0
    masters.servers[2].resume()
    eventually(lambda: masters.count("order:42") == 0)


def test_a_password_that_one_master_does_not_take_costs_one_vote(masters: Masters) -> None:
    clients = [redis.Redis(port=server.port) for server in masters.servers]
    clients[0] = redis.Redis(port=masters.servers[0].port, password="wrong")
    with LockContext.quorum(clients) as context, context.lock("order:42", timeout=3.0) as lock:
        assert lock.is_held


def test_votes_that_end_in_one_tick_end_once(masters: Masters, context: QuorumContext) -> None:
    told: list[LostEvent] = []
    locks = [context.lock(f"limited:{number}", timeout=0.5, max_hold=0.4, on_lost=told.append) for number in range(50)]
    for lock in locks:
        assert lock.acquire()
    eventually(lambda: len(told) == 50)
    time.sleep(0.3)
    assert context.timer.running
    with context.lock("order:42", timeout=0.5, blocking=False):
        pass
    assert {event.reason for event in told} == {LossReason.HOLD_LIMIT}
    assert context.stats().lost_by_reason == {LossReason.HOLD_LIMIT: 50}


def test_without_a_majority_of_answers_nothing_is_said(masters: Masters) -> None:
    told: list[LostEvent] = []
    with masters.context(close_timeout=1.0, response_timeout=0.5, node_timeout=0.3) as context:
        with context.lock("before"):
            pass
        for server in masters.servers[3:]:
            server.pause()
        lock = context.lock("order:42", timeout=30.0, on_lost=told.append)
        assert lock.acquire()
        for server in masters.servers[3:]:
            server.kill()
        masters.servers[2].pause()
        # Two say that it is held; the other three do not answer.
        for ask in (lock.locked, lock.owned, context.lock("order:42").locked):
            with pytest.raises((LockTimeout, LockUnavailable)):
                ask()
        assert lock.is_held
        # Two have released it; the others never granted it, or do not answer.
        with pytest.raises((LockTimeout, LockUnavailable)):
            lock.release()
        assert told == []
        assert context.stats().lost == 0


def test_a_master_that_is_busy_has_not_forgotten_anything(masters: Masters) -> None:
    client = masters.servers[0].client()
    client.config_set("lua-time-limit", 1)
    history = History(time.monotonic, True)
    NodeConnector(client, history).connect(2.0).close()
    busy = Background(
        lambda: client.eval("local t = redis.call('TIME')[1] + 2 while redis.call('TIME')[1] + 0 < t do end", 0)
    )
    time.sleep(0.3)
    with pytest.raises(redis.ConnectionError, match="BUSY"):
        NodeConnector(redis.Redis(port=masters.servers[0].port), history).connect(2.0)
    busy.result()
    NodeConnector(client, history).connect(2.0).close()
    assert history.counts_from(0.0) < 0
    client.config_set("lua-time-limit", 5000)


def test_masters_that_are_known_to_be_dead_do_not_hold_up_an_election(masters: Masters, context: QuorumContext) -> None:
    for server in masters.servers[3:]:
        server.kill()
    with context.lock("before"):
        pass
    for server in masters.servers[:2]:
        server.client().set("order:42", "another's")
    # One has granted it: should the dead two do so, it would be held.
    began = time.monotonic()
    assert not context.lock("order:42", timeout=30.0).acquire(blocking=False)
    assert time.monotonic() - began < 2.0  # a tenth of the timeout is 3 s
