"""A lease that a majority of the nodes grants, and the votes that it consists of.

Each vote is a lease of one node's engine, which renews it and reports its loss. The majority must be continuous: where it
had ended for a moment, another client may have had one meanwhile. So the quorum lease has one deadline, the end of its
majority, with the rule of every lease: it is set anew only while it has not passed. A vote whose deadline changes, that is
granted, or that is lost, has it set anew by :meth:`Vote.changed`; nothing else does.

Source: "Distributed Locks with Redis" on redis.io, section "The Redlock Algorithm". There the lock's validity counts from
before the first node was asked; here each vote has the deadline of its own request, and the lease is valid as long as a
majority of the votes is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.loss_events import log_illegal
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import end_of_try
from wheel_lock.engine.state import HeldLeases
from wheel_lock.errors import LockUnavailable, LossReason, quoted
from wheel_lock.lease import EXTENDING, Event, Lease, Owner, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.lock_types.base import LockType
from wheel_lock.observe.events import LostEvent
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.quorum.node import NodeEngine
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.timer import HashedWheelTimer

_DOWN_S = 0.25  # for a node whose last attempt to connect failed


class VoteListener(FailureDomain, Protocol):
    """The engine of a quorum, as its leases and their votes see it. Documented at :class:`QuorumEngine`."""

    timer: HashedWheelTimer
    engines: list[NodeEngine]
    leases: QuorumLeases
    quorum: int
    longest_s: float

    def vote_changed(self, vote: Vote, reason: LossReason | None) -> None: ...
    def heal(self, lease: QuorumLease) -> None: ...


class QuorumGroup:
    """The group of quorum leases of one timeout. When one of them is due, its missing votes are requested again."""

    def __init__(self, engine: VoteListener, timeout_s: float) -> None:
        self.engine = engine
        self.lock_type: LockType = EXCLUSIVE
        self.timeout_s = timeout_s
        self.alive = True

    def due(self, entries: Sequence[Lease], now: float) -> None:
        for lease in entries:
            assert isinstance(lease, QuorumLease)
            self.engine.heal(lease)

    def illegal(self, lease: Lease, event: Event) -> None:
        """End ``lease``: it received an event that its state does not allow."""
        log_illegal(lease, event)
        self.engine.leases.mark_lost([lease], LossReason.INTERNAL_ERROR)

    def domains(self, entries: Sequence[Lease]) -> tuple[VoteListener]:
        return (self.engine,)


class VoteLease(Lease):
    """A node's lease that is a vote: with its deadline that of the quorum lease may change."""

    __slots__ = ("_deadline",)

    @property
    def deadline(self) -> float:
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline: float = deadline
        if self.state <= EXTENDING:
            owner = self.owner
            assert isinstance(owner, Vote)
            owner.changed(self)


