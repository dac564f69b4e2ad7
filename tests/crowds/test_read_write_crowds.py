"""Readers and writers of several processes: neither side keeps the other out for ever, and the dead not for long."""

from __future__ import annotations

import time

import pytest

from tests.crowds.actors import Actor, expiries
from tests.support.redis_server import RedisServer
from tests.support.standstill import Standstills
from tests.support.waiting import eventually
from wheel_lock import LockContext

pytestmark = pytest.mark.slow

NAME = "shelf"
TIMEOUT_S = 1.6  # a renewal comes in time although the machine stands still for a while
OUTLIVED_S = 1.2 * TIMEOUT_S  # what is held after so long has been renewed
LOOK_S = 0.35  # what a waiter may need to notice on a busy machine
CLOCKS_S = 0.01  # by so much readings of two clocks may differ
BOUND_S = 2 * TIMEOUT_S


def test_a_killed_reader_keeps_writers_out_for_its_own_timeout(
    redis_server: RedisServer, context: LockContext, onlooker: Standstills
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
        assert followed.took(looked, onlooker) < TIMEOUT_S + LOOK_S


def test_readers_without_end_do_not_keep_a_writer_out(redis_server: RedisServer, context: LockContext) -> None:
    with Actor(redis_server.url) as one, Actor(redis_server.url) as other:
        for number in range(4):
            for actor in (one, other):
                actor.order("churn", hand=f"{number}", kind="read", name=NAME, timeout=TIMEOUT_S, hold=0.05)
        reader, writer = context.rw_lock(NAME).read(), context.rw_lock(NAME, TIMEOUT_S).write()
        eventually(reader.locked)
        for _ in range(8):
            began = time.monotonic()
            assert writer.acquire(blocking_timeout=10.0)
            waited = time.monotonic() - began
            writer.release()
            assert waited < BOUND_S
            eventually(reader.locked, message="the readers are back")
        assert not [deed for actor in (one, other) for deed in actor.deeds()], "a reader has given up"


def test_writers_without_end_do_not_keep_a_reader_out(redis_server: RedisServer, context: LockContext) -> None:
    with Actor(redis_server.url) as one, Actor(redis_server.url) as other:
        for number in range(4):
            for actor in (one, other):
                actor.order("churn", hand=f"{number}", kind="write", name=NAME, timeout=TIMEOUT_S, hold=0.01)
        reader, writer = context.rw_lock(NAME, TIMEOUT_S).read(), context.rw_lock(NAME).write()
        eventually(writer.locked)
        for _ in range(8):
            began = time.monotonic()
            assert reader.acquire(blocking_timeout=10.0)
            waited = time.monotonic() - began
            reader.release()
            assert waited < BOUND_S
            eventually(writer.locked, message="the writers are back")
        assert not [deed for actor in (one, other) for deed in actor.deeds()], "a writer has given up"


def test_readers_and_writers_without_end_take_turns(redis_server: RedisServer, context: LockContext) -> None:
    """Both at once, from the same processes: a further one of either side gets in soon."""
    with Actor(redis_server.url) as one, Actor(redis_server.url) as other:
        for number in range(4):
            for actor, kind in ((one, "read"), (one, "write"), (other, "read"), (other, "write")):
                actor.order("churn", hand=f"{kind} {number}", kind=kind, name=NAME, timeout=TIMEOUT_S, hold=0.01)
        both = context.rw_lock(NAME, TIMEOUT_S)
        eventually(both.write().locked)
        for lock in [both.read(), both.write()] * 4:
            began = time.monotonic()
            assert lock.acquire(blocking_timeout=10.0)
            waited = time.monotonic() - began
            lock.release()
            assert waited < BOUND_S
        assert not [deed for actor in (one, other) for deed in actor.deeds()], "somebody has given up"


def test_a_writer_that_dies_while_it_waits_holds_readers_back_for_a_bounded_time(
    redis_server: RedisServer, context: LockContext, onlooker: Standstills
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
        assert reader.deed("acquire", "second").took(killed, onlooker) < TIMEOUT_S + LOOK_S
        assert not held_back()
        reader.let_go("first", NAME)
        reader.let_go("second", NAME)
    assert both.write().acquire(blocking=False)
