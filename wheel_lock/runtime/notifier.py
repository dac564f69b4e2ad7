"""Notifiers: threads for users' code, warnings and log handlers, so that none of them can delay a tick.

Each is a daemon thread that starts with the first call, and ends a second after the last. It survives any exception of a
callback, SystemExit included. Calls run one after the other, in the order in which they were posted. The process has one
notifier for the log, warnings and the tasks of timers; every context has its own for callbacks.
"""

from __future__ import annotations

import builtins
import itertools
import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from wheel_lock.forks import in_forked_child
from wheel_lock.runtime import native
from wheel_lock.runtime.greenlets import new_gate, new_thread, run_among_greenlets
from wheel_lock.runtime.interruptions import insist, uninterrupted_start
from wheel_lock.runtime.sole_thread import SoleThread
from wheel_lock.runtime.weak_registry import WeakRegistry

logger: logging.Logger = logging.getLogger("wheel_lock")

_names = itertools.count(1)
# Raised when the system cannot start a thread, or the interpreter ends. Compared by identity: exceptions that a signal's
# handler raises may be subclasses of these.
_NO_THREAD = (RuntimeError, MemoryError, getattr(builtins, "PythonFinalizationError", RuntimeError))
_LINGER_S = 1.0  # lifetime of an idle thread: losses come in bursts
_AT_ONCE_S = 0.01  # time slice for a flood of tasks, after which other greenlets run

Running = tuple[Callable[..., object], tuple[object, ...], float]
"""A call that is running on a notifier's thread: the callback, its arguments, and ``time.monotonic`` when it began."""

_Call = tuple[Callable[..., object], tuple[object, ...]]


class Task(Protocol):
    """An object with a callback whose argument is the object itself."""

    @property
    def task(self) -> Callable[[Any], object]: ...


def _log_failure(call: object) -> None:
    try:
        logger.exception("a callback on the notifier thread failed: %r", call)
    except BaseException:
        pass  # of a log handler, or a __repr__: it cannot be reported anywhere else


class Notifier:
    """Runs calls, in order, on a thread of its own."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._reset()
        NOTIFIERS.add(self)

    def _reset(self) -> None:
        # SimpleQueue.put is reentrant, so a post from a finaliser that interrupts another post cannot deadlock.
        self._calls: queue.SimpleQueue[_Call | deque[Task]] = native.SimpleQueue()
        self._sole = SoleThread()
        self._refused: str | None = None  # why the last attempt to start a thread failed
        # What is left of the flood of tasks that the thread is at. Emptied, not replaced: in the child, a task that has
        # forked returns into the loop over it.
        self._tasks.clear()
        self.running: Running | None = None  # may be read from any thread
        self.reported: Running | None = None  # the last one that has been logged as slow

    @property
    def busy(self) -> bool:
        """True if a call is running or queued. May be read from any thread."""
        return self.running is not None or self._waiting

    @property
    def _waiting(self) -> bool:
        return bool(self._tasks) or not self._calls.empty()

    @uninterrupted_start
    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call ``call(*arguments)`` soon on the notifier thread, also if this method is interrupted. Never blocks."""
        self._put((call, arguments))

    @uninterrupted_start
    def post_each(self, tasks: deque[Task]) -> None:
        """Call ``task.task(task)`` soon for each of ``tasks``, which the notifier empties; else as :meth:`post`.

        However many they are, they are one entry of the queue. Between two of them no other call runs.
        """
        self._put(tasks)

    @uninterrupted_start
    def _put(self, item: _Call | deque[Task]) -> None:
        try:
            self._calls.put(item)
            self.ensure_started()
        except BaseException:
            insist(Notifier.ensure_started, self)
            raise

    def ensure_started(self) -> None:
        """Start the thread if calls are queued, and there is none."""
        if self._sole or not self._waiting:
            return
        try:
            self._sole.start(new_thread(self._run, f"wheel-lock-notifier-{next(_names)}"), self._refuse)
        except BaseException as error:
            if type(error) not in _NO_THREAD:
                raise  # by a signal's handler: passed on to the caller, which starts another thread
            self._refused = repr(error)  # logged later: this may be the timer's thread, and log handlers take locks

    def _refuse(self, error: BaseException) -> None:
        """Note that the system could not start the thread: the next post tries again."""
        self._refused = repr(error)
        self._sole.end()

    def _run(self) -> None:
        me = self._sole.thread  # set before it was started
        try:
            while self._sole.thread is me:  # False in a child that a callback has forked
                if self._tasks:  # also those that a thread which was killed has left
                    run_among_greenlets(self._run_tasks)
                    self._log_refusal()
                    continue
                try:
                    item = self._calls.get(timeout=_LINGER_S)
                except queue.Empty:
                    return
                if isinstance(item, deque):
                    self._tasks = item
                    continue
                call, arguments = item
                run_among_greenlets(partial(self.run, call, *arguments))
                self._log_refusal()
                # Deleted before the next, possibly long wait: a callback may hold the last reference to a lock.
                del item, call, arguments
        finally:
            if self._sole.thread is me:
                # From here on a post starts the next thread; for calls that were queued before it is started here.
                self._sole.end()
                self.ensure_started()

    def _log_refusal(self) -> None:
        """Log why calls were delayed by the lack of a thread. On the notifier's thread."""
        why, self._refused = self._refused, None
        if why is not None:
            run_among_greenlets(partial(self.run, logger.debug, "notifications had to wait for a thread: %s", why))

    def _run_tasks(self) -> None:
        """Run tasks, one after the other, for a while, and log their exceptions. On the notifier's thread."""
        tasks, now = self._tasks, time.monotonic()
        until = now + _AT_ONCE_S
        try:
            while tasks and now < until:
                task = tasks.popleft()
                call = task.task
                self.running = (call, (task,), now)
                try:
                    call(task)
                except BaseException:
                    _log_failure(call)
                now = time.monotonic()
        finally:
            self.running = None

    def run(self, call: Callable[..., object], *arguments: object) -> None:
        """Call ``call(*arguments)``, and log an exception. On the notifier's thread."""
        before, self.running = self.running, (call, arguments, time.monotonic())
        try:
            call(*arguments)
        except BaseException:
            # SystemExit too: a callback must not prevent the ones after it.
            _log_failure(call)
        finally:
            self.running = before

    def drain(self, timeout_s: float) -> bool:
        """Wait until all calls that were posted before have run.

        Args:
            timeout_s: The longest time to wait, in seconds.

        Returns:
            True if they have run. False at once on the notifier thread, which cannot wait for itself.
        """
        thread = self._sole.thread
        if thread is not None and thread.ident == native.get_ident():
            return False
        if thread is None and not self._waiting:
            return True
        done = new_gate()
        self.post(done.release)
        return done.acquire(timeout=timeout_s)


class ProcessNotifier(Notifier):
    """The notifier of the process. Its ``drain`` includes all other notifiers."""

    def drain(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        others = [notifier for notifier in NOTIFIERS if notifier is not self]
        drained = [notifier.drain(max(until - time.monotonic(), 0.0)) for notifier in others]
        return super().drain(max(until - time.monotonic(), 0.0)) and all(drained)


@in_forked_child
def _after_fork() -> None:
    for notifier in NOTIFIERS:
        notifier._reset()


NOTIFIERS: WeakRegistry[Notifier] = WeakRegistry()

NOTIFIER = ProcessNotifier()
"""The notifier of this process."""
