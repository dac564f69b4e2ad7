"""The loop: one thread, and on it a wheel, a selector, an inbox for other threads, and a clock.

One pass is a *turn*: sleep until the next due tick, the next I/O or a message; handle I/O; advance the wheel over all
the ticks that have passed, as one step; run the inbox; let whoever wrote something flush it. With nothing scheduled it
sleeps without a limit: an empty wheel wakes nobody up. What users see of it is :class:`wheel_lock.HashedWheelTimer`.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import socket
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from wheel_lock import native
from wheel_lock.alarms import Alarm
from wheel_lock.clock import Clock
from wheel_lock.failures import FailureDomain, contain_all, guarded, log_failure
from wheel_lock.greenlets import SystemThread, new_thread
from wheel_lock.members import Flusher, Member
from wheel_lock.notifier import GIVEN_UP, NOTIFIER, RUNS
from wheel_lock.waker import EventWaker, SocketWaker, new_waker
from wheel_lock.weak import WeakRegistry
from wheel_lock.wheel import TickScale, Wheel

logger = logging.getLogger("wheel_lock")

_numbers = itertools.count(1)
_LONGEST_INBOX_S = 0.01
_INBOX_STEP = 16  # messages between two looks at the clock
_LONGEST_SLEEP_S = 24 * 3600.0  # selectors refuse more than 2**31 milliseconds


def _new_lock() -> Any:  # typeshed calls RLock a function or a class, depending on its age
    """Return the lock that guards the start of the thread, and what timer.py says. The thread itself never waits for it.

    Reentrant, because a finaliser may run anywhere, also while its own thread holds the lock, and post or cancel.
    """
    return native.RLock()


class _Asleep(NamedTuple):
    """The resources that an idle loop sleeps on.

    Attributes:
        selector: The loop's selector.
        waker: Ends the sleep.
        inbox: The loop's messages: one that refers to the loop keeps it alive until it has been read.
    """

    selector: selectors.BaseSelector
    waker: EventWaker | SocketWaker
    inbox: deque[Any]


class Loop:
    """The thread and what it turns over.

    Args:
        tick_ms: Length of a tick in milliseconds.
        slots: Slots of the wheel.
        clock: Where time comes from.
        threaded: False leaves the turning to the caller.
    """

    def __init__(self, tick_ms: int, slots: int, clock: Clock, threaded: bool) -> None:
        self.clock = clock
        self.now = clock.now()
        self.scale = TickScale(tick_ms, self.now)
        self.name = f"wheel-lock-timer-{next(_numbers)}"
        self.turns = 0
        self.deaths = 0
        self._slots = slots
        self._threaded = threaded
        self._members: WeakRegistry[Member] = WeakRegistry()
        self._thread: SystemThread | None = None
        self._lock = _new_lock()
        self._stopped = False
        self._selector: selectors.BaseSelector | None = None
        self._waker = new_waker()
        self._inbox: deque[tuple[Callable[[], object], FailureDomain | None]] = deque()
        self._reset()
        clock.attach(self)
        LOOPS.add(self)

    def _reset(self) -> None:
        """Start empty, but for messages that nobody has read: at first, in a forked child, after the thread has died."""
        self.wheel: Wheel[Any] = Wheel(self._slots, now=self.scale.floor(self.clock.now()))
        self._flushers: list[Flusher] = []
        self._next_tick_at = float("-inf")
        self._sleeping = False
        self._woken = False
        self._wake = self._waker.wake

    @property
    def in_thread(self) -> bool:
        """Whether the caller runs on the timer's thread."""
        thread = self._thread
        return thread is not None and thread.ident == native.get_ident()

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None

    @property
    def busy(self) -> bool:
        """Whether something that lives here waits for a reply; a glance from any thread, for tests."""
        return bool(self._inbox) or any(member.busy for member in self._members)

    def next_due_at(self) -> float | None:
        """Return when the next thing is due, in seconds of the clock; a glance from any thread, for tests."""
        tick = self.wheel.next_due_tick()
        return None if tick is None else self.scale.seconds(tick)

    @property
    def stopped(self) -> bool:
        """Whether :meth:`stop` has been called."""
        return self._stopped

    def post(self, call: Callable[[], object], domain: FailureDomain | None = None) -> None:
        """Have ``call()`` run soon on the timer's thread, which is started if need be. From any thread, any time.

        It takes no lock once the thread runs, so it is safe in a finaliser that interrupts another post.

        Args:
            call: What to run.
            domain: What a failure of the call costs; None where nothing is in doubt then.
        """
        message = (call, domain)  # before the inbox is looked up: an allocation may run a finaliser, and other threads
        self._inbox.append(message)
        if self._thread is None and self._threaded:
            self._start()
        if self._sleeping and not self._woken:
            # Noted before the wake, never after: by then the thread could have woken, turned and gone to sleep again,
            # and the next message would find it deaf. One wake is enough: of 64 threads, 63 save a system call.
            self._woken = True
            self._wake()

    def wake(self) -> None:
        """Make the thread turn once more, if it sleeps."""
        self._wake()

    def attach(self, member: Member) -> None:
        """Tell ``member`` (held weakly) of the thread's death, of a fork, and of ``stop()``."""
        self._members.add(member)

    def call_at(self, when: float, action: Callable[[float], object], domain: FailureDomain | None = None) -> Alarm:
        """Have ``action(now)`` called on the timer's thread at the tick that contains ``when``. Timer's thread only.

        Args:
            when: Seconds of the clock.
            action: What to call.
            domain: What a failure of the call costs; None where nothing is in doubt then.
        """
        alarm = Alarm(action, domain)
        self.wheel.schedule(alarm, self.scale.floor(when))
        return alarm

    def cancel(self, alarm: Alarm | None) -> None:
        """Cancel an alarm, if it is one and still waits. Timer's thread only."""
        if alarm is not None:
            alarm.disarm()
            self.wheel.cancel(alarm)

    def watch(
        self,
        sock: socket.socket,
        events: int,
        handler: Callable[[int], object],
        domain: FailureDomain | None = None,
    ) -> None:
        """Call ``handler(events)`` whenever ``sock`` is ready; a second call changes ``events``. Its thread only.

        Args:
            sock: A socket.
            events: What it has to be ready for, as in :mod:`selectors`.
            handler: What to call.
            domain: What a failure of the handler costs; None where nothing is in doubt then.
        """
        selector = self._open()
        if sock.fileno() in selector.get_map():
            selector.modify(sock, events, (handler, domain))
        else:
            selector.register(sock, events, (handler, domain))

    def unwatch(self, sock: socket.socket) -> None:
        """Stop watching ``sock``, if it is watched. Before it is closed. Timer's thread only."""
        if self._selector is not None and sock.fileno() in self._selector.get_map():
            self._selector.unregister(sock)

    def flush_later(self, flusher: Flusher) -> None:
        """Have ``flusher.flush()`` called at the end of this turn. Timer's thread only."""
        self._flushers.append(flusher)

    def cpu_s(self) -> float:
        """Return the CPU seconds that the thread has used, 0 where it does not run or the system does not tell."""
        thread = self._thread
        if thread is None or thread.ident is None or not (thread.is_alive() and hasattr(time, "pthread_getcpuclockid")):
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))

    # -- the thread --------------------------------------------------------------------------------------------------

    def turn(self, *, block: bool = False) -> None:
        """Do one pass of the loop; ``block`` allows it to sleep first."""
        selector = self._open()
        sleep_s: float | None = 0.0
        if block:
            sleep_s = self._sleep_s()
            if sleep_s != 0.0:
                self._woken = False
                self._sleeping = True
                if self._inbox or self._stopped:  # posted before the line above could be seen
                    sleep_s = 0.0
        events = selector.select(sleep_s)
        self._sleeping = False
        self.turns += 1
        self.now = now = self.clock.now()
        self._handle(events)
        if now >= self._next_tick_at:
            # A stopped process sleeps on past its time limits, and then wakes without a look at its sockets: a reply that
            # was there by `now` is read before `now` says that it did not come.
            handled = {key.fd for key, _ in events}
            if late := [event for event in selector.select(0.0) if event[0].fd not in handled]:
                self.now = self.clock.now()
                self._handle(late)
            self._advance(now)
        inbox = self._inbox
        until = time.monotonic() + _LONGEST_INBOX_S
        for number in range(1, len(inbox) + 1):
            call, domain = inbox.popleft()
            guarded(domain, call)
            # The rest of a flood waits for the next turn: replies and renewals do not wait for the flood. Unless the next
            # turn is the last: then those are behind the flood who are to be told that it is the end.
            if number % _INBOX_STEP == 0 and not self._stopped and time.monotonic() > until:
                break
        while self._flushers:
            flushers, self._flushers = self._flushers, []
            for flusher in flushers:
                guarded(flusher, flusher.flush)

    def _handle(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        watched = self._open().get_map() if len(events) > 1 else None
        for key, ready in events:
            # A handler before this one may have given its socket up, or put another in its place.
            if watched is None or watched.get(key.fd) == key:
                handler, domain = key.data
                guarded(domain, handler, ready)

    def _advance(self, now: float) -> None:
        """Advance the wheel over all the ticks that have passed: a thread that was kept from running catches up."""
        tick = max(self.scale.floor(now), self.wheel.now)
        self._next_tick_at = self.scale.seconds(tick + 1)
        due = self.wheel.advance(tick)
        if due:
            self._dispatch(due, now)

    def _sleep_s(self) -> float | None:
        tick = self.wheel.next_due_tick()
        if tick is None:
            return None
        remaining_s = self.scale.seconds(tick) - self.clock.now()
        return self.clock.sleep_s(min(max(remaining_s, 0.0), _LONGEST_SLEEP_S))

    def _dispatch(self, due: list[Any], now: float) -> None:
        groups: dict[Any, list[Any]] = {}
        last: object = None
        append: Callable[[Any], None] = due.append  # always replaced by the first entry
        for entry in due:
            group = entry.group
            if group is not last:
                last = group
                bucket = groups.get(group)
                if bucket is None:
                    groups[group] = bucket = []
                append = bucket.append
            append(entry)
        for group, entries in groups.items():
            try:
                group.due(entries, now)
            except Exception as error:
                contain_all(group.domains(entries), group.due, error)

    def _open(self) -> selectors.BaseSelector:
        if self._selector is None:
            self._selector = native.DefaultSelector()
            waker = self._waker  # not self, for whom this must not be a reason to live
            self._selector.register(waker, selectors.EVENT_READ, (lambda ready: waker.clear(), None))
        return self._selector

    def _close(self) -> None:
        selector, self._selector = self._selector, None
        if selector is not None:
            selector.close()

    def __del__(self) -> None:
        if getattr(self, "_thread", None) is None:
            return
        self._waker.wake()  # the thread, asleep with nothing to do, closes what it sleeps on when it finds this gone
        if not sys.is_finalizing():
            NOTIFIER.post(_warn_unstopped, self.name)

    def _start(self) -> None:
        with self._lock:
            if self._stopped or self._thread is not None:
                return
            fate: dict[None, str] = {}
            thread = new_thread(partial(_run, [self]), self.name)
            if self._thread is not None:
                return  # a finaliser, or a signal's handler, has posted meanwhile
            # Noted before it runs: it knows itself at once, and a finaliser which posts from here on starts no other.
            self._thread = thread
            try:
                # Not start() here: a KeyboardInterrupt while that waits can keep the thread from ever running its target.
                native.start_new_thread(self._launch, (thread, fate))
            except BaseException:
                if fate.setdefault(None, GIVEN_UP) is GIVEN_UP:
                    self._thread = None
                raise

    def _launch(self, thread: SystemThread, fate: dict[None, str]) -> None:
        # No lock here: the starting thread holds it, and a signal's handler that has interrupted that thread may wait for
        # what this one is to do.
        if fate.setdefault(None, RUNS) is not RUNS:
            return  # given up, and another may have been started
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads for us
            native.sleep(0.1)
            self._died(error)

    def _main(self) -> _Asleep | None:
        """Turn until there is nothing more to do; return what to sleep on then, or None when this thread is over."""
        try:
            self.turn()  # what has come while it slept
            while not self._stopped:
                if self._idle:
                    self._woken = False
                    self._sleeping = True
                    if not self._inbox and not self._stopped:
                        return _Asleep(self._open(), self._waker, self._inbox)
                self.turn(block=True)
            self.turn()
            self._close()
            self._thread = None
        except BaseException as error:
            self._died(error)
        return None

    @property
    def _idle(self) -> bool:
        """Whether nothing is scheduled and no socket but the waker is watched: only a message could be a reason to turn."""
        return self.wheel.next_due_tick() is None and len(self._open().get_map()) == 1

    def _died(self, error: BaseException) -> None:
        """Say so, start empty, and keep the messages that nobody has read."""
        self.deaths += 1
        self._close()
        self.wheel.clear()  # so that no entry of it looks scheduled to the next
        self._reset()
        log = partial(
            logger.critical,
            "the thread %s died of %r: every lock that it kept is lost; the next call starts it again",
            self.name,
            error,
        )
        # The log first: a caller that hears of its loss finds the cause there.
        calls: Iterator[Callable[[], object]] = itertools.chain(
            [partial(NOTIFIER.post, log)], (member.thread_died for member in self._members)
        )
        try:
            for call in calls:
                try:
                    call()
                except BaseException as another:  # it may be killed once more while it dies
                    NOTIFIER.post(log_failure, call, another)
        finally:
            self._thread = None  # not earlier: until here nobody may start the next one
            if self._inbox:
                self._start()

    def _forked(self) -> None:
        """In the child: the parent's thread, timeouts and sockets are not ours."""
        self._close()  # closes the child's copies only; what the parent watches stays watched
        self._waker.close()
        self._waker = new_waker()
        self._thread = None
        self._lock = _new_lock()
        self._inbox = deque()
        self._reset()
        for member in self._members:
            member.forked()


def _run(handed_over: list[Loop]) -> None:
    """Turn a loop until it stops or has been collected. While the loop sleeps idle, this thread holds no reference to it.

    So a timer that its owner has dropped without a ``stop()`` is collected once nothing is scheduled on it and no
    connection is open. The thread then closes what it slept on, and ends.

    Args:
        handed_over: The loop alone; it is taken out of the list, because a thread object keeps its arguments.
    """
    loop: Loop | None = handed_over.pop()
    reference = weakref.ref(loop)
    asleep: _Asleep | None = None
    try:
        while loop is not None:
            asleep = loop._main()
            loop = None
            if asleep is None:
                return
            asleep.selector.select()  # the next turn handles the events
            loop = reference()
    except BaseException as error:
        loop = reference()
        if loop is not None:
            loop._died(error)
            return
    if asleep is not None:
        asleep.selector.close()


def _warn_unstopped(name: str) -> None:
    """Warn of a timer that was dropped without ``stop()``. On the notifier thread."""
    warnings.warn(f"the timer {name} was dropped without stop()", ResourceWarning, stacklevel=1)


def _after_fork() -> None:
    for loop in LOOPS:
        loop._forked()


LOOPS: WeakRegistry[Loop] = WeakRegistry()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
