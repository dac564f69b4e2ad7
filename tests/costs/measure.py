"""The measurements: how many calls, system calls, wake-ups and bytes a renewal, an acquire and a release take.

Time is a clock's that is moved by hand, so nothing happens but what is measured, and a minute takes a moment.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import inspect
import termios
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import redis

from tests.support.counting import Counting, Counts, ServerCounts, counted_bytecodes
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, LockContext
from wheel_lock.testing import ManualClock

TIMEOUT_S, INTERVAL_S, TICK_S = 30.0, 10.0, 0.01
PAIRS, WARM_UP = 100, 20
NO_EXCEPTIONS = b"*0\r\n"  # the reply to a renewal
SOON_S = 0.1  # a request that is answered sooner never uses the wheel


@dataclass
class RenewalCosts:
    """What happened in one interval in which a number of locks were held. `counts` are of the timer's thread."""

    held: int
    renewals: int
    turns: int
    commands: Counter[str]
    bytes_in: int
    bytes_out: int
    counts: Counts
    batches: int
    bytecodes: int  # in the interval behind that

    @property
    def script_calls(self) -> int:
        return self.commands["evalsha"] + self.commands["eval"]

    def per_renewal(self) -> dict[str, float]:
        """The figures, per renewal; the first is how many renewals there are per lock and interval."""
        of_all = {
            "wake-ups": self.turns,
            "system calls": self.counts.system.total(),
            "script calls": self.script_calls,
            "bytes sent": self.bytes_in,
            "bytes received": self.bytes_out,
            "Python calls": self.counts.python.total(),
            "C calls": self.counts.c.total(),
            "bytecodes": self.bytecodes,
        }
        return {
            "renewals per lock": self.renewals / self.held,
            **{what: count / self.renewals for what, count in of_all.items()},
        }


class Driver:
    """A timer whose thread is the one that calls it, and another thread that makes blocking calls meanwhile."""

    def __init__(self, port: int, counting: Counting) -> None:
        self.counting = counting
        self.clock = ManualClock()
        self.timer = HashedWheelTimer(clock=self.clock, threaded=False)
        self.context = LockContext(redis.Redis(port=port), timer=self.timer, owner="host-7:4711")

    def call(self, call: Callable[[], object]) -> None:
        """Have something called by another thread, and turn until it has returned."""
        done = threading.Event()

        def run() -> None:
            try:
                call()
            finally:
                done.set()
                self.timer.wake()

        thread = threading.Thread(target=run)
        thread.start()
        while not done.is_set() or self.timer.busy:
            self.timer.turn(block=True)
        thread.join()

    def go_to(self, moment: float) -> None:
        """Move the clock, stop wherever something is due, and wait for replies there."""
        while self._due_by(moment):
            self.timer.turn(block=True)
            while self._busy:
                self._await_replies()
                self.timer.turn(block=True)
        self.clock.jump(max(moment - self.clock.now(), 0.0))

    def _due_by(self, moment: float) -> bool:
        """Move the clock to when something is due; return False if that is later than `moment`."""
        with self.counting.muted():
            due = self.timer.next_due_at()
            if due is None or due > moment:
                return False
            self.clock.jump(max(due - self.clock.now(), 0.0))
            return True

    def _await_replies(self) -> None:
        """Wait until all renewals in flight are answered: how many replies one read meets would be chance."""
        with self.counting.muted():
            renewer = self.context._engine.router.renewer
            pipeline, wanted = renewer.node._pipeline, renewer.flow.in_flight * len(NO_EXCEPTIONS)
            if pipeline is None:
                return
            sock, unread = pipeline._sock, array("i", [0])
            eventually(lambda: fcntl.ioctl(sock, termios.FIONREAD, unread) == 0 and unread[0] >= wanted)

    @property
    def _busy(self) -> bool:
        with self.counting.muted():
            return self.timer.busy

    def close(self) -> None:
        self.call(self.context.close)
        self.timer.stop()


