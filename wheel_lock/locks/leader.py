"""Leader election, without the waiting: candidates for one name, each of which acquires a lock object in the background.

A term begins when the candidate's lock is granted, and ends with a loss, a resignation, or the end of the candidate. The
lock of a term that is given up is released after the callbacks, so that no other candidate is elected while they run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Wait
from wheel_lock.errors import ContextClosed, LockLost, LockNotHeld, LockUnavailable, LossReason, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner
from wheel_lock.lock_types import FENCED
from wheel_lock.locks import operations
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.callbacks import checked_callback
from wheel_lock.locks.callers import CallerFuture, Side
from wheel_lock.options import ContextOptions, LockOptions, lock_name, lock_options, seconds
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.interruptions import insist

logger: logging.Logger = logging.getLogger("wheel_lock")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # after a loss or a failure
_AFTER_RESIGNATION_S = 1.0  # for the other candidates, which a release wakes within milliseconds

Steps = Generator[Any, None, None]


class LeaderTerms(NamedTuple):
    """The name and the options of the locks of a candidate.

    Attributes:
        name: The name of its lock.
        options: The options of its lock.
    """

    name: str | bytes
    options: LockOptions

    @classmethod
    def checked(
        cls, context: ContextOptions, name: str | bytes, timeout: float | None, renew_every: float | None
    ) -> LeaderTerms:
        """Return the terms. Raises ValueError for a name or a value that is out of range."""
        lock_name(name, context.prefix)
        timeout_s = context.timeout_s if timeout is None else timeout
        # Without the context's limit of a wait: a candidate waits for as long as it stands.
        return cls(name, lock_options(timeout_s, fencing=True, thread_local=False, renew_every=renew_every))


class Term(Owner):
    """The owner of a candidate's lease: the loss of that ends the term at once, whatever other callbacks are doing.

    Args:
        over: Completed at the end of the term.
    """

    stands_by = True

    __slots__ = ("_candidacy", "over")

    def __init__(self, over: CallerFuture[None]) -> None:
        super().__init__()
        self.over: CallerFuture[None] = over
        self._candidacy: Candidacy | None = None

    def new_candidacy(self, wait: Wait, granted: Future[Sequence[Lease] | None]) -> Candidacy:
        """Return ``wait`` such that :meth:`stop` ends it."""
        self._candidacy = Candidacy(wait, granted, self.over)
        return self._candidacy

    def stop(self) -> None:
        """End the term, or the wait for it. On the timer's thread."""
        self.over.set_result(None)
        if self._candidacy is not None:
            self._candidacy.stop()

    def lost(self, lease: Lease) -> None:
        self.over.set_result(None)


class Candidacy:
    """A wait for a lock that can be ended without an error. On the timer's thread.

    Args:
        wait: The wait.
        granted: Its future.
        over: If it is completed, the wait does not begin.
    """

    __slots__ = ("_granted", "_over", "_wait")

    def __init__(self, wait: Wait, granted: Future[Sequence[Lease] | None], over: Future[None]) -> None:
        self._wait = wait
        self._granted = granted
        self._over = over

    def begin(self) -> None:
        """Begin the wait."""
        if self._over.done:
            self._granted.set_result(None)
        else:
            self._wait.begin()

    def give_up(self) -> None:
        """Undo it, for a caller that waits no more."""
        self._wait.give_up()

    def stop(self) -> None:
        """End the wait without a grant, unless it has ended already."""
        if not self._granted.done:
            self._wait.give_up()
            self._granted.set_result(None)


class BaseCandidate(BaseLock):
    """The lock of one term."""

    __slots__ = ()

    term: Term

    def _new_owner(self) -> Owner:
        return self.term

    def _new_waiter(
        self,
        blocking: bool | None,
        limit: float | None,
        token: str | bytes | None,
        future: CallerFuture[Sequence[Lease] | None],
    ) -> Wait:
        return self.term.new_candidacy(super()._new_waiter(blocking, limit, token, future), future)


