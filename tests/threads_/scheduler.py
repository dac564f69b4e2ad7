"""A scheduler of byte codes: the real code on real threads, of which exactly one runs at a time.

A *point* is the moment before an instruction that may touch what threads share. At a point the schedule may give the turn
to another thread (a *forced* switch); a thread that ends, or would wait, gives it away itself. So a run depends on its
schedule alone, and is repeated by it.
"""

from __future__ import annotations

import dis
import math
import random
import sys
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

_MOST_POINTS = 50_000  # more are a loop without end
_SYSTEM = str(Path(__file__).with_name("seams.py"))  # what stands for functions in C
_FORCED = 0.04  # the share of points at which a run with many switches switches

# Instructions that touch nothing but the frame they are in. All others may touch what threads share.
_LOCAL = (
    "LOAD_FAST", "STORE_FAST", "LOAD_CONST", "LOAD_SMALL", "LOAD_GLOBAL", "LOAD_METHOD", "LOAD_DEREF", "LOAD_CLOSURE",
    "LOAD_ASSERTION", "POP_TOP", "POP_EXCEPT", "PUSH_", "COPY", "SWAP", "RESUME", "PRECALL", "KW_NAMES", "NOP", "CACHE",
    "EXTENDED_ARG", "JUMP_", "BUILD_", "RETURN_", "RERAISE", "RAISE_", "IS_OP", "COMPARE_OP", "BINARY_OP", "MAKE_",
    "CHECK_EXC", "NOT_TAKEN", "END_FOR", "POP_ITER", "UNPACK_", "FORMAT_", "IMPORT_", "LOAD_BUILD",
)  # fmt: skip


class Struck(SystemExit):
    """What strikes a thread."""


class Abandoned(BaseException):
    """Ends the threads of a run that has failed."""


class Schedule(NamedTuple):
    """What decides a run.

    Attributes:
        first: The thread that begins.
        switches: The points, counted over all threads, at which another thread goes on, and how far behind in the ring.
        strike: The thread that an exception strikes, and at which of its own places; None for none.
        dice: A seed of more switches; -1 for none.
    """

    first: int = 0
    switches: tuple[tuple[int, int], ...] = ()
    strike: tuple[int, int] | None = None
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
        self.places = 0  # at which it could have been struck
        self.calls = 0
        self.before: tuple[FrameType | None, str, int] = (None, "", 0)  # its latest instruction: frame, name, calls
        self.trace: Callable[[FrameType, str, object], Any] | None = None

    @property
    def runnable(self) -> bool:
        return not self.done and (self.ready is None or self.ready())


class Stage:
    """One run.

    Args:
        schedule: What decides it.
        modules: Those whose code has points.
        everywhere: If True an exception may strike before each instruction, else where CPython would raise one that was
            set from outside: behind RESUME, a call of a C function, and a jump backward.

    Attributes:
        now: The time, in seconds: it passes only while all threads wait.
        points: The number of those that were come by.
        open: Those of them at which another thread could have gone on, behind the last switch of the schedule.
        story: The forced switches, and the strike.
        errors: With which threads have ended.
        struck: Whether the exception has struck.
        when_struck: Called right before.
        at_end: What is called when all is over.
        quiet: Set while there are to be no points, nor strikes: for what comes before the scene.
    """

    def __init__(self, schedule: Schedule, modules: tuple[ModuleType, ...], *, everywhere: bool = False) -> None:
        self.now = 1000.0
        self.points = 0
        self.open: list[int] = []
        self.story: list[str] = []
        self.switched: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self.struck = False
        self.quiet = False
        self.when_struck: Callable[[], object] = lambda: None
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
        self.current: Actor | None = None

    def actor(self, body: Callable[[], object]) -> Actor:
        """Add a thread. While the run is on, it begins when it gets its first turn."""
        actor = Actor(len(self._actors), body)
        actor.trace = lambda frame, event, argument: self._traced(actor, frame, event)
        self._actors.append(actor)
        start_new_thread(self._live, (actor,))
        return actor

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
        while not ready() and self.now < me.until:
            self._pass_on(me)
        me.ready = None
        return ready()

    def offer(self) -> None:
        """Be a point, on a thread of the run: for what stands for the system."""
        if self.current is not None and not self.quiet:
            self._point(self.current, sys._getframe(1))

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.wait(lambda: False, max(seconds, 1e-6))

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
        except (Struck, Abandoned):
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
        if frame.f_code.co_filename == _SYSTEM:
            return None
        actor.calls += 1
        if frame.f_code.co_filename not in self._files:
            return None
        if not frame.f_trace_opcodes:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            sys.settrace(sys.gettrace())  # from Python 3.12 on this switches the events of instructions on
        return actor.trace

    def _traced(self, actor: Actor, frame: FrameType, event: str) -> Any:
        if event == "opcode" and not self.quiet:
            name, shared = _instructions(frame.f_code)[frame.f_lasti]
            if shared:
                self._point(actor, frame)
            before, actor.before = actor.before, (frame, name, actor.calls)
            if self._schedule.strike is not None and (self._everywhere or _is_checked(before, frame, actor.calls)):
                actor.places += 1
                if self._schedule.strike == (actor.number, actor.places - 1) and not self.struck:
                    self.struck = True
                    self.when_struck()
                    self.story.append(f"{actor.number} is struck before {_where(frame)}")
                    raise Struck(self.story[-1])
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
        elif number > self._last and any(actor.runnable for actor in ring):
            self.open.append(number)
        if 0 < ahead <= len(ring) and ring[ahead - 1].runnable:
            self.switched.append((number, ahead))
            self.story.append(f"{number}: {me.number} stops before {_where(frame)}, {ring[ahead - 1].number} goes on")
            self._hand_over(me, ring[ahead - 1])

    # -- turns -------------------------------------------------------------------------------------------------------

    def _next(self, me: Actor) -> Actor:
        """Return the thread that goes on if ``me`` does not."""
        ring = self._actors[me.number + 1 :] + self._actors[: me.number + 1]
        for actor in ring:
            if actor.runnable:
                return actor
        waiting = [actor for actor in ring if not actor.done]
        earliest = min(waiting, key=lambda actor: actor.until)
        if earliest.until < math.inf:
            self.now = earliest.until
            return earliest
        self._fail("all threads wait")
        return waiting[0]

    def _pass_on(self, me: Actor) -> None:
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


def _is_checked(before: tuple[FrameType | None, str, int], frame: FrameType, calls: int) -> bool:
    """Whether CPython would raise an exception that was set from outside before the instruction behind ``before``."""
    last, name, calls_then = before
    if last is not frame:
        return False
    return name.startswith(("RESUME", "JUMP_BACKWARD")) or (name.startswith("CALL") and calls == calls_then)


def _where(frame: FrameType) -> str:
    name, _ = _instructions(frame.f_code).get(frame.f_lasti, ("CALL", True))
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}, {name}"


_known: dict[CodeType, dict[int, tuple[str, bool]]] = {}


def _instructions(code: CodeType) -> dict[int, tuple[str, bool]]:
    """Return the name of each instruction, and whether it may touch what threads share."""
    if code not in _known:
        found = {}
        for step in dis.get_instructions(code):
            checked = step.opname != "RESUME" or (step.arg or 0) & 3 < 2
            found[step.offset] = (step.opname if checked else "_", not step.opname.startswith(_LOCAL))
        _known[code] = found
    return _known[code]
