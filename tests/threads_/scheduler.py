"""A scheduler of byte codes: the real code on real threads, of which exactly one runs at a time.

A *point* is the moment before an instruction that may touch what threads share. At a point the schedule may give the turn
to another thread (a *forced* switch); a thread that ends, or would wait, gives it away itself. So a run depends on its
schedule alone, and is repeated by it.
"""

from __future__ import annotations

import math
import random
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from tests.threads_.bytecode import instructions, is_checked, where

_MOST_POINTS = 50_000  # more indicate an endless loop
_MOST_WAITS = 2_000
_SYSTEM = (__file__, str(Path(__file__).with_name("seams.py")))  # files that replace functions in C
_MOMENT_S = 0.0002  # entries due within it are due at the same time
_FORCED = 0.04  # share of the points at which a run with many switches switches


class Interrupted(SystemExit):
    """The exception that is raised in a thread."""


class Abandoned(BaseException):
    """Ends the threads of a run that has failed."""


class Schedule(NamedTuple):
    """What decides a run.

    Attributes:
        first: The thread that begins.
        switches: The points, counted over all threads, at which another thread goes on, and how far behind in the ring.
        interrupt: The thread in which an exception is raised, and at which of its own places; None for none.
        dice: A seed of more switches; -1 for none.
    """

    first: int = 0
    switches: tuple[tuple[int, int], ...] = ()
    interrupt: tuple[int, int] | None = None
    dice: int = -1


class Actor:
    """A thread of a run."""

    def __init__(self, number: int, body: Callable[[], object]) -> None:
        self.number = number
        self.body = body
        self.turn = allocate_lock()
        self.turn.acquire()
        self.ready: Callable[[], bool] | None = None  # what it waits for
        self.until = math.inf
        self.done = False
        self.ident: int | None = None
        self.places = 0  # at which it could have been interrupted
        self.calls = 0
        self.before: tuple[FrameType | None, str, int] = (None, "", 0)  # its latest instruction: frame, name, calls
        self.trace: Callable[[FrameType, str, object], Any] | None = None