class BaseLeadership:
    """One term of a leader: from its election to a loss, its resignation, or the end of the candidate.

    Attributes:
        name: The name that was stood for.
    """

    def __init__(self, lock: BaseCandidate) -> None:
        self._lock = lock
        self._given_up = False
        self.name: str | bytes = lock.name

    @property
    def fence(self) -> int:
        """A number that grows with every election for this name, to be checked by what the leader writes to."""
        fence = self._lock.fence
        assert fence is not None
        return fence

    @property
    def is_held(self) -> bool:
        """True if it lasts *now*: it was not lost or given up, and the clock is before the local deadline of its lock."""
        return not self._given_up and self._lock.is_held

    @property
    def lost(self) -> LossReason | None:
        """The reason of the loss; None if it lasts, or was given up."""
        return self._lock.lost

    def remaining(self) -> float:
        """Return the seconds until the local deadline, which renewals push out; 0 if it is over."""
        return self._lock.remaining() if self.is_held else 0.0

    def raise_if_lost(self) -> None:
        """Raise :class:`LockLost` if it was lost, :class:`LockNotHeld` if it was given up."""
        self._lock.raise_if_lost()
        if self._given_up:
            raise LockNotHeld(f"The leadership of {quoted(self.name)} was given up", self.name)

    def _set_ended(self) -> None:
        """Set the event that marks the end."""
        raise NotImplementedError

    def _end(self) -> None:
        self._given_up = True
        self._set_ended()

    def __repr__(self) -> str:
        state = "held" if self.is_held else f"lost: {self.lost}" if self.lost else "over"
        return f"<{type(self).__name__} {quoted(self.name)} {state}>"


AnyLeadership = TypeVar("AnyLeadership", bound=BaseLeadership)


