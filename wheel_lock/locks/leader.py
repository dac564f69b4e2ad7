"""Leader election, without the waiting: candidates for one name, each of which acquires a lock object in the background.

A term begins when the candidate's lock is granted, and ends with a loss, a resignation, or the end of the candidate. The
lock of a term that is given up is released after the callbacks, so that no other candidate is elected while they run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Wait
from wheel_lock.errors import ContextClosed, LockLost, LockNotHeld, LockUnavailable, LossReason, WheelLockError, quoted
from wheel_lock.lease import Lease, Owner
from wheel_lock.lock_types import FENCED
from wheel_lock.locks import operations
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.callers import CallerFuture, Side
from wheel_lock.locks.context import checked_callback
from wheel_lock.locks.operations import Steps
from wheel_lock.options import lock_name, lock_options, seconds
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.interruptions import insist, uninterrupted_start

logger: logging.Logger = logging.getLogger("wheel_lock")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # after a loss or a failure
_AFTER_RESIGNATION_S = 1.0  # for the other candidates, which a release wakes within milliseconds


class Term(Owner):
    """One term, and the wait for it: the owner of the lease, and a wait that can be ended without an error.

    The loss of the lease ends the term at once, whatever other callbacks are doing.

    Args:
        over: Completed at the end of the term.
    """

    stands_by = True

    __slots__ = ("_granted", "_wait", "over")

    _wait: Wait

    def __init__(self, over: CallerFuture[None]) -> None:
        super().__init__()
        self.over: CallerFuture[None] = over
        self._granted: Future[Any] = over  # that of the wait, once there is one

    def wait_with(self, wait: Wait, granted: Future[Sequence[Lease] | None]) -> Wait:
        """Return ``wait``, whose future is ``granted``, such that :meth:`end` ends it."""
        self._wait = wait
        self._granted = granted
        return self

    @property
    def ended(self) -> bool:
        """True if the event loop of the candidate's task is closed."""
        return self.over.abandoned

    # On the timer's thread

    def begin(self) -> None:
        """Begin the wait, unless the term has been ended before."""
        if self.over.done:
            self._granted.set_result(None)
        else:
            self._wait.begin()

    def give_up(self) -> None:
        self._wait.give_up()

    def end(self) -> None:
        """End the term, or the wait for it."""
        self.over.set_result(None)
        if not self._granted.done:
            self._wait.give_up()
            self._granted.set_result(None)

    def lost(self, lease: Lease) -> None:
        self.over.set_result(None)


class Candidate(BaseLock):
    """The lock of one term, for the operations: it has no methods to acquire and release it."""

    __slots__ = ("_future_class", "term")

    _is_traced = False
    term: Term

    def _caller(self) -> Owner:
        return self.term

    _new_owner = _caller

    def _new_waiter(
        self,
        blocking: bool | None,
        limit: float | None,
        token: str | bytes | None,
        future: CallerFuture[Sequence[Lease] | None],
    ) -> Wait:
        return self.term.wait_with(super()._new_waiter(blocking, limit, token, future), future)


class BaseLeadership:
    """One term of a leader: from its election to a loss, its resignation, or the end of the candidate.

    Attributes:
        name: The name that was stood for.
    """

    def __init__(self, lock: Candidate, set_ended: Callable[[], object]) -> None:
        self._lock = lock
        self._set_ended = set_ended
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

    def _give_up(self) -> None:
        self._given_up = True
        self._lock.term.end()

    def _end(self) -> None:
        self._given_up = True
        self._set_ended()

    def __repr__(self) -> str:
        state = "held" if self.is_held else f"lost: {self.lost}" if self.lost else "over"
        return f"<{type(self).__name__} {quoted(self.name)} {state}>"


T = TypeVar("T")
Callback = Callable[[T], object]
AnyLeadership = TypeVar("AnyLeadership", bound=BaseLeadership)


