"""Readers and writers of several processes: neither side keeps the other out for ever, and the dead not for long."""

from __future__ import annotations

import time

import pytest

from tests.crowds.actors import CLOCKS_S, LOOK_S, OUTLIVED_S, TIMEOUT_S, Actor, expiries
from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstills
from tests.support.waiting import eventually
from wheel_lock import LockContext, ReadLock, WriteLock

pytestmark = pytest.mark.slow

NAME = "shelf"
BOUND_S = 2 * TIMEOUT_S


def test_a_killed_reader_keeps_writers_out_for_its_own_timeout(
    redis_server: RedisServer, context: LockContext, standstills: Standstills
) -> None:
    with Actor(redis_server.url) as victim, Actor(redis_server.url) as writer:
        # The key lives as long as the last of its readers would; each of them is out of the way by itself.
        patient = context.rw_lock(NAME, 30.0).read()
        patient.acquire()
        victim.hold("hand", NAME, kind="read", timeout=TIMEOUT_S)
        writer.order("acquire", hand="hand", kind="write", name=NAME, timeout=TIMEOUT_S)
        time.sleep(OUTLIVED_S)  # it is renewed, and the writer has waited for so long that it looks seldom
        assert not writer.deeds()
        looked, left_s = time.monotonic(), min(expiries(redis_server, NAME))  # the patient one has longer
        victim.kill()
        patient.release()
        followed = writer.deed("acquire", "hand")
        assert left_s - CLOCKS_S < followed.after - looked
        assert followed.took(looked, standstills) < TIMEOUT_S + LOOK_S


@pytest.mark.parametrize(("churning", "hold_s"), [(["read"], 0.05), (["write"], 0.01), (["read", "write"], 0.01)])
def test_those_who_come_and_go_without_end_keep_nobody_out(
    redis_server: RedisServer, context: LockContext, churning: list[str], hold_s: float
) -> None:
    with Actor(redis_server.url) as one, Actor(redis_server.url) as other:
        for number in range(4):
            for actor in (one, other):
                for kind in churning:
                    hand = f"{kind} {number}"
                    actor.order("churn", hand=hand, kind=kind, name=NAME, timeout=TIMEOUT_S, hold=hold_s)
        both = context.rw_lock(NAME, TIMEOUT_S)
        locks: dict[str, ReadLock | WriteLock] = {"read": both.read(), "write": both.write()}
        kept_out = [locks[kind] for kind in locks if kind not in churning] or list(locks.values())
        for lock in kept_out * 8:
            eventually(locks[churning[-1]].locked, message="they are there, or there again")
            began = time.monotonic()
            assert lock.acquire(blocking_timeout=10.0)
            waited = time.monotonic() - began
            lock.release()
            assert waited < BOUND_S
        assert not [deed for actor in (one, other) for deed in actor.deeds()], "somebody has given up"


def test_a_writer_that_dies_while_it_waits_holds_readers_back_for_a_bounded_time(
    redis_server: RedisServer, context: LockContext, standstills: Standstills
) -> None:
    both = context.rw_lock(NAME)
    with Actor(redis_server.url) as reader, Actor(redis_server.url) as victim:
        reader.hold("first", NAME, kind="read", timeout=TIMEOUT_S)
        victim.order("acquire", hand="hand", kind="write", name=NAME, timeout=TIMEOUT_S)

        def held_back() -> bool:
            newcomer = both.read()
            if newcomer.acquire(blocking=False):
                newcomer.release()
                return False
            return True

        eventually(held_back, message="readers are held back")
        reader.order("acquire", hand="second", kind="read", name=NAME, timeout=TIMEOUT_S)
        time.sleep(OUTLIVED_S)
        assert not reader.deeds("acquire", "second"), "the word of a writer that lives is kept"
        killed = time.monotonic()
        victim.kill()
        assert reader.deed("acquire", "second").took(killed, standstills) < TIMEOUT_S + LOOK_S
        assert not held_back()
        reader.let_go("first", NAME)
        reader.let_go("second", NAME)
    assert both.write().acquire(blocking=False)
