"""What the parts of one engine share: the timer, the settings, the counters, and the way in for other threads."""

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
    """What the parts of one engine share. It is the failure domain of whatever belongs to no smaller one.

    Args:
        options: The context's settings.
        timer: Whose thread the engine lives on.
        launch: Runs an attempt to connect on a thread that may block.

    Attributes:
        closed: The context has been closed: nothing is acquired any more.
        counters: What the context's statistics are made of.
        deaths: How often everything has been lost at once: to a fork, to the death of the thread, to a failure.
        exiting: The interpreter is about to end.
        interrupted: A caller has stopped waiting: what it asked for may not have begun yet.
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
        """End everything: a call of this engine's has failed, and what is still watched is not known."""
        raise NotImplementedError

    def submit(self, work: Callable[[], object]) -> None:
        """Have ``work()`` called on the timer's thread. From any thread.

        Raises:
            ContextClosed: The context, or its timer, is closed, or the interpreter has ended all threads but this.
        """
        if self.exiting:
            end_quietly(True)  # what a daemon thread would acquire now could be left behind
            if sys.is_finalizing():
                raise ContextClosed("The interpreter has ended, and with it the thread that keeps the locks")
        if self.closed or self.timer.stopped:
            raise ContextClosed("The context has been closed")
        self.timer.post(work, self)

    def post_if_open(self, work: Callable[[], object]) -> None:
        """Like :meth:`submit`, but does nothing where the context is closed: for finalisers and for giving up."""
        if not self.over:
            self.timer.post(work, self)

    def post_if_running(self, work: Callable[[], object]) -> None:
        """Like :meth:`post_if_open`, but never starts the thread: where it does not run there is nothing to do."""
        if self.timer.running:
            self.post_if_open(work)

    @property
    def over(self) -> bool:
        """Whether the engine does nothing any more. From any thread."""
        return self.closed or self.timer.stopped or (self.exiting and sys.is_finalizing())

    def release_unawaited(self, release: Callable[[Future[Any]], object]) -> None:
        """Have ``release(operation)`` begun for a caller that was interrupted and does not wait. From any thread."""
        self.interrupted = True
        self.post_if_open(partial(release, Future(noop)))

    def come_by(self, future: Future[None]) -> None:
        """Complete ``operation``: what was submitted before, such as an interrupted release, has begun by now."""
        future.set_result(None)