class Vote(Owner):
    """One node's vote for a quorum lease, and the owner of that node's lease. Timer's thread only.

    Attributes:
        node: The node's engine.
        quorum_lease: The lease that it is a vote for.
        lease: The node's latest lease, in any state; None if it has granted none.
        counts_from: When that lease begins to count, in seconds of the timer's clock.
        in_flight: The acquire request under way, or None.
        failure: Why the node could not be asked, or did not answer, the last time; None if it did.
    """

    __slots__ = ("_callback", "counts_from", "failure", "in_flight", "lease", "node", "quorum_lease")

    def __init__(self, node: NodeEngine, quorum_lease: QuorumLease) -> None:
        super().__init__()
        self.node: NodeEngine = node
        self.quorum_lease: QuorumLease = quorum_lease
        self.lease: Lease | None = None
        self.counts_from: float = math.inf
        self.in_flight: Acquire | None = None
        self.failure: Exception | None = None
        self._callback: Callable[[], object] = noop

    @property
    def ended(self) -> bool:
        """True if the holder has ended, so that its leases are not renewed any more."""
        return self.quorum_lease.owner.ended

    @property
    def alive(self) -> bool:
        """True if the node's lease has not ended, as far as known. (It may have expired, or not count yet.)"""
        return self.live is not None

    @property
    def live(self) -> Lease | None:
        """The node's lease unless it has ended, as far as known. (It may have expired, or not count yet.)"""
        lease = self.lease
        ended = lease is None or lease.loss is not None or lease.state > EXTENDING or not lease.group.alive
        return None if ended else lease

    def lost(self, lease: Lease) -> None:
        self.changed(lease, lease.loss or LossReason.NOT_CONFIRMED)

    def changed(self, lease: Lease, loss: LossReason | None = None) -> None:
        """Set the deadline of the quorum lease anew: that of ``lease`` has changed, or it has ended because of ``loss``."""
        if lease is self.lease:
            engine = self.quorum_lease.params.engine
            guarded(engine, engine.vote_changed, self, loss)

    def ask(
        self,
        token: bytes,
        options: LockOptions,
        limit_s: float,
        callback: Callable[[], object],
        caller_until: float | None = None,
        *,
        by_script: bool = False,
    ) -> None:
        """Ask the node for its vote.

        Args:
            token: The token to store.
            options: The options of the node's lease.
            limit_s: Seconds that the node may take to answer.
            callback: Called when the node has answered, or exceeded the limit.
            caller_until: The caller's time limit, in seconds of the timer's clock; None if there is none.
            by_script: Acquire by the script, whose reply contains the type of a key of another type.
        """
        engine, name = self.node, self.quorum_lease.name
        twin, why = engine.connector.twin, None
        if twin is not None:
            engine.look_again()
            why = f"is the same master as {twin}, which has one vote"
        elif engine.is_silent:
            why = "is silent"
        if why is not None:
            self.failure = LockUnavailable(f"{engine.connector.describe()} {why} (lock {quoted(name)})", name)
            callback()
            return
        key = self.quorum_lease.key
        lease = VoteLease(name, lease_args(key, token), engine.group(key, EXCLUSIVE, options), self)
        future: Future[bool] = Future(partial(guarded, self.quorum_lease.params.engine, self._answered))
        self._callback = callback
        self.failure = None
        self.in_flight = request = Acquire(engine.leases, [lease], options, future, waiter_ttl_ms=int(by_script))
        if caller_until is not None:
            request.caller_until = end_of_try(caller_until, engine.timer.now, engine.node)
        if not engine.node.connected and engine.node.last_error is None:
            limit_s = max(limit_s, engine.options.connect_timeout_s)  # whatever the lock's timeout is
        elif not engine.node.connected:
            limit_s = min(limit_s, _DOWN_S)  # it may be back; but an undecided round waits for it
        # The node is suspected after this whole time, not after a part of it, because it is short.
        request.limit_s = request.suspicion_s = min(limit_s, engine.options.response_timeout_s)
        request.begin()

    def _answered(self) -> None:
        request, self.in_flight = self.in_flight, None
        assert request is not None
        future = request.future
        self.failure = future.error
        if future.error is None and future.result():
            longest_s = max(self.quorum_lease.params.engine.longest_s, request.lease.group.timeout_s)
            self.counts_from = self.node.history.counts_from(longest_s)
            self.lease = request.lease
            self.changed(request.lease)
        callback, self._callback = self._callback, noop
        callback()

    def withdraw(self, loss: LossReason | None = None) -> None:
        """Release what the node has granted, may have granted, or may be about to grant.

        What it has granted is left to expire instead if ``loss`` is that its holder has abandoned it, as on one server.
        """
        request, self.in_flight = self.in_flight, None
        if request is not None:
            request.future = Future(noop)
            request.give_up()
        lease, node = self.live, self.node
        if lease is not None:
            # Posted: this may be the middle of a tick in which the lease is due, too.
            end = partial(node.abandon, lease)
            node.post_if_open(end if loss is LossReason.ABANDONED else partial(node.release, lease, Future(noop)))