def hold(driver: Driver, count: int) -> list[Any]:
    """Acquire locks that are spread evenly over the interval, as those of a service are that has run for a while."""
    locks: list[Any] = []
    steps = round(INTERVAL_S / TICK_S)
    began = driver.clock.now()
    each = max(count // steps, 1)
    for step in range(0, steps, max(steps * each // count, 1)):
        driver.go_to(began + step * TICK_S)
        names = [f"cost:{step}:{number}" for number in range(each)]
        driver.call(lambda names=names: locks.extend(driver.context.acquire_many(names, TIMEOUT_S).values()))  # type: ignore[misc]
    assert len(locks) == count
    assert all(locks)
    return locks


def renewals(port: int, count: int) -> RenewalCosts:
    """What one interval costs in which `count` locks are renewed; the two before it have them settle down."""
    with Counting() as counting, ServerCounts(port) as server, closing(Driver(port, counting)) as made:
        locks = hold(made, count)
        start = made.clock.now() + 2 * INTERVAL_S
        made.go_to(start)
        turns, renewed, batches = made.timer.turns, made.context.stats().renewed, made.context.stats().batches
        server.look()
        with counting.counted():
            made.go_to(start + INTERVAL_S)
        server.look()
        costs = RenewalCosts(
            count,
            made.context.stats().renewed - renewed,
            made.timer.turns - turns,
            server.commands,
            server.bytes_in,
            server.bytes_out,
            counting.of(),
            made.context.stats().batches - batches,
            bytecodes=0,
        )
        with counted_bytecodes() as bytecodes:
            made.go_to(start + 2 * INTERVAL_S)
        assert all(lock.is_held for lock in locks)
        return replace(costs, bytecodes=bytecodes[0])


@dataclass
class PairCosts:
    """What acquires, or releases, have taken: the caller's part, the timer's, and what is left."""

    count: int
    caller: Counts
    engine: Counts
    commands: Counter[str]
    turns: int
    bytes_in: int
    bytes_out: int
    objects: int  # objects that the collector scans, and that live on

    def each(self) -> dict[str, float]:
        """The figures, per acquire or release."""
        of_all = {
            "Python calls of the caller": self.caller.python.total(),
            "Python calls of the engine": self.engine.python.total(),
            "C calls of both": self.caller.c.total() + self.engine.c.total(),
            "system calls of the engine": self.engine.system.total(),
            "random numbers drawn": self.caller.system["getrandom"],
            "turns": self.turns,
            "commands": sum(self.commands[name] for name in ("set", "evalsha", "eval")),
            "bytes sent": self.bytes_in,
            "bytes received": self.bytes_out,
            "objects that live on": self.objects,
        }
        return {what: count / self.count for what, count in of_all.items()}


@dataclass
class Pairs:
    """Acquires, releases, and how many objects of all of them only the collector has found."""

    acquires: PairCosts
    releases: PairCosts
    in_cycles: Counter[str]  # by type
    left: int  # objects more than before, when all is released and dropped


class PairRig:
    """Measures calls one by one: each begins when the timer's thread sleeps, and counts until it sleeps again.

    The collector runs on demand only, until it is closed.
    """

    def __init__(self, port: int, counting: Counting) -> None:
        self.port = port
        self.counting = counting
        self.clock = ManualClock()
        self.timer = HashedWheelTimer(clock=self.clock)
        self.context = LockContext(redis.Redis(port=port), timer=self.timer, owner="host-7:4711")
        gc.collect()
        gc.disable()

    def asleep(self) -> None:
        """Return when the timer's thread has nothing to do."""
        timer = self.timer
        with self.counting.muted():
            eventually(lambda: timer._sleeping and not timer.busy and not timer._woken, interval_s=0.0002)
            while True:  # until it has slept for a while
                turns = timer.turns
                time.sleep(0.0003)
                if turns == timer.turns and timer._sleeping:
                    return

    def result(self, server: ServerCounts, turns: int, before: int) -> PairCosts:
        turns = self.timer.turns - turns
        server.look()
        me = threading.get_ident()
        return PairCosts(
            PAIRS,
            self.counting.of(lambda ident: ident == me),
            self.counting.of(lambda ident: ident != me),
            server.commands,
            turns,
            server.bytes_in,
            server.bytes_out,
            self.objects() - before,
        )

    def objects(self) -> int:
        """How many objects the collector scans when no request is expected to be answered soon."""
        self.clock.advance(SOON_S)
        self.asleep()
        return len(gc.get_objects())

    def close(self) -> None:
        gc.enable()
        self.context.close()
        self.timer.stop()


async def _done(method: Callable[[], Any]) -> None:
    """Call a method of a thread's, or await one of a task's."""
    if inspect.isawaitable(value := method()):
        await value


async def _measure(rig: PairRig, new_lock: Callable[[str], Any]) -> Pairs:
    with ServerCounts(rig.port) as server:
        for number in range(WARM_UP):
            lock = new_lock(f"warm:{number}")
            await _done(lock.acquire)
            await _done(lock.release)
        del lock
        names = [f"pair:{number}" for number in range(PAIRS)]
        locks: list[Any] = [None] * PAIRS
        costs = []
        rig.asleep()
        gc.collect()
        at_first = rig.objects()
        for acquires in (True, False):
            before = rig.objects()
            server.look()
            turns = rig.timer.turns
            rig.counting.begin()
            for place in range(PAIRS):
                if acquires:
                    locks[place] = new_lock(names[place])
                    await _done(locks[place].acquire)
                else:
                    await _done(locks[place].release)
                rig.asleep()
            rig.counting.end()
            costs.append(rig.result(server, turns, before))
        locks.clear()
        await asyncio.sleep(0)
        left = rig.objects() - at_first
        return Pairs(costs[0], costs[1], _in_cycles(), left)


def _in_cycles() -> Counter[str]:
    """Run the collector, and count what only it finds, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(type(found).__qualname__ for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.collect()


def pairs_of(caller: str, port: int) -> Pairs:
    """What acquires and releases of free locks cost a "thread" or a "task"."""
    with Counting() as counting, closing(PairRig(port, counting)) as rig:
        face: Any = rig.context if caller == "thread" else rig.context.asyncio
        return asyncio.run(_measure(rig, lambda name: face.lock(name, TIMEOUT_S)))


def rows(title: str, figures: dict[str, float]) -> Iterable[str]:
    yield title
    for what, figure in figures.items():
        yield f"    {what:32}{figure:12.3f}"
