"""The state that the parts of one engine share, and the way in for other threads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from wheel_lock.engine.future import Future, end_quietly, noop
from wheel_lock.errors import ContextClosed
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.timer import HashedWheelTimer

Launch = Callable[[Callable[[], None]], None]


class EngineState:
    """The state that the parts of one engine share, and the failure domain of all calls without a smaller one.

    Args:
        options: The context's settings.
        timer: The timer whose thread the engine lives on.
        launch: Runs an attempt to connect on a thread that may block.

    Attributes:
        closed: True if the context has been closed: nothing is acquired any more.
        counters: The counters of the context's statistics.
        deaths: The number of events that ended everything at once: a fork, the death of the thread, a failure.
        exiting: True if the interpreter is about to end.
        interrupted: True if a caller has stopped waiting: its operation may not have begun yet.
    """

    above: FailureDomain | None = None  # a failure of one engine puts nothing else in doubt

    def __init__(self, options: ContextOptions, timer: HashedWheelTimer, launch: Launch) -> None:
        self.options = options
        self.timer = timer
        self.launch = launch
        self.counters = Counters()
        self.closed = False
        self.deaths = 0
        self.exiting = False
        self.interrupted = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("a context, and what it has made, cannot be pickled: each process makes its own")

    def crashed(self, error: Exception) -> None:
        """End everything: after a failure in a call of this engine's, any lease or request may be inconsistent."""
        raise NotImplementedError

    def submit(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on the timer's thread. From any thread.

        Raises:
            ContextClosed: The context, or its timer, is closed, or the interpreter has ended all threads but this.
        """
        if self.exiting:
            end_quietly(True)  # a lock that a daemon thread acquired now could stay held
            if sys.is_finalizing():
                raise ContextClosed("The interpreter has ended, and with it the thread that keeps the locks")
        if self.closed or self.timer.stopped:
            raise ContextClosed("The context has been closed")
        self.timer.post(work, self)

    def post_if_open(self, work: Callable[[], object]) -> None:
        """Like :meth:`submit`, but does nothing if the context is closed: for finalisers and for giving up."""
        if not self.over:
            self.timer.post(work, self)

    def post_if_running(self, work: Callable[[], object]) -> None:
        """Like :meth:`post_if_open`, but never starts the thread: without it there is nothing to do."""
        if self.timer.running:
            self.post_if_open(work)

    @property
    def over(self) -> bool:
        """True if the engine does nothing any more. From any thread."""
        return self.closed or self.timer.stopped or (self.exiting and sys.is_finalizing())

    def release_unawaited(self, release: Callable[[Future[Any]], object]) -> None:
        """Begin ``release(future)`` for a caller that was interrupted and does not wait. From any thread."""
        self.interrupted = True
        self.post_if_open(partial(release, Future(noop)))

    def come_by(self, future: Future[None]) -> None:
        """Complete ``future``: all work that was submitted before, such as an interrupted release, has begun."""
        future.set_result(None)