class QuorumLease(Lease):
    """A lease that is valid while a majority of the nodes grants it.

    Attributes:
        options: The caller's options.
        params: Its group.
        votes: One for each node.
        quorum: How many of them are a majority.
    """

    __slots__ = ("options", "params", "quorum", "votes")

    def __init__(
        self,
        name: str | bytes,
        lease_args: bytes,
        params: QuorumGroup,
        owner: Owner,
        on_lost: Callable[[LostEvent], object] | None,
        call_site: str | None,
        options: LockOptions,
    ) -> None:
        self.params: QuorumGroup = params
        self.options: LockOptions = options
        self.votes: tuple[Vote, ...] = tuple(Vote(node, self) for node in params.engine.engines)
        self.quorum: int = params.engine.quorum
        super().__init__(name, lease_args, params, owner, on_lost, call_site)

    def support(self, now: float) -> list[Lease]:
        """Return the votes' leases that count at ``now``. An expired one does not, though its loss may not be noted yet."""
        granted = [(vote.counts_from, lease) for vote in self.votes if (lease := vote.live) is not None]
        return [lease for counts_from, lease in granted if counts_from <= now < lease.deadline]

    def majority_until(self, now: float) -> float:
        """Return until when, from ``now`` on, a majority of the votes counts without a gap; ``now`` if none does.

        A vote that begins to count before the majority of the others ends may prolong it.
        """
        votes = [(vote.counts_from, lease.deadline) for vote in self.votes if (lease := vote.live) is not None]
        until, later = -math.inf, now
        while until < later:
            until = later
            deadlines = sorted([deadline for counts_from, deadline in votes if counts_from <= until], reverse=True)
            if len(deadlines) >= self.quorum:
                later = max(until, deadlines[self.quorum - 1])
        return until

    def recount(self, now: float) -> bool:
        """Set the deadline to the end of the majority; return False if that has ended, which nothing undoes."""
        until = self.majority_until(now)
        continuous = self.loss is None and now < self.deadline and now < until
        if continuous:
            self.deadline = until
        return continuous

    @property
    def renewals(self) -> int:
        """The number of renewals, at the node with the most."""
        return max([vote.lease.renewals for vote in self.votes if vote.lease], default=0)

    @renewals.setter
    def renewals(self, renewals: int) -> None:
        """Do nothing: the renewals of the votes count."""

    def lapse_reason(self) -> LossReason:
        """Return the reason of the vote whose loss ends the majority."""
        granted = [vote.lease for vote in self.votes if vote.lease]
        granted.sort(key=lambda lease: (lease.loss is None, lease.deadline), reverse=True)
        if len(granted) < self.quorum:
            return LossReason.NOT_CONFIRMED
        tipping = granted[self.quorum - 1]
        return tipping.loss or tipping.lapse_reason()

    def another_token(self) -> bytes:
        """Return a new token for another request, so that the clean-up of the last one cannot remove its grant."""
        return self.params.lock_type.next_token(self.token)

    @property
    def hold_until(self) -> float:
        """When its hold limit ends, in seconds of the timer's clock."""
        return math.inf if self.options.max_hold_s is None else self.acquired_at + self.options.max_hold_s


class QuorumLeases(HeldLeases):
    """The held leases of a quorum's engine. Timer's thread only."""

    def mark_lost(self, leases: Iterable[Lease], reason: LossReason | None = None) -> None:
        for lease in leases:
            assert isinstance(lease, QuorumLease)
            if not lease.group.alive or (lease.state > EXTENDING and lease.state is not State.RELEASING):
                continue
            lease.loss = why = lease.loss or reason or lease.lapse_reason()
            if lease.state is not State.RELEASING:  # the time held has been counted at the release
                self.state.counters.held.add(self.timer.now - lease.acquired_at)
            self.end_one(lease, Event.LOSE)
            self.state.counters.lost[why] += 1
            for vote in lease.votes:
                if vote.in_flight is not None or why is not LossReason.CONTEXT_CLOSED:  # else released in bulk
                    vote.withdraw(why)
            self.report_lost([lease])
            if not self.state.exiting:
                lease.owner.lost(lease)

    def end_one(self, lease: QuorumLease, event: Event) -> None:
        """Remove ``lease`` from the held ones, and from the wheel; ``event`` is its release or loss."""
        lease.transition(event)
        self.held.pop(lease, None)
        if lease in self.timer.wheel:
            self.timer.wheel.cancel(lease)
