"""Acquiring: rounds are repeated until a majority of the nodes grants the lock, or the wait ends.

A round asks all nodes at once, and is decided as soon as its outcome is certain, so a slow node does not delay it. With
fencing it has a second phase, in which a majority agrees on the fence (:mod:`wheel_lock.quorum.fences`). Two
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

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.waiting.long_waits import LongWaits
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, WheelLockError, internal_error, quoted
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.net.connector import is_fatal
from wheel_lock.protocol.resp import lease_args
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.runtime.backoff import JITTER

_RETRY_S = 0.05  # the default pause, on average
_PAUSE_ROUNDS = 4  # the least pause, in durations of the last round


class Outcome(enum.Enum):
    """The outcome of a round."""

    OPEN = enum.auto()
    GRANTED = enum.auto()  # by a majority
    REFUSED = enum.auto()  # enough nodes have answered; too few of them may have votes
    UNANSWERED = enum.auto()  # by too few nodes, which may answer another round
    FAILED = enum.auto()  # and another round would not go better
    GIVEN_UP = enum.auto()  # or none has begun


class QuorumWaiter(Waiter):
    """One caller's wait. It polls, and in place of a try it has a round, in which it requests the votes of all nodes.

    Timer's thread only, except the constructor.

    Args:
        lease: The lease of the first round; each later round has another one, with a new token.
        release: The engine's ``release``.
        queues, blocking, until, future: As for :class:`Waiter`.
    """

    __slots__ = ("_heard_at", "_lease", "_outcome", "_release", "_round_at", "_to_ask")

    _queues: QuorumWaits

    def __init__(
        self,
        queues: QuorumWaits,
        lease: QuorumLease,
        release: Callable[[Lease, Future[None]], object],
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> None:
        super().__init__(queues, lease.options, (lease,), False, blocking, until, future)
        self._release = release
        self._lease = lease
        self._outcome = Outcome.GIVEN_UP
        self._round_at = 0.0  # when the latest round began
        self._to_ask = 0  # the number of nodes that it has not asked yet
        self._heard_at = -math.inf  # when enough nodes have answered a round

    def _begin(self) -> None:
        if not self.over:
            self._queues.acquires[self] = None
            self._begin_round()

    def on_timeout(self, now: float) -> None:
        """Start the next round after a pause; give up if the caller's event loop was closed, which cancels no task."""
        if self.future.abandoned:
            self.give_up()
        elif not self.over:
            self._begin_round()

    def _begin_round(self) -> None:
        """Ask all nodes, unless the context admits no more locks."""
        table, options = self.table, self.options
        if self._attempts:
            last = self._lease
            wire = lease_args(self.key, last.another_token())
            self._lease = QuorumLease(last.name, wire, last.group, last.owner, last.on_lost, last.call_site)
        lease = self._lease
        error = table.admission_error(lease.name, 1)
        if error is not None:
            table.reject([lease], False)
            self.fail(error)
            return
        self._attempts += 1
        self._outcome = Outcome.OPEN
        self._round_at = table.timer.now
        table.acquiring += 1
        lease.majority.note_timeout(options.timeout_s)
        lease.round = self._check
        self._to_ask = len(lease.votes)
        for vote in lease.votes:
            self._to_ask -= 1
            if self._outcome is Outcome.OPEN:
                vote.ask(lease.token, options, self.until, by_script=self._attempts == 2)

    def _check(self) -> None:
        """Decide the round if its outcome is certain: a node has answered, or exceeded its time limit."""
        lease, now = self._lease, self.table.timer.clock.now()
        waiting = 0
        if self.options.fencing:
            waiting = lease.agree_on_fence(now, self.until)
            if self._outcome is not Outcome.OPEN:
                return  # a write has failed at once
        open_votes = self._to_ask + sum(vote.in_flight is not None for vote in lease.votes)
        until = lease.majority_until(now)
        if now < until:
            lease.deadline = until
            self._end_round(Outcome.GRANTED)
            lease.majority.grant(lease, now)
            self.succeed((lease,))
            return
        most_others = len(lease.votes) - lease.quorum
        failures = [vote.failure for vote in lease.votes if vote.failure is not None]
        if len(lease.support(now)) + waiting + open_votes >= lease.quorum:
            return
        if len(failures) > most_others:
            passes = sum(map(_lasts, failures)) <= most_others
            error: WheelLockError | None = _unanswered(lease, failures, open_votes)
            self._refused(Outcome.UNANSWERED if passes else Outcome.FAILED, error)
        elif len(failures) + open_votes <= most_others:
            self._heard_at = now
            self._refused(Outcome.REFUSED, _without_votes(lease, len(failures), now))
        # Else it will not be granted; whether by refusals or failures is not certain yet.

    def _end_round(self, outcome: Outcome) -> None:
        """End the round; without a grant all votes are withdrawn."""
        self._outcome = outcome
        self._lease.round = None
        self.table.acquiring = max(self.table.acquiring - 1, 0)  # reset to 0 after a failure of the engine
        if outcome is not Outcome.GRANTED:
            for vote in self._lease.votes:
                vote.withdraw()
            self.table.reject([self._lease], False)

    def _refused(self, outcome: Outcome, error: WheelLockError | None) -> None:
        """Have another round after a pause, or end the wait: with ``error``, if the round has failed."""
        self._end_round(outcome)
        context, now = self.table.state.options, self.table.timer.clock.now()
        lasts = outcome is Outcome.FAILED or now - self._heard_at >= context.response_timeout_s
        if lasts or not self._blocking or self._was_last(now):
            if error is not None:
                self.fail(error)
            else:
                self.refuse()
            return
        rounds_s = min(_PAUSE_ROUNDS * (now - self._round_at), context.fallback_s)  # a round may include a standstill
        self._pause(now, max(self.options.retry_every_s or _RETRY_S, rounds_s) * JITTER.uniform(0.5, 1.5))

    def crashed(self, error: Exception) -> None:
        """End the wait after a failure of the library's own code, and withdraw votes that may have been granted."""
        self.give_up()
        self.future.set_exception(internal_error(error, self.name))

    def _end(self) -> None:
        super()._end()
        self._queues.acquires.pop(self, None)
        self._queues.pollers.discard(self)

    def abort(self) -> None:
        if self._outcome is Outcome.OPEN:
            self._end_round(Outcome.GIVEN_UP)

    def give_up(self) -> None:
        if not self.over:
            self._end()
            self.abort()
        elif self.leases and self._lease.state <= EXTENDING:
            self._release(self._lease, Future(noop))


