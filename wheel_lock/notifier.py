"""Notifiers: threads on which users' code, warnings and log handlers run, so that none of them can delay a tick.

Each is a daemon thread that starts when there is something to tell, and ends a moment after there is nothing more. It
survives whatever a callback raises, SystemExit included. Calls run one after the other, in the order in which they were
posted. The process has one for its log, its warnings and the tasks of its timers; every context has its own for callbacks.
"""

from __future__ import annotations

import builtins
import itertools
import logging
import os
import queue
import time
from collections.abc import Callable
from functools import partial

from wheel_lock import native
from wheel_lock.greenlets import SystemThread, new_gate, new_thread, run_among_greenlets
from wheel_lock.interruptions import insist, uninterrupted_start
from wheel_lock.weak import WeakRegistry

logger = logging.getLogger("wheel_lock")

_names = itertools.count(1)
RUNS, GIVEN_UP = "runs", "given up"  # the two claims to a thread that is being started; the first claim holds
# What says that the system has no thread for us, or that the interpreter ends. These and no others: what a signal's handler
# raises may be made of them.
_NO_THREAD = (RuntimeError, MemoryError, getattr(builtins, "PythonFinalizationError", RuntimeError))
_LINGER_S = 1.0  # an idle thread is kept for so long: losses come in bursts


class Running:
    """A call under way on a notifier's thread.

    Attributes:
        call: What was called.
        arguments: And with what.
        since: When it began, in seconds of ``time.monotonic``.
        reported: Whether the log says already that it takes long.
    """

    __slots__ = ("arguments", "call", "reported", "since")

    def __init__(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.call = call
        self.arguments = arguments
        self.since = time.monotonic()
        self.reported = False


def _log_failure(call: object) -> None:
    try:
        logger.exception("a callback on the notifier thread failed: %r", call)
    except BaseException:
        pass  # a log handler that raises, or a __repr__: there is nobody left to tell


class Notifier:
    """Runs calls, in order, on a thread of its own.

    Attributes:
        running: The call that is under way, or None. A glance from any thread.
    """

    def __init__(self) -> None:
        self._reset()
        NOTIFIERS.add(self)

    def _reset(self) -> None:
        # SimpleQueue.put is reentrant, so a post from a finaliser in the middle of another post cannot deadlock.
        self._calls: queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...]]] = native.SimpleQueue()
        self._threads: dict[None, SystemThread] = {}  # the one, if there is one
        self._refused: str | None = None  # why there was no thread when one was wanted
        self.running: Running | None = None

    @property
    def _thread(self) -> SystemThread | None:
        return self._threads.get(None)

    @property
    def busy(self) -> bool:
        """Whether a call is under way, or waits for its turn. A glance from any thread."""
        return self.running is not None or not self._calls.empty()

    @uninterrupted_start
    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Have ``call(*arguments)`` run soon on the notifier thread, also where this is interrupted. Never blocks."""
        try:
            self._calls.put((call, arguments))
            self.start_if_need_be()
        except BaseException:
            insist(Notifier.start_if_need_be, self)
            raise

    def start_if_need_be(self) -> None:
        """Start the thread where something waits for it, because the system had none for us before."""
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        if self._thread is not None or self._calls.empty():
            return
        thread, fate = None, dict[None, str]()
        try:
            thread = new_thread(self._run, f"wheel-lock-notifier-{next(_names)}")
            # One step of the interpreter decides between this, other threads, and a finaliser that has posted meanwhile.
            if self._threads.setdefault(None, thread) is thread:
                # Not start() here: it waits until the new thread runs, and the timer's thread has no time for that.
                native.start_new_thread(self._launch, (thread, fate))
        except BaseException as error:
            insist(self._give_up, (thread, fate))
            if type(error) not in _NO_THREAD:
                raise  # a signal's handler has: that is the caller's, who starts another
            self._refused = repr(error)  # not logged here: who posts may be the timer's thread, and handlers have locks

    def _give_up(self, attempt: tuple[SystemThread | None, dict[None, str]]) -> None:
        """Whoever was to start the thread has not, or does not know whether he has: unless it runs, it never will."""
        thread, fate = attempt
        if fate.setdefault(None, GIVEN_UP) is GIVEN_UP and self._thread is thread is not None:
            self._threads.pop(None, None)

    def _launch(self, thread: SystemThread, fate: dict[None, str]) -> None:
        if fate.setdefault(None, RUNS) is not RUNS:
            return
        try:
            thread.start()
        except BaseException as error:  # the system has no second one: the next post tries again
            self._refused = repr(error)
            if self._thread is thread:
                self._threads.pop(None, None)

    def _run(self) -> None:
        me = self._thread  # noted before it was started
        try:
            while self._thread is me:  # not so in a child that a callback has forked
                try:
                    call, arguments = self._calls.get(timeout=_LINGER_S)
                except queue.Empty:
                    return
                run_among_greenlets(partial(self.run, call, *arguments))
                self._say_why_late()
                # The references must go before the next, possibly long wait: a callback may be all that keeps a lock alive.
                del call, arguments
        finally:
            if self._thread is me:
                # From here on a post starts the next; what came before is looked for here.
                self._threads.pop(None, None)
                self._start()

    def _say_why_late(self) -> None:
        """Log why there was no thread for a while. On its own thread, behind what was late already."""
        why, self._refused = self._refused, None
        if why is not None:
            run_among_greenlets(partial(self.run, logger.debug, "notifications had to wait for a thread: %s", why))

    def run(self, call: Callable[..., object], *arguments: object) -> None:
        """Call ``call(*arguments)``, one of many in a call that was posted; a failure is logged. On its own thread."""
        before, self.running = self.running, Running(call, arguments)
        try:
            call(*arguments)
        except BaseException:
            # SystemExit too: a callback must not silence the ones after it.
            _log_failure(call)
        finally:
            self.running = before

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was posted before has run.

        Args:
            timeout_s: How long to wait at most.

        Returns:
            Whether it has. False at once on the notifier thread itself, which cannot wait for itself.
        """
        thread = self._thread
        if thread is not None and thread.ident == native.get_ident():
            return False
        if thread is None and self._calls.empty():
            return True
        done = new_gate()
        self.post(done.release)
        return done.acquire(timeout=timeout_s)


class ProcessNotifier(Notifier):
    """The notifier for what concerns the whole process."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that was posted before, to this or to any other notifier, has run."""
        until = time.monotonic() + timeout_s
        others = [notifier for notifier in NOTIFIERS if notifier is not self]
        drained = [notifier.drain(max(until - time.monotonic(), 0.0)) for notifier in others]
        return super().drain(max(until - time.monotonic(), 0.0)) and all(drained)


def _after_fork() -> None:
    for notifier in NOTIFIERS:
        notifier._reset()


NOTIFIERS: WeakRegistry[Notifier] = WeakRegistry()

NOTIFIER = ProcessNotifier()
"""The one of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
