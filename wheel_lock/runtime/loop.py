"""The event loop: one thread with a wheel, a poller, an inbox for other threads, and a clock.

One iteration is a *turn*: sleep until the next due tick, I/O or message; handle I/O; advance the wheel over all ticks
that have passed, in one step; run the inbox; call the flushers. With nothing scheduled the thread sleeps without a
limit. Its public face is :class:`wheel_lock.HashedWheelTimer`.

The thread waits for nothing but its poller, because whatever it waits for may wait for it: a signal's handler may
interrupt the holder of a lock and wait for this thread, and a hub of gevent may not run. So it takes no lock of a
caller; it writes no log, imports nothing, and starts threads without waiting for them.

Only this thread changes the state of engines. A caller that did it would save two switches of threads for each reply.
But an exception that is set from outside may be raised between any two of its calls, and would leave a change of the
wheel, of a queue or of a lease half done. Python code cannot put that off.
"""

from __future__ import annotations

import itertools
import logging
import math
import socket
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from wheel_lock.forks import in_forked_child
from wheel_lock.runtime import native
from wheel_lock.runtime.alarm import Alarm, dispatch
from wheel_lock.runtime.child_processes import note_start
from wheel_lock.runtime.clock import Clock
from wheel_lock.runtime.ends import End, Part, end_all
from wheel_lock.runtime.failures import FailureDomain, contain, log_failure
from wheel_lock.runtime.greenlets import SystemThread, new_thread
from wheel_lock.runtime.interruptions import finaliser, insist, uninterrupted_start
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.poller import BOTH, EventWaker, Poller, SocketWaker, new_poller, new_waker
from wheel_lock.runtime.sole_thread import SoleThread
from wheel_lock.runtime.timer_threads import TIMER_THREADS
from wheel_lock.runtime.weak_registry import WeakRegistry
from wheel_lock.wheel import TickScale, Wheel

logger: logging.Logger = logging.getLogger("wheel_lock")

_numbers = itertools.count(1)
_LONGEST_INBOX_S = 0.01
_INBOX_STEP = 16  # messages between two readings of the clock
_LONGEST_SLEEP_S = 24 * 3600.0  # limit of a sleep: selectors refuse more than 2**31 milliseconds
_PAUSE_S = 0.1  # before another start of a thread that died before its first turn
_LINGER_S = 0.02  # any change ends a longer sleep; while there are changes the thread does not sleep longer
_SHUTDOWN = "interpreter shutdown"  # in the text of the exceptions of Python 3.12 and newer, which start no thread then
AWAKE, LONG = -math.inf, math.inf  # in place of the time until which the thread sleeps


class Member(Part):
    """A part that runs on a loop's thread, and ends when that thread dies, in a forked child, and before a stop."""

    @property
    def busy(self) -> bool:
        """True if the part waits for a reply."""
        raise NotImplementedError


class Flusher(FailureDomain):
    """A base class for what has data to write at the end of a turn."""

    def flush(self) -> None:
        """Write the data."""
        raise NotImplementedError


class _Asleep(NamedTuple):
    """The resources that an idle loop sleeps on.

    Attributes:
        poller: The loop's poller.
        waker: Ends the sleep.
        inbox: The loop's messages: one that refers to the loop keeps it alive until it has been read.
        changed: So does a changed timeout.
    """

    poller: Poller
    waker: EventWaker | SocketWaker | None
    inbox: deque[Any]
    changed: deque[Any]