class BaseLeader(Side, Generic[AnyLeadership]):
    """A candidate for the leadership of a name, which campaigns in the background.

    The other parameters, and what is raised, are those of :meth:`wheel_lock.LockContext.leader`.

    Args:
        engine: The engine of its locks.
        context: The context, which is kept for as long as the candidate.
    """

    _leadership_class: ClassVar[Any]
    _awaits: ClassVar[bool] = False
    """Whether what the callbacks of a term return is awaited."""
    _pid = 0  # of the process in which it campaigns

    def __init__(
        self,
        engine: Engine,
        context: object,
        name: str | bytes,
        timeout: float | None,
        renew_every: float | None,
        on_elected: Callback[AnyLeadership] | None,
        on_demoted: Callback[AnyLeadership] | None,
        on_error: Callback[Exception] | None,
    ) -> None:
        lock_name(name, engine.options.prefix)
        timeout_s = engine.options.timeout_s if timeout is None else timeout
        # Without the context's limit of a wait: a candidate waits for as long as it stands.
        self._options = lock_options(timeout_s, fencing=True, thread_local=False, renew_every=renew_every)
        checked_callback(on_elected, "on_elected", awaited=self._awaits)
        checked_callback(on_demoted, "on_demoted", awaited=self._awaits)
        checked_callback(on_error, "on_error")
        self._engine = engine
        self._context = context
        self._name = name
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
        return self._name

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
        self._engine.post_if_open(leadership._give_up)  # first: an interruption leaves it the leader, or ends the term
        leadership._given_up = True
        return True

    # -- the campaign ------------------------------------------------------------------------------------------------

    def _begin_calling(self, what: str, callback: Callback[AnyLeadership], leadership: AnyLeadership) -> None:
        """Begin a call beside the campaign."""
        raise NotImplementedError

    def _wait_for_elected(self) -> Iterable[Any]:
        """Wait, by ``yield from``, until a call that was begun has returned."""
        raise NotImplementedError

    def _call(self, what: str, callback: Callback[AnyLeadership], leadership: AnyLeadership) -> Iterable[Any]:
        """Call ``callback``, by ``yield from``. An exception is reported."""
        raise NotImplementedError

    def _sleep(self, pause_s: float) -> Iterable[Any]:
        """Wait for ``pause_s`` seconds, by ``yield from``, without the timer."""
        raise NotImplementedError

    def _campaign(self) -> Steps[None]:
        """Stand for election again and again, until the candidate or the context is closed."""
        engine, clock = self._engine, self._engine.timer.clock
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while not self._closing:
            resigned = False
            try:
                began_at = clock.now()
                resigned = yield from self._serve()
                self._failing = False
                if clock.now() - began_at >= self._options.timeout_s:
                    backoff.reset()
            except ContextClosed:
                return
            except Exception as error:
                self._report_failure(error)
            try:
                yield from self._pause(_AFTER_RESIGNATION_S if resigned else backoff.pause())
            except Exception as error:  # also a RuntimeError: the system has no thread for the timer
                if engine.over:
                    return
                self._report_failure(error)
                yield from self._sleep(_FIRST_PAUSE_S)

    def _serve(self) -> Steps[bool]:
        """Wait to be elected, and serve one term; return True if it ended by a resignation."""
        term = Term(self._new_future())
        lock = Candidate(self._engine, FENCED, self._name, self._options, None)
        lock.term, lock._future_class = term, self._future_class
        self._stop = term.end
        if self._closing or not (yield from operations.acquire(lock, True, None)):
            return False
        try:
            return (yield from self._lead(lock, term))
        except BaseException:
            insist(lock._let_go, None)
            raise

    def _lead(self, lock: Candidate, term: Term) -> Steps[bool]:
        """Serve the term for which ``lock`` was granted; return True if it ended by a resignation."""
        self._failing = False
        leadership: AnyLeadership = self._leadership_class(lock)
        self._leadership = leadership
        may_wait = True
        try:
            if self._on_elected is not None:
                self._begin_calling("on_elected", self._on_elected, leadership)
            with suppress(LockUnavailable):  # the timer's thread has ended, and with it the lease
                yield from term.over.wait()
        except GeneratorExit:
            may_wait = False  # a coroutine that is closed in the middle may not await
            raise
        finally:
            resigned = leadership._given_up
            leadership._end()
            if may_wait:
                yield from self._end_term(leadership)
        return resigned

    def _end_term(self, leadership: AnyLeadership) -> Steps[None]:
        if self._on_demoted is not None:
            yield from self._call("on_demoted", self._on_demoted, leadership)
        yield from self._wait_for_elected()
        self._leadership = None
        try:
            yield from operations.release(leadership._lock)
        except (LockLost, LockNotHeld):
            pass  # lost before, or released by a close that did not wait any longer
        except WheelLockError as error:
            self._report_failure(error)

    def _pause(self, pause_s: float) -> Steps[None]:
        """Wait for ``pause_s`` seconds, or until the candidate is closed."""
        engine, timer = self._engine, self._engine.timer
        over: CallerFuture[None] = self._new_future()
        self._stop = partial(over.set_result, None)
        if not self._closing:
            until = timer.clock.now() + pause_s
            engine.submit(lambda: timer.call_at(until, lambda now: over.set_result(None), self._engine))
            yield from over.wait()

    # -- errors ------------------------------------------------------------------------------------------------------

    def _report(self, callback: str, error: BaseException) -> None:
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

    @uninterrupted_start
    def _begin_closing(self, timeout: float | None = None) -> float:
        """End the campaign, also if this is interrupted; return the time limit of the close in seconds. From any thread.

        Raises:
            ValueError: ``timeout`` is out of range; nothing has ended.
        """
        try:
            limit_s = self._engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout)
            self._end_campaign()
            return limit_s
        except ValueError:
            raise
        except BaseException:
            insist(BaseLeader._end_campaign, self)
            raise

    def _end_campaign(self) -> None:
        """End what it waits for, and all that follows."""
        self._closing = True
        leadership = self._leadership
        if leadership is not None:
            leadership._given_up = True
        if self._stop is not None and self._pid == os.getpid():
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
