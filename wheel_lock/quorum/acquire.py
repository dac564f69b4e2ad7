"""Acquiring: rounds are repeated until a majority of the nodes grants the lock, or the wait ends.

A round asks all nodes at once, and is decided as soon as its outcome is certain, so a slow node does not delay it. Two
concurrent rounds may split the votes. Then both return their votes, and pause for a random time, longer than a round
takes, before the next one; but on average at most for the ``fallback_interval`` of the context.

A caller whose first round too few nodes answer gets the error at once. One that waits already has more rounds, and gets it
when that has lasted for as long as one server may leave a caller without an answer. Nodes without votes, because they have
restarted, are waited for like a holder.

Source: "Distributed Locks with Redis" on redis.io, section "Retry on failure".
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.requests.base import REQUEST_TIMEOUTS, RequestTimeouts
from wheel_lock.errors import (
    LockAlreadyHeld,
    LockServerError,
    LockTimeout,
    LockUnavailable,
    WheelLockError,
    internal_error,
    quoted,
)
from wheel_lock.lease import EXTENDING, Event, Lease
from wheel_lock.net.connector import is_fatal
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.quorum.lease import QuorumLease, VoteListener
from wheel_lock.runtime.backoff import JITTER
from wheel_lock.wheel import WheelEntry

_RETRY_S = 0.05  # the default pause, on average
_PAUSE_ROUNDS = 4  # the least pause, in durations of the last round


class Quorum(VoteListener, Protocol):
    """The engine of a quorum, as its waiters see it. Documented at :class:`QuorumEngine`."""

    options: ContextOptions

    acquires: set[QuorumWaiter]
    waiters: set[QuorumWaiter]

    def add_waiter(self, waiter: QuorumWaiter) -> WheelLockError | None: ...
    def note_timeout(self, time_s: float) -> None: ...
    def limit_s(self, timeout_s: float) -> float: ...
    def grant(self, lease: QuorumLease, began_at: float) -> None: ...
    def heal_later(self, lease: QuorumLease) -> None: ...
    def release(self, lease: Lease, future: Future[None]) -> None: ...


class Outcome(enum.Enum):
    """The outcome of a round."""

    OPEN = enum.auto()
    GRANTED = enum.auto()  # by a majority
    REFUSED = enum.auto()  # enough nodes have answered; too few of them may have votes
    UNANSWERED = enum.auto()  # by too few nodes, which may answer another round
    FAILED = enum.auto()  # and another round would not go better
    GIVEN_UP = enum.auto()


class AcquireRound:
    """One request for the votes of all nodes. Timer's thread only.

    Args:
        engine: The engine.
        lease: The lease to acquire.
        decided: Called when the round is decided.
        caller_until: The caller's time limit, in seconds of the timer's clock; None if there is none.
        by_script: Acquire by the script, whose reply contains the type of a key of another type.

    Attributes:
        outcome: Its outcome.
        failure: The error if too few nodes answered or have votes, or the context admits no more locks; None otherwise.
    """

    def __init__(
        self,
        engine: Quorum,
        lease: QuorumLease,
        decided: Callable[[], object],
        caller_until: float | None,
        *,
        by_script: bool = False,
    ) -> None:
        self._engine = engine
        self._caller_until = caller_until
        self._by_script = by_script
        self._decided = decided
        self._to_ask = len(lease.votes)
        self._lease = lease
        self.outcome: Outcome = Outcome.OPEN
        self.failure: WheelLockError | None = None

    def begin(self) -> None:
        """Ask all nodes, unless the context admits no more locks."""
        engine, lease, options = self._engine, self._lease, self._lease.options
        self.failure = engine.leases.admission_error(lease.name, 1)
        if self.failure is not None:
            self._end(Outcome.FAILED)
            return
        engine.leases.acquiring += 1
        limit_s = engine.limit_s(options.timeout_s)
        for vote in lease.votes:
            self._to_ask -= 1
            if self.outcome is Outcome.OPEN:
                vote.ask(lease.token, options, limit_s, self._check, self._caller_until, by_script=self._by_script)

    def _check(self) -> None:
        """Decide the round if its outcome is certain: a node has answered, or exceeded its time limit."""
        lease, now = self._lease, self._engine.timer.clock.now()
        if self.outcome is not Outcome.OPEN:
            self._engine.heal_later(lease)  # the lease may be held by now, with one more vote
            return
        open_votes = self._to_ask + sum(vote.in_flight is not None for vote in lease.votes)
        until = lease.majority_until(now)
        if now < until:
            lease.deadline = until
            outcome = Outcome.GRANTED
        elif len(lease.support(now)) + open_votes >= lease.quorum:
            return
        else:
            failures = [vote.failure for vote in lease.votes if vote.failure is not None]
            if len(failures) > len(lease.votes) - lease.quorum:
                self.failure = self._failure(failures, open_votes)
                passes = sum(map(_lasts, failures)) <= len(lease.votes) - lease.quorum
                outcome = Outcome.UNANSWERED if passes else Outcome.FAILED
            elif len(lease.votes) - len(failures) - open_votes < lease.quorum:
                return  # it will not be granted; whether by refusals or failures is not certain yet
            else:
                outcome = Outcome.REFUSED
                self.failure = self._without_votes(len(failures), now)
        self._uncount()
        self._end(outcome)

    def _failure(self, failures: Sequence[Exception], open_votes: int) -> WheelLockError:
        name, nodes = self._lease.name, len(self._lease.votes)
        error_type: type[WheelLockError] = LockUnavailable
        if all(isinstance(failure, LockServerError) for failure in failures):
            error_type = LockServerError
        elif any(isinstance(failure, LockTimeout) for failure in failures):
            error_type = LockTimeout
        answered = nodes - len(failures) - open_votes
        error = error_type(
            f"Only {answered} of {nodes} nodes answered, and it takes {self._lease.quorum}: {failures[0]}"
            f" (lock {quoted(name)})",
            name,
        )
        if isinstance(error, LockServerError) and isinstance(failures[0], LockServerError):
            error.code = failures[0].code
        error.__cause__ = failures[0]
        return error

    def _without_votes(self, failures: int, now: float) -> LockUnavailable | None:
        """Return the error if so many nodes have restarted, beside the ``failures``, that no round could be granted."""
        lease, longest_s = self._lease, self._engine.longest_s
        young = [
            vote for vote in lease.votes if vote.failure is None and now < vote.node.history.counts_from(longest_s)
        ]
        voting = len(lease.votes) - failures - len(young)
        if voting >= lease.quorum:
            return None
        first = young[0].node
        return LockUnavailable(
            f"Only {voting} of {len(lease.votes)} nodes have votes, and it takes {lease.quorum}: "
            f"{first.connector.describe()} has restarted, or may have, and has no vote for another "
            f"{first.history.counts_from(longest_s) - now:.3g} s (lock {quoted(lease.name)})",
            lease.name,
        )

    def _end(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if outcome is not Outcome.GRANTED:
            self._withdraw()
        self._decided()

    def _uncount(self) -> None:
        leases = self._engine.leases
        leases.acquiring = max(leases.acquiring - 1, 0)  # reset to 0 after a failure of the engine

    def _withdraw(self) -> None:
        for vote in self._lease.votes:
            vote.withdraw()
        self._lease.transition(Event.REJECTED)

    def give_up(self) -> None:
        """Withdraw all votes, unless the round is decided: the wait has ended."""
        if self.outcome is Outcome.OPEN:
            self.outcome = Outcome.GIVEN_UP
            self._uncount()
            self._withdraw()


def _lasts(failure: Exception) -> bool:
    """Return whether a node that has failed so would do so again: it has answered, or refuses all connections."""
    return isinstance(failure, LockServerError) or (failure.__cause__ is not None and is_fatal(failure.__cause__))


class QuorumWaiter(WheelEntry):
    """One caller's wait, from the first round to the grant, the refusal, or the time limit.

    Its wheel entry is the next round. Timer's thread only, except the constructor.

    Args:
        engine: The engine.
        lease: The lease of the first round; each later round has another one, with a new token.
        blocking: Whether to wait.
        until: The time limit, in seconds of the timer's clock; None if there is none.
        future: Completed with the lease, in a sequence of one, or with None if it was not granted.

    Attributes:
        began_at: When it began, in seconds of the timer's clock.
    """

    __slots__ = (
        "_blocking",
        "_engine",
        "_future",
        "_heard_at",
        "_lease",
        "_over",
        "_round",
        "_rounds",
        "_until",
        "began_at",
        "group",
    )

    def __init__(
        self,
        engine: Quorum,
        lease: QuorumLease,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> None:
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self._engine = engine
        self._lease = lease
        self._blocking = blocking
        self._until = until
        self._future = future
        self._round: AcquireRound | None = None
        self._rounds = 0
        self._over = False
        self._heard_at = -math.inf  # when enough nodes have answered a round
        self.began_at: float = 0.0

    @property
    def name(self) -> str | bytes:
        """The lock's name as the caller gave it."""
        return self._lease.name

    def begin(self) -> None:
        """Start a round."""
        if self._over:
            return
        if not self._rounds:
            self.began_at = self._engine.timer.now
            self._engine.acquires.add(self)
        else:
            last = self._lease
            wire = lease_args(last.key, last.another_token())
            self._lease = QuorumLease(
                last.name, wire, last.params, last.owner, last.on_lost, last.call_site, last.options
            )
        self._rounds += 1
        self._engine.note_timeout(self._lease.options.timeout_s)
        decided = partial(self._decided, self._engine.timer.now)
        self._round = AcquireRound(self._engine, self._lease, decided, self._until, by_script=self._rounds == 2)
        self._round.begin()

    def on_timeout(self, now: float) -> None:
        """Start the next round after a pause; give up if the caller's event loop was closed, which cancels no task."""
        if self._future.abandoned:
            self.give_up()
        else:
            self.begin()

    def _decided(self, began_at: float) -> None:
        if self._over or self._round is None:
            return
        if self._round.outcome is Outcome.GRANTED:
            self.end()
            self._engine.grant(self._lease, self.began_at)
            self._future.set_result((self._lease,))
        else:
            self._refused(began_at, self._round)

    def _refused(self, began_at: float, last: AcquireRound) -> None:
        """Have another round after a pause, or end the wait: with the failure of the ``last`` one, if it has one."""
        engine, options = self._engine, self._lease.options
        now = engine.timer.clock.now()
        over = not self._blocking or self._rounds == options.max_attempts
        over = over or (self._until is not None and now >= self._until)
        if last.outcome is Outcome.REFUSED:
            self._heard_at = now
        over = over or last.outcome is Outcome.FAILED or now - self._heard_at >= engine.options.response_timeout_s
        if over and last.failure is not None:
            self.fail(last.failure)
            return
        if over:
            self.end()
            self._future.set_result(None)
            return
        error = engine.add_waiter(self)
        if error is not None:
            self.fail(error)
            return
        rounds_s = min(_PAUSE_ROUNDS * (now - began_at), engine.options.fallback_s)  # a round may include a standstill
        pause_s = max(options.retry_every_s or _RETRY_S, rounds_s) * JITTER.uniform(0.5, 1.5)
        if self._rounds == 1 and self._until is None and options.max_attempts is None:
            engine.leases.refuse_endless(self._lease.owner, [self._lease.key], self._refused_endless)
        # The pause is shortened such that the last round begins at the time limit.
        at = now + pause_s if self._until is None else min(now + pause_s, self._until)
        engine.timer.wheel.schedule(self, engine.timer.scale.ceil(at))

    def _refused_endless(self, error: LockAlreadyHeld) -> None:
        if not self._over:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """End the wait with ``error``."""
        self.end()
        self._future.set_exception(error)

    @property
    def above(self) -> Quorum:
        """The failure domain above: the engine."""
        return self._engine

    def crashed(self, error: Exception) -> None:
        """End the wait after a failure of the library's own code, and withdraw votes that may have been granted."""
        self.give_up()
        self._future.set_exception(internal_error(error, self._lease.name))

    def end(self) -> None:
        """End the wait without completing its future."""
        self._over = True
        self._engine.acquires.discard(self)
        self._engine.waiters.discard(self)
        if self.tick >= 0:
            self._engine.timer.wheel.cancel(self)
        if self._round is not None:
            self._round.give_up()

    def give_up(self) -> None:
        """End the wait, and release what was or may have been granted: the caller does not wait any more."""
        if not self._over:
            self.end()
        elif self._lease.state <= EXTENDING:
            self._engine.release(self._lease, Future(noop))