class Loop:
    """The event loop.

    Args:
        tick_ms: Length of a tick in milliseconds.
        slots: Slots of the wheel.
        clock: The source of time.
        threaded: If False there is no thread, and the caller calls :meth:`turn`.

    Attributes:
        complete: Delivers a result to its caller, by a call: at the end of this turn, or, if much remains to be done in
            it, after all replies; at once outside of a turn. So callers whose results arrive together are woken together.
            Timer's thread only.
        flush_later: Has ``flush()`` of a flusher called at the end of this turn. Timer's thread only.
        reported_turn: The number of turns at which the thread stood still when that was last logged; written by any thread.
        goes_on: True while the rest of a message waits for the next turn, and all other messages wait behind it.
        stopped: True if :meth:`HashedWheelTimer.stop` has been called.
    """

    def __init__(self, tick_ms: int, slots: int, clock: Clock, threaded: bool) -> None:
        self.clock = clock
        self.now: float = clock.now()
        self.scale: TickScale = TickScale(tick_ms, self.now)
        self.name: str = f"wheel-lock-timer-{next(_numbers)}"
        self.turns: int = 0
        self.reported_turn: int = -1
        self._waited_in = -1  # the turn of the last first_wait()
        self.deaths: int = 0
        self._slots = slots
        self._threaded = threaded
        self._members: WeakRegistry[Member] = WeakRegistry()
        self._sole = SoleThread()
        self.stopped = False
        self._poller: Poller | None = None
        self._waker: EventWaker | SocketWaker | None = None  # made with the first poller, in each process
        self._wake: Callable[[], object] = _nobody_sleeps
        self._died_at = -1  # the number of turns at the latest death of the thread
        self._inbox: deque[tuple[Callable[[], object], FailureDomain | None]] = deque()
        self._changed: deque[Any] = deque()  # what _take_changed has to take; any thread may append
        self._reset()
        clock.attach(self)
        LOOPS.add(self)

    def _reset(self) -> None:
        """Discard everything but unread messages: at first, in a forked child, after the thread has died."""
        self.wheel: Wheel[Any] = Wheel(self._slots, now=self.scale.floor(self.clock.now()))
        self._flushers: deque[Flusher] = deque()
        self.flush_later: Callable[[Flusher], object] = self._flushers.append
        self._next_tick_at = float("-inf")
        self._lingers = False  # the last turn has taken something from _changed
        self._sleeps_until = LONG
        self._sleeping = False
        self._woken = False
        self.goes_on: bool = False
        self._completed: deque[Callable[[], object]] = deque()
        self.complete: Callable[[Callable[[], object]], object] = _at_once

    @property
    def threaded(self) -> bool:
        """True if it has a thread of its own."""
        return self._threaded

    @property
    def in_thread(self) -> bool:
        """True if the caller runs on the timer's thread."""
        thread = self._sole.get(None)
        return thread is not None and thread.ident == native.get_ident()

    @property
    def thread(self) -> SystemThread | None:
        """The thread, or None while it does not run."""
        return self._sole.thread

    @property
    def running(self) -> bool:
        """True if the thread runs."""
        return self._sole.launched or bool(self._sole)

    @property
    def busy(self) -> bool:
        """True if the inbox holds a message, or a member waits for a reply. From any thread; a snapshot, for tests."""
        return self._unread or any(member.busy for member in self._members)

    @property
    def _unread(self) -> bool:
        return bool(self._inbox or self._changed)

    def next_due_at(self) -> float | None:
        """Return when the next entry is due, in seconds of the clock. From any thread; a snapshot, for tests."""
        tick = self.wheel.next_due_tick()
        return None if tick is None else self.scale.seconds(tick)

    @property
    def late_s(self) -> float:
        """Seconds for which an entry has been due; 0 if none is, or there is no thread. From any thread; a snapshot."""
        due_at = self.next_due_at() if self._sole else None
        return 0.0 if due_at is None else max(self.clock.now() - due_at, 0.0)

    def post(self, call: Callable[[], object], domain: FailureDomain | None = None) -> None:
        """Call ``call()`` soon on the timer's thread, which is started if necessary. From any thread, at any time.

        It takes no lock once the thread runs, so it is safe in a finaliser that interrupts another post.

        Args:
            call: The callback.
            domain: The failure domain of the call; None if a failure leaves nothing in doubt.
        """
        message = (call, domain)  # before the inbox is looked up: an allocation may run a finaliser, which posts
        self._inbox.append(message)
        if (self._sleeping and not self._woken) or not self._sole:  # as rouse() asks: each operation passes here
            self.rouse()

    def go_on_with(self, call: Callable[[], object], domain: FailureDomain | None = None) -> None:
        """Call ``call()`` in the next turn, before all messages: it is the rest of a message that takes long.

        No other message is read before, so whatever is posted behind the message comes behind all of it. Replies and
        due entries come in between. From outside of a message, the call is made in this turn. Timer's thread only.
        """
        self.goes_on = True
        self._inbox.appendleft((call, domain))

    @uninterrupted_start
    def job(
        self,
        part: Callable[[BaseException | None], bool],
        domain: FailureDomain | None,
        after: BaseException | None = None,
    ) -> None:
        """Call ``part(None)`` now, and again in each turn that follows, before all messages, until it returns False.

        An exception of a part is raised, and is the argument of the next one, which makes up for it: on a timer without a
        thread it may be that of a signal's handler, behind which a generator could not go on. A job that fails twice ends.
        Timer's thread only.
        """
        try:
            if part(after):
                self.go_on_with(partial(self.job, part, domain), domain)
        except BaseException as error:
            failed = isinstance(after, Exception)
            if not (failed and isinstance(error, Exception)):
                self.go_on_with(partial(self.job, part, domain, after if failed else error), domain)
            raise

    def rouse(self) -> None:
        """Start the thread, or wake it if it sleeps and has not been woken yet, so that it turns once more."""
        if not self._sole and self._threaded:
            self._start()
        if self._sleeping and not self._woken:
            # Set before the wake: after it the thread could have woken, turned and gone to sleep again, and the next
            # message would not wake it. One wake is enough: of 64 threads, 63 save a system call.
            self._woken = True
            self._wake()

    def wake(self) -> None:
        """Wake the thread if it sleeps."""
        self._wake()

    def attach(self, member: Member) -> None:
        """Register ``member`` (held weakly) for the death of the thread, a fork, and ``stop()``."""
        self._members.add(member)

    def call_at(self, when: float, action: Callable[[float], object], domain: FailureDomain | None = None) -> Alarm:
        """Call ``action(now)`` at the tick that contains ``when``. Timer's thread only.

        Args:
            when: Seconds of the clock.
            action: The callback.
            domain: Its failure domain; None if a failure leaves nothing in doubt.

        Returns:
            The alarm, for :meth:`cancel`.
        """
        alarm = Alarm(action, domain)
        self.wheel.schedule(alarm, self.scale.floor(when))
        return alarm

    def cancel(self, alarm: Alarm | None) -> None:
        """Cancel an alarm unless it is None or has rung. Timer's thread only."""
        if alarm is not None:
            alarm.disarm()
            self.wheel.cancel(alarm)

    def watch(
        self, sock: socket.socket, events: int, handler: Callable[[int], object], domain: FailureDomain | None = None
    ) -> None:
        """Call ``handler(events)`` when ``sock`` is ready; a second call replaces the first. Timer's thread only.

        Args:
            sock: A socket.
            events: The events to wait for, as in :mod:`selectors`.
            handler: The callback.
            domain: Its failure domain; None if a failure leaves nothing in doubt.
        """
        self._open().watch(sock, events, (handler, domain))

    def unwatch(self, sock: socket.socket) -> None:
        """Stop watching ``sock``, if it is watched; to be called before it is closed. Timer's thread only."""
        if self._poller is not None:
            self._poller.unwatch(sock)

    def first_wait(self) -> bool:
        """Return whether this is the first such call in this turn. Timer's thread only."""
        first = self._waited_in != self.turns
        self._waited_in = self.turns
        return first

    def read_clock(self) -> None:
        """Set ``now`` anew, for what is read later in a turn. Timer's thread only."""
        self.now = self.clock.now()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the thread; 0 if it does not run, or the system does not report them."""
        thread = self.thread
        if thread is None or thread.ident is None or not (thread.is_alive() and hasattr(time, "pthread_getcpuclockid")):
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))

    # -- the thread --------------------------------------------------------------------------------------------------

    def turn(self, *, block: bool = False) -> None:
        """Run one iteration of the loop; ``block`` allows it to sleep first."""
        poller = self._poller or self._open()
        inbox = self._inbox
        sleep_s: float | None = 0.0
        if block and not inbox:
            sleep_s = self._sleep_s()
        if self._completed:
            # Those of the previous turn, right before the GIL is released: a thread that is woken earlier waits for it.
            self._tell_completed()
        if sleep_s != 0.0:
            self._woken = False
            self._sleeping = True
            if inbox or self._changed or self.stopped:  # posted before _sleeping was visible to other threads
                sleep_s = 0.0
        events = poller.poll(sleep_s)
        self._sleeping = False
        self.turns += 1
        self.now = now = self.clock.now()
        self.complete = self._completed.append
        if events:
            self._handle(poller, events)
        if self._changed or self._lingers:
            self._take_changed()
        ticks = now >= self._next_tick_at
        if self._completed and (ticks or inbox):
            self._tell_completed()  # what follows may take a while
        if ticks:
            self._advance(poller, now, events)
        if inbox:
            self._read_inbox()
        flushers = self._flushers
        while flushers:
            flusher = flushers.popleft()
            try:
                flusher.flush()
            except Exception as error:
                contain(flusher, flusher.flush, error)
        self.complete = _at_once
        if self._completed and not block:
            self._tell_completed()

    def _take_changed(self) -> None:
        """Take what other threads have appended to ``_changed``."""

    def _handle(self, poller: Poller, events: list[tuple[int, int]]) -> None:
        watched, meanings = poller.watched, poller.meanings
        before = watched.copy()
        for fd, ready in events:
            watch = before.get(fd)
            # Not the waker, nor a socket that an earlier handler has unwatched, or replaced.
            if watch is not None and watched.get(fd) is watch:
                handler, domain = watch
                try:
                    handler(meanings.get(ready, BOTH))
                except Exception as error:
                    contain(domain, handler, error)

    def _read_inbox(self) -> None:
        """Make the posted calls.

        After 10 ms the rest of a flood of messages waits for the next turn, so that replies and renewals do not wait for
        it. Not in the last turn, whose messages include those that end everything. A message that goes on in the next
        turn is the last one of this.
        """
        inbox = self._inbox
        self.goes_on = False
        count = len(inbox)
        until = time.monotonic() + _LONGEST_INBOX_S if count > _INBOX_STEP else math.inf
        for number in range(1, count + 1):
            # Not popleft(): an interruption behind a call, on a timer without a thread, would take the message with it.
            call, domain = inbox[0]
            del inbox[0]
            try:
                call()
            except Exception as error:
                contain(domain, call, error)
            if self.goes_on:
                break
            if number % _INBOX_STEP == 0 and not self.stopped and time.monotonic() > until:
                break

    def _tell_completed(self) -> None:
        """Make the calls that :meth:`complete` has collected, also if one fails."""
        completed = self._completed
        while completed:
            tell = completed.popleft()
            try:
                tell()
            except Exception as error:
                contain(None, tell, error)

    def _advance(self, poller: Poller, now: float, handled: list[tuple[int, int]]) -> None:
        """Advance the wheel over all ticks that have passed, and dispatch the due entries."""
        wheel = self.wheel
        tick = max(self.scale.floor(now), wheel.now)
        self._next_tick_at = self.scale.seconds(tick + 1)
        due_tick = wheel.next_due_tick()
        if due_tick is not None and due_tick <= tick:
            # A stopped process wakes after its time limits have passed: replies that arrived by `now` are read before `now`
            # is compared with the limits.
            late = poller.poll(0.0)
            if late and handled:
                done = dict(handled)
                late = [event for event in late if event[0] not in done]
            if late:
                self.read_clock()
                self._handle(poller, late)
        due = self.wheel.advance(tick)
        if due:
            dispatch(due, now)

    def _sleep_s(self) -> float | None:
        """Return how long to sleep, and publish it to callers that change timeouts.

        No wake-up is lost. A caller appends to ``_changed``, then reads ``_sleeps_until``, ``_woken``, ``_sleeping``. The
        thread writes these, then checks whether anything has been appended, before it sleeps. So if the thread does not see
        what was appended, the caller sees all that the thread has written, and wakes it.
        """
        tick = self.wheel.next_due_tick()
        sleep_s = None
        if tick is not None:
            remaining_s = self.scale.seconds(tick) - self.clock.now()
            sleep_s = self.clock.sleep_s(min(max(remaining_s, 0.0), _LONGEST_SLEEP_S))
        if self._lingers:
            sleep_s = _LINGER_S if sleep_s is None else min(sleep_s, _LINGER_S)
        self._sleeps_until = LONG if sleep_s is None or sleep_s > _LINGER_S else self.clock.now() + sleep_s
        return sleep_s

    def _open(self) -> Poller:
        if self._waker is None:
            self._waker = new_waker()
            self._wake = self._waker.wake
        if self._poller is None:
            self._poller = new_poller(self._waker)  # which must not keep the loop alive
        return self._poller

    def _close(self) -> None:
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.close()

    @finaliser
    def __del__(self) -> None:
        if not getattr(self, "_sole", None):
            return
        self._wake()  # the idle thread closes its poller when it finds the loop collected
        if not sys.is_finalizing():
            NOTIFIER.post(_warn_unstopped, self.name)

    def _start(self) -> None:
        if not self.stopped:
            note_start()
            self._sole.start(new_thread(partial(_run, [self]), self.name), self._died)

    def _main(self) -> _Asleep | None:
        """Turn until the loop is idle; return the resources to sleep on, or None if the thread is to end."""
        try:
            self.turn()  # handles what arrived while it slept
            while not self.stopped:
                # Nothing is scheduled and no socket is watched, so only a message ends the sleep.
                poller = self._poller or self._open()
                if not (poller.watched or self._lingers) and self.wheel.next_due_tick() is None:
                    self._sleeps_until = LONG  # as in _sleep_s
                    self._tell_completed()
                    self._woken = False
                    self._sleeping = True
                    if not self._unread and not self.stopped:
                        return _Asleep(poller, self._waker, self._inbox, self._changed)
                self.turn(block=True)
            self.turn()
            while self.goes_on:  # the rest of a message that failed: those behind it end the parts of this loop
                self.turn()
            self._close()
            self._sole.end()
        except BaseException as error:
            self._died(error)
        return None

    @uninterrupted_start
    def _died(self, error: BaseException) -> None:
        """Log the death of the thread, or why it cannot start; reset all but unread messages, and notify the members."""
        if self.turns == self._died_at:
            native.sleep(_PAUSE_S)  # it did not turn once: what is missing, descriptors or threads, may come back
        self._died_at = self.turns
        self.deaths += 1
        log = partial(
            logger.log,
            logging.DEBUG if _SHUTDOWN in str(error) else logging.CRITICAL,
            "the thread %s died of %r: every lock that it kept is lost; the next call starts it again",
            self.name,
            error,
        )
        # The log first: a caller whose lock is lost finds the cause there.
        calls: Iterator[Callable[[], object]] = itertools.chain(
            [partial(insist, Loop._start_over, self), partial(NOTIFIER.post, log)],
            self._completed,
            (partial(member.end, End.DIED, RuntimeError("the timer's thread died")) for member in self._members),
        )
        try:
            for call in calls:
                try:
                    call()
                except BaseException as another:  # it may be killed once more while it dies
                    NOTIFIER.post(log_failure, call, another)
        finally:
            self._sole.end()  # not earlier: until here no other thread may be started
            if self._unread:
                with suppress(RuntimeError):  # no thread can be started: the next call tries again
                    self._start()

    def _start_over(self) -> None:
        self._close()
        self.wheel.clear()  # so that no entry looks scheduled on the next wheel
        self._reset()

    def _forked(self) -> None:
        """Start empty in a forked child: threads, timeouts and sockets belong to the parent."""
        self._close()  # closes the child's copies only; what the parent watches stays watched
        waker, self._waker = self._waker, None  # a child may close all descriptors before it uses the timer
        self._wake = _nobody_sleeps
        if waker is not None:
            waker.close()
        self._sole = SoleThread()
        self._inbox = deque()
        self._changed = deque()
        self._reset()
        end_all(self._members, End.FORKED, RuntimeError("the process was forked"))


@uninterrupted_start
def _run(handed_over: list[Loop]) -> None:
    """Turn a loop until it stops or has been collected. While the loop sleeps idle, this thread holds no reference to it.

    So a timer that its owner has dropped without a ``stop()`` is collected once nothing is scheduled on it and no
    connection is open. The thread then closes what it slept on, and ends.

    Args:
        handed_over: The loop alone; it is taken out of the list, because a thread object keeps its target.
    """
    loop: Loop | None = handed_over[0]
    asleep: _Asleep | None = None
    ident = 0
    try:  # from the first call on: an exception that ended the thread without a word would leave its place taken for ever
        ident = native.get_ident()
        TIMER_THREADS.add(ident)
        reference = weakref.ref(loop)
        handed_over.clear()
        while loop is not None:
            asleep = loop._main()
            loop = None
            if asleep is None:
                return
            asleep.poller.poll(None)  # ended by the waker alone: no socket is watched
            loop = reference()
    except BaseException as error:
        loop = loop or reference()
        if loop is not None:
            loop._died(error)
            return
    finally:
        TIMER_THREADS.discard(ident)
    if asleep is not None:
        asleep.poller.close()


def _nobody_sleeps() -> None:
    """Wake the thread before it has a waker."""


def _at_once(call: Callable[[], object]) -> None:
    """Make a call that delivers a result outside of a turn."""
    call()


def _warn_unstopped(name: str) -> None:
    """Warn of a timer that was dropped without ``stop()``. On the notifier thread."""
    warnings.warn(f"the timer {name} was dropped without stop()", ResourceWarning, stacklevel=1)


@in_forked_child
def _after_fork() -> None:
    for loop in LOOPS:
        loop._forked()


LOOPS: WeakRegistry[Loop] = WeakRegistry()