class BaseLeader(Side, Generic[AnyLeadership]):
    """A candidate for the leadership of a name, which campaigns in the background.

    Args:
        engine: The engine of its locks.
        context: The context, which is kept for as long as the candidate.
        terms: What it stands for.
        on_elected: Called with the leadership when a term begins.
        on_demoted: Called with the leadership when a term ends.
        on_error: Called with the exceptions of callbacks and of failed candidacies, which are logged otherwise.

    Raises:
        ValueError: A callback is not callable, or a coroutine function that would not be awaited.
    """

    _candidate_class: ClassVar[Any]
    _leadership_class: ClassVar[Any]
    _term_class: ClassVar[Any] = Term
    _awaits: ClassVar[bool] = False
    """Whether what the callbacks of a term return is awaited."""

    def __init__(
        self,
        engine: Engine,
        context: object,
        terms: LeaderTerms,
        on_elected: Callable[[AnyLeadership], object] | None,
        on_demoted: Callable[[AnyLeadership], object] | None,
        on_error: Callable[[Exception], object] | None,
    ) -> None:
        checked_callback(on_elected, "on_elected", awaited=self._awaits)
        checked_callback(on_demoted, "on_demoted", awaited=self._awaits)
        checked_callback(on_error, "on_error")
        self._engine = engine
        self._context = context
        self._terms = terms
        self._on_elected = on_elected
        self._on_demoted = on_demoted
        self._on_error = on_error
        self._leadership: AnyLeadership | None = None
        self._stop: Callable[[], object] | None = None  # ends what is waited for; called on the timer's thread
        self._closing = False
        self._failing = False

    @property
    def name(self) -> str | bytes:
        """The name that it stands for."""
        return self._terms.name

    @property
    def is_leader(self) -> bool:
        """True if it is the leader *now*; see :attr:`leadership`."""
        return self.leadership is not None

    @property
    def leadership(self) -> AnyLeadership | None:
        """The present term; None if it is not the leader, and always in a forked child."""
        leadership = self._leadership
        return leadership if leadership is not None and leadership.is_held else None

    def resign(self) -> bool:
        """Give up the leadership, and stand again after a second: the other candidates come first. Does not wait.

        It is not the leader any more when this returns. The lock is released when the callbacks have returned. From any
        thread.

        Returns:
            True if it was the leader.
        """
        leadership = self.leadership
        if leadership is None:
            return False
        leadership._given_up = True
        self._engine.post_if_open(leadership._lock.term.stop)
        return True

    # -- the campaign ------------------------------------------------------------------------------------------------

    def _begin_elected(self, leadership: AnyLeadership) -> None:
        """Begin ``on_elected``, beside the campaign."""
        raise NotImplementedError

    def _wait_for_elected(self) -> Iterable[Any]:
        """Wait, by ``yield from``, until ``on_elected`` has returned."""
        raise NotImplementedError

    def _call_demoted(self, leadership: AnyLeadership) -> Iterable[Any]:
        """Call ``on_demoted``, by ``yield from``. An exception is reported."""
        raise NotImplementedError

    def _sleep(self, pause_s: float) -> Iterable[Any]:
        """Wait for ``pause_s`` seconds, by ``yield from``, without the timer."""
        raise NotImplementedError

    def _campaign(self) -> Steps:
        """Stand for election again and again, until the candidate or the context is closed."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._closing:
            pause_s = None
            try:
                began_at = self._engine.timer.clock.now()
                resigned = yield from self._serve()
                self._failing = False
                if self._engine.timer.clock.now() - began_at >= self._terms.options.timeout_s:
                    backoff.reset()
                if resigned:
                    pause_s = _AFTER_RESIGNATION_S
            except ContextClosed:
                return
            except Exception as error:
                self._report_failure(error)
            try:
                yield from self._pause(backoff.pause() if pause_s is None else pause_s)
            except Exception as error:  # also a RuntimeError: the system has no thread for the timer
                if self._engine.over:
                    return
                self._report_failure(error)
                yield from self._sleep(_FIRST_PAUSE_S)

    def _serve(self) -> Generator[Any, None, bool]:
        """Wait to be elected, and serve one term; return True if it ended by a resignation."""
        engine, terms = self._server, self._terms
        term: Term = self._term_class(self._new_future())
        candidate: Any = self._candidate_class(engine, FENCED, terms.name, terms.options, None)
        candidate.term = term
        lock: BaseCandidate = candidate
        self._stop = term.stop
        if self._closing or not (yield from operations.acquire(lock, True, None)):
            return False
        self._failing = False
        leadership: AnyLeadership = self._leadership_class(lock)
        self._leadership = leadership
        try:
            self._begin_elected(leadership)
            try:
                yield from term.over.wait()
            except LockUnavailable:
                pass  # the timer's thread has ended, and with it the lease
        except GeneratorExit:
            leadership._end()
            insist(lock._let_go, None)  # a coroutine that is closed in the middle may not await
            raise
        except BaseException:
            leadership._end()
            yield from self._end_term(lock, leadership)
            raise
        resigned = leadership._given_up
        leadership._end()
        yield from self._end_term(lock, leadership)
        return resigned

    def _end_term(self, lock: BaseCandidate, leadership: AnyLeadership) -> Steps:
        """Call ``on_demoted``, wait for ``on_elected``, and release the lock."""
        try:
            yield from self._call_demoted(leadership)
            yield from self._wait_for_elected()
        except BaseException:
            insist(lock._let_go, None)
            raise
        self._leadership = None
        try:
            yield from operations.release(lock)
        except (LockLost, LockNotHeld):
            pass  # lost before, or released by a close that did not wait any longer
        except WheelLockError as error:
            self._report_failure(error)

    def _pause(self, pause_s: float) -> Steps:
        """Wait for ``pause_s`` seconds, or until the candidate is closed."""
        engine, timer = self._engine, self._engine.timer
        over: CallerFuture[None] = self._new_future()
        self._stop = partial(over.set_result, None)
        if not self._closing:
            until = timer.clock.now() + pause_s
            engine.submit(lambda: timer.call_at(until, lambda now: over.set_result(None), self._server))
            yield from over.wait()

    # -- errors ------------------------------------------------------------------------------------------------------

    def _report(self, callback: str, error: BaseException) -> None:
        """Report an exception of a callback."""
        if not (isinstance(error, Exception) and self._handle(error)):
            logger.error("%s of the leader %s raised an exception", callback, quoted(self.name), exc_info=error)

    def _report_failure(self, error: Exception) -> None:
        """Report a failed candidacy or release; only the first of a row is logged."""
        if not (self._handle(error) or self._failing):
            logger.warning("the candidate for %s tries again after a failure: %s", quoted(self.name), error)
        self._failing = True

    def _handle(self, error: Exception) -> bool:
        """Call ``on_error``; return False if there is none, or if it raised an exception, which is logged."""
        if self._on_error is None:
            return False
        try:
            self._on_error(error)
        except (Exception, SystemExit) as another:  # SystemExit would end the campaign's thread without a word
            logger.error("on_error of the leader %s raised an exception", quoted(self.name), exc_info=another)
            return False
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    def _close_limit_s(self, timeout: float | None) -> float:
        """Return the time limit of a close in seconds. Raises ValueError if ``timeout`` is out of range."""
        return self._engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout)

    def _begin_closing(self) -> None:
        """End the campaign, whatever it waits for. From any thread."""
        self._closing = True
        leadership = self._leadership
        if leadership is not None:
            leadership._given_up = True
        if self._stop is not None:
            self._engine.post_if_open(self._stop)

    def _release_unawaited(self) -> None:
        """Release the lock of a term although a callback has not returned, at the time limit of a close."""
        leadership = self._leadership
        if leadership is not None:
            logger.warning("a callback of the leader %s did not return; its lock is released", quoted(self.name))
            leadership._end()
            insist(leadership._lock._let_go, None)

    def __repr__(self) -> str:
        state = "closed" if self._closing else "leader" if self.is_leader else "candidate"
        return f"<{type(self).__name__} {quoted(self.name)} {state}>"
