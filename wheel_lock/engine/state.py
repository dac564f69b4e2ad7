"""The state that the parts of one engine share, and the way in for other threads."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from wheel_lock.engine.future import Exit, Future, end_quietly
from wheel_lock.engine.interfaces import NO_DIRECT_LOCKS, DirectLocks
from wheel_lock.errors import ContextClosed
from wheel_lock.lease import Lease
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.owners import owner_head
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.loop import Member
from wheel_lock.runtime.timer import HashedWheelTimer

if TYPE_CHECKING:  # imported by those who use them only
    from wheel_lock.keeper.keeping import Keeping
    from wheel_lock.observe.opentelemetry import Spans

T = TypeVar("T")
Launch = Callable[[Callable[[], None]], None]


class EngineState(Member, abc.ABC):
    """An engine as its parts see it: shared state, and the failure domain of calls without a smaller one.

    Args:
        options: The context's settings.
        timer: The timer whose thread the engine lives on.
        launch: Runs an attempt to connect on a thread that may block.

    Attributes:
        closed: True if the context has been closed: nothing is acquired any more.
        counters: The counters of the context's statistics.
        deaths: The number of events that ended everything at once: a fork, the death of the thread, a failure.
        exiting: What is about to end the process.
        interrupted: True if a caller has stopped waiting: its operation may not have begun yet.
        unawaited: A key for each release that has not ended yet and for which no caller waits.
        token_head: What precedes the random part of each token; empty unless the context has a ``readable_owner``.
        direct: The direct path of uncontended locks (see engine/direct/path.py).
        keeping: Has the locks released when the process has crashed; None unless ``release_on_crash`` asks for it.
        spans: Makes the spans of acquires and releases; None without a tracer.
    """

    above: FailureDomain | None = None  # a failure of one engine puts nothing else in doubt

    def __init__(self, options: ContextOptions, timer: HashedWheelTimer, launch: Launch) -> None:
        self.options = options
        self.timer = timer
        self.launch = launch
        self.counters: Counters = Counters()
        self.closed = False
        self.deaths = 0
        self.exiting = Exit.NONE
        self.interrupted: bool = False
        self.unawaited: dict[object, None] = {}
        self.spans: Spans | None = None
        self.keeping: Keeping | None = None
        self.direct: DirectLocks = NO_DIRECT_LOCKS
        self.name_tokens()

    def name_tokens(self) -> None:
        """Set the head of new tokens. Called again in a forked child, whose default owner is another one."""
        options = self.options
        self.token_head: bytes = owner_head(options.current_owner) if options.readable_owner else b""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a context, and what it has made, cannot be pickled: each process makes its own; a held lock is handed over "
            "with export() and adopt()"
        )

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The name of the context in metrics, dumps and log records."""

    @abc.abstractmethod
    def owned(self, lease: Lease, future: Future[bool]) -> None:
        """Query whether the server has the token of ``lease``; a majority of the servers, for a lock of a quorum."""

    @abc.abstractmethod
    def crashed(self, error: Exception) -> None:
        """End everything: after a failure in a call of this engine's, any lease or request may be inconsistent."""

    def submit(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on the timer's thread. From any thread.

        Raises:
            ContextClosed: The context, or its timer, is closed, or the interpreter has ended all threads but this.
        """
        if self.exiting:
            end_quietly(self.exiting)  # a lock that a daemon thread acquired now could stay held
            if sys.is_finalizing():
                raise ContextClosed("The interpreter has ended, and with it the thread that keeps the locks")
        if self.closed or self.timer.stopped:
            raise ContextClosed("The context has been closed")
        if self.direct.claim:
            self.timer.post(self.direct.collided, self)
        self.timer.post(work, self)

    def post_if_open(self, work: Callable[[], object]) -> None:
        """Like :meth:`submit`, but does nothing if the context is closed: for finalisers and for giving up."""
        if not self.over:
            if self.direct.claim:
                self.timer.post(self.direct.collided, self)
            self.timer.post(work, self)

    def post_if_running(self, work: Callable[[], object]) -> None:
        """Like :meth:`post_if_open`, but never starts the thread: without it there is nothing to do."""
        if self.timer.running or not self.timer.threaded:
            self.post_if_open(work)

    @property
    def over(self) -> bool:
        """True if the engine does nothing any more. From any thread."""
        return self.closed or self.timer.stopped or (self.exiting is not Exit.NONE and sys.is_finalizing())

    def release_unawaited(self, release: Callable[[Future[T]], object]) -> None:
        """Begin ``release(future)`` for a caller that does not wait: it was interrupted, or may not. From any thread."""
        key = object()
        self.unawaited[key] = None
        self.post_if_open(partial(release, Future(partial(self.unawaited.pop, key, None))))

    def come_by(self, future: Future[None]) -> None:
        """Complete ``future``: all work that was submitted before, such as an interrupted release, has begun."""
        future.set_result(None)