def _unanswered(lease: QuorumLease, failures: Sequence[Exception], open_votes: int) -> WheelLockError:
    """Return the error if too few nodes have answered."""
    name, nodes = lease.name, len(lease.votes)
    error_type: type[WheelLockError] = LockUnavailable
    if all(isinstance(failure, LockServerError) for failure in failures):
        error_type = LockServerError
    elif any(isinstance(failure, LockTimeout) for failure in failures):
        error_type = LockTimeout
    answered = nodes - len(failures) - open_votes
    text = (
        f"Only {answered} of {nodes} nodes answered, and it takes {lease.quorum}: {failures[0]} (lock {quoted(name)})"
    )
    return caused_by(failures[0], error_type(text, name))


def caused_by(first: Exception, error: WheelLockError) -> WheelLockError:
    """Return ``error``, for a caller whom too few nodes have answered, with the first of their failures as its cause."""
    if isinstance(error, LockServerError) and isinstance(first, LockServerError):
        error.code = first.code
    error.__cause__ = first
    return error


def _without_votes(lease: QuorumLease, failures: int, now: float) -> LockUnavailable | None:
    """Return the error if so many nodes have restarted, beside the ``failures``, that no round could be granted."""
    longest_s = lease.majority.longest_s
    young = [vote for vote in lease.votes if vote.failure is None and now < vote.node.history.counts_from(longest_s)]
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


def _lasts(failure: Exception) -> bool:
    """Return whether a node that has failed so would do so again: it has answered, or refuses all connections."""
    return isinstance(failure, LockServerError) or (failure.__cause__ is not None and is_fatal(failure.__cause__))


class QuorumWaits(WaitQueueRegistry):
    """The waiters of a quorum's engine. They poll, so there are no queues, no wake-ups, and no holder to ask for.

    Attributes:
        acquires: All of them, from their first round on; the ``pollers`` are those whose first round was refused.
    """

    def __init__(self, table: LeaseTable) -> None:
        self.table = table
        self._long_waits = LongWaits(table.state, self._longest)
        self._reset()

    def _reset(self) -> None:
        super()._reset()
        self.acquires: dict[QuorumWaiter, None] = {}

    def __len__(self) -> int:
        return len(self.acquires)

    def _drain(self) -> list[Waiter]:
        self.pollers.update(self.acquires)
        self.acquires.clear()
        return super()._drain()