class Stage:
    """One run.

    Args:
        schedule: What decides it.
        modules: Those whose code has points.
        everywhere: If True an exception may be raised before each instruction, else where CPython would raise one that was
            set from outside: behind RESUME, a call of a C function, and a jump backward.

    Attributes:
        now: The time, in seconds: it passes only while all threads wait.
        points: The number of those that were come by.
        open: Those of them at which another thread could have gone on, behind the last switch of the schedule.
        story: The forced switches, and the exception.
        errors: With which threads have ended.
        interrupted: Whether the exception was raised.
        when_interrupted: Called right before.
        at_end: What is called when all is over.
        quiet: Set while there are to be no points, nor exceptions: for what comes before the scene.
    """

    def __init__(self, schedule: Schedule, modules: tuple[ModuleType, ...], *, everywhere: bool = False) -> None:
        self.now = 1000.0
        self.points = 0
        self.open: list[int] = []
        self.story: list[str] = []
        self.switched: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self.interrupted = False
        self.quiet = False
        self.when_interrupted: Callable[[], object] = lambda: None
        self.at_end: list[Callable[[], object]] = []
        self._files = {str(module.__file__) for module in modules}
        self._schedule = schedule
        self._switches = dict(schedule.switches)
        self._last = max(self._switches, default=-1)
        self._dice = random.Random(schedule.dice) if schedule.dice >= 0 else None
        self._everywhere = everywhere
        self._actors: list[Actor] = []
        self._over = allocate_lock()
        self._abandoned = False
        self._waits = 0
        self._made_by = get_ident()
        self.current: Actor | None = None

    def actor(self, body: Callable[[], object]) -> Actor:
        """Add a thread. While the run is on, it begins when it gets its first turn."""
        actor = Actor(len(self._actors), body)
        actor.trace = lambda frame, event, argument: self._traced(actor, frame, event)
        self._actors.append(actor)
        start_new_thread(self._live, (actor,))
        return actor

    def places(self, number: int) -> int:
        """Return at how many places one of the threads could have been interrupted."""
        return self._actors[number].places

    def is_here(self) -> bool:
        """Return whether the calling thread is one of the run, or has made it. Others are of earlier tests."""
        return get_ident() in {self._made_by, *(actor.ident for actor in self._actors)}

    def run(self) -> None:
        """Let the threads run to their ends; raise what one of them did not catch."""
        self._over.acquire()
        self.current = first = self._actors[self._schedule.first % len(self._actors)]
        first.turn.release()
        self._over.acquire()
        if self.errors:
            raise self.errors[0]

    def wait(self, ready: Callable[[], bool], timeout_s: float = math.inf) -> bool:
        """Give the turn away until ``ready()``; return whether it is, and not the time over. On a thread of the run."""
        me = self._me()
        me.ready, me.until = ready, self.now + timeout_s
        while not ready() and self.now + _MOMENT_S < me.until:
            self._pass_on(me)
        me.ready, me.until = None, math.inf
        return ready()

    def offer(self) -> None:
        """Be a point, on a thread of the run: for what stands for the system."""
        if self.current is not None and not self.quiet:
            self._point(self.current, sys._getframe(1))

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, max(seconds, 2 * _MOMENT_S))

    def _me(self) -> Actor:
        assert self.current is not None
        if self._abandoned:
            raise Abandoned
        return self.current

    def _live(self, actor: Actor) -> None:
        actor.ident = get_ident()
        actor.turn.acquire()
        try:
            if not self._abandoned:
                sys.settrace(lambda frame, event, argument: self._called(actor, frame))
                actor.body()
        except (Interrupted, Abandoned):
            pass
        except BaseException as error:
            self.errors.append(error)
        sys.settrace(None)
        actor.done = True
        if all(each.done for each in self._actors):
            self._over.release()
        else:
            self._go_on(self._next(actor))

    # -- points ------------------------------------------------------------------------------------------------------

    def _called(self, actor: Actor, frame: FrameType) -> Any:
        if frame.f_code.co_filename in _SYSTEM:
            return None
        actor.calls += 1
        if frame.f_code.co_filename not in self._files:
            return None
        name, _ = instructions(frame.f_code).get(frame.f_lasti, ("_", True))
        actor.before = (frame, name, actor.calls)  # RESUME, which itself is not traced
        if not frame.f_trace_opcodes:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            sys.settrace(sys.gettrace())  # from Python 3.12 on this switches the events of instructions on
        return actor.trace

    def _traced(self, actor: Actor, frame: FrameType, event: str) -> Any:
        if event == "opcode" and not self.quiet:
            name, shared = instructions(frame.f_code)[frame.f_lasti]
            if shared:
                self._point(actor, frame)
            before, actor.before = actor.before, (frame, name, actor.calls)
            if self._schedule.interrupt is not None and (self._everywhere or is_checked(before, frame, actor.calls)):
                actor.places += 1
                if self._schedule.interrupt == (actor.number, actor.places - 1) and not self.interrupted:
                    self.interrupted = True
                    self.when_interrupted()
                    self.story.append(f"{actor.number} is interrupted before {where(frame)}")
                    raise Interrupted(self.story[-1])
        return actor.trace

    def _point(self, me: Actor, frame: FrameType) -> None:
        number, self.points = self.points, self.points + 1
        if self.points > _MOST_POINTS:
            self._fail("a loop without end")
            raise Abandoned
        ring = self._actors[me.number + 1 :] + self._actors[: me.number]
        ahead = self._switches.get(number, 0)
        if ring and self._dice is not None and self._dice.random() < _FORCED:
            ahead = self._dice.randint(1, len(ring))
        elif number > self._last and any(map(self._runnable, ring)):
            self.open.append(number)
        if 0 < ahead <= len(ring) and self._runnable(ring[ahead - 1]):
            self.switched.append((number, ahead))
            self.story.append(f"{number}: {me.number} stops before {where(frame)}, {ring[ahead - 1].number} goes on")
            self._hand_over(me, ring[ahead - 1])

    # -- turns -------------------------------------------------------------------------------------------------------

    def _runnable(self, actor: Actor) -> bool:
        return not actor.done and (actor.ready is None or actor.ready() or actor.until <= self.now + _MOMENT_S)

    def _next(self, me: Actor) -> Actor:
        """Return the thread that goes on if ``me`` does not."""
        ring = self._actors[me.number + 1 :] + self._actors[: me.number + 1]
        for actor in ring:
            if self._runnable(actor):
                return actor
        waiting = [actor for actor in ring if not actor.done]
        earliest = min(waiting, key=lambda actor: actor.until)
        if earliest.until < math.inf:
            self.now = earliest.until
            return earliest
        self._fail("all threads wait")
        return waiting[0]

    def _pass_on(self, me: Actor) -> None:
        self._waits += 1
        if self._waits > _MOST_WAITS:
            self._fail("some wait for ever")
        to = self._next(me)
        if to is not me:
            self._hand_over(me, to)
        if self._abandoned:
            raise Abandoned

    def _hand_over(self, me: Actor, to: Actor) -> None:
        self._go_on(to)
        me.turn.acquire()
        if self._abandoned:
            raise Abandoned

    def _go_on(self, actor: Actor) -> None:
        self.current = actor
        actor.turn.release()

    def _fail(self, why: str) -> None:
        self._abandoned = True
        self.errors.append(AssertionError(why))
