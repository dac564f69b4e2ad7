"""A program under eventlet: ``python -m tests.greenlets.eventlet_program URL``. It ends with 0 where all was right."""

from __future__ import annotations

import faulthandler
import sys
import warnings

from tests.greenlets.stall_detector import StallDetector

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # eventlet says that it is deprecated
    import eventlet

    eventlet.monkey_patch()

import time

import wheel_lock
from wheel_lock import LossReason, LostEvent

faulthandler.dump_traceback_later(60, exit=True)
context = wheel_lock.LockContext.from_url(sys.argv[1])
losses: list[LostEvent] = []
inside = turns = ticks = 0


def take_turns() -> None:
    global inside, turns
    for _ in range(5):
        with context.lock("order"):
            inside += 1
            assert inside == 1
            time.sleep(0.001)
            inside -= 1
            turns += 1


def tick() -> None:
    global ticks
    while True:
        ticks += 1
        time.sleep(0.01)


eventlet.spawn(tick)
for green in [eventlet.spawn(take_turns) for _ in range(20)]:
    green.wait()
assert turns == 100

lock = context.lock("order", timeout=0.6, on_lost=losses.append)
again = context.reentrant_lock("again")
with StallDetector(), lock, again, again:
    assert not eventlet.spawn(lock.acquire, blocking=False).wait()
    assert not eventlet.spawn(again.acquire, blocking=False).wait()
    before = ticks
    waiter = eventlet.spawn(context.lock("order", blocking_timeout=1.0).acquire)
    assert not waiter.wait()
    assert ticks - before > 20  # only the waiter was suspended
    killed = eventlet.spawn(context.lock("order").acquire)
    time.sleep(0.05)
    killed.kill()
    assert lock.renewals >= 2
    assert lock.is_held
with context.lock("order", blocking=False):
    pass

lock.acquire()
with wheel_lock.LockContext.from_url(sys.argv[1]) as other:
    assert not other.lock("order", blocking=False).acquire()
context.close()
while not losses:
    time.sleep(0.01)
assert [event.reason for event in losses] == [LossReason.CONTEXT_CLOSED]
