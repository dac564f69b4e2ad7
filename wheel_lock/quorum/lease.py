"""A lease that a majority of the nodes grants, and the votes that it consists of.

Each vote is a lease of one node's engine, which renews it and reports its loss. The majority must be continuous: where it
had ended for a moment, another client may have had one meanwhile. So the quorum lease has one deadline, the end of its
majority, with the rule of every lease: it is set anew only while it has not passed. A vote whose deadline changes, that is
granted, or that is lost, has it set anew by :meth:`Vote.changed`; nothing else does.

Source: "Distributed Locks with Redis" on redis.io, section "The Redlock Algorithm". There the lock's validity counts from
before the first node was asked; here each vote has the deadline of its own request, and the lease is valid as long as a
majority of the votes is. With fencing a majority agrees on its fence first: see :mod:`wheel_lock.quorum.fences`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Groups, Renewer
from wheel_lock.engine.requests.acquire import Acquire
from wheel_lock.engine.requests.base import end_of_try
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.errors import LockUnavailable, LossReason, quoted
from wheel_lock.lease import EXTENDING, NO_OWNER, Event, Lease, Owner
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.node import Node
from wheel_lock.observe.events import LostEvent
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import lease_args
from wheel_lock.quorum.fences import WriteFence
from wheel_lock.quorum.node import NodeEngine
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.timer import HashedWheelTimer

_DOWN_S = 0.25  # for a node whose last attempt to connect failed
_LEAST_LIMIT_S = 0.05  # longer than a pause of the garbage collector or the scheduler


class QuorumGroup:
    """The quorum leases of one kind. When one of them is due, its missing votes are requested again."""

    def __init__(self, renewer: Majority, lock_type: LockType, options: LockOptions) -> None:
        self.renewer = renewer
        self.lock_type: LockType = lock_type
        self.options = options
        self.timeout_s: float = options.timeout_s
        self.alive: bool = True

    def begin(self, leases: Sequence[QuorumLease], sent_at: float) -> None:
        for lease in leases:
            self.renewer.heal_later(lease)

    def due(self, entries: Sequence[Lease], now: float) -> None:
        for lease in entries:
            assert isinstance(lease, QuorumLease)
            self.renewer.heal(lease)

    def illegal(self, lease: Lease, event: Event) -> None:
        self.renewer.leases.mark_illegal(lease, event)

    def domains(self, entries: Sequence[Lease]) -> tuple[FailureDomain]:
        return (self.renewer.leases.state,)


class VoteLease(Lease):
    """A node's lease that is a vote: with its deadline that of the quorum lease may change."""

    in_blocks = False

    __slots__ = ("_deadline",)

    @property
    def own_deadline(self) -> float:
        return self._deadline

    @own_deadline.setter
    def own_deadline(self, deadline: float) -> None:
        self._deadline: float = deadline
        if self.state <= EXTENDING:
            owner = self.owner
            assert isinstance(owner, Vote)
            owner.changed(self)


class Vote(Owner):
    """One node's vote for a quorum lease, and the owner of that node's lease. Timer's thread only.

    Attributes:
        lease: The node's latest lease, in any state; None if it has granted none.
        counts_from: When that lease begins to count, in seconds of the timer's clock.
        has_fence: Whether the node has written the fence of the quorum lease; None if it was not asked to.
        failure: Why the node could not be asked, or did not answer, the last time; None if it did.
    """

    __slots__ = ("counts_from", "failure", "has_fence", "in_flight", "lease", "node", "quorum_lease")

    def __init__(self, node: NodeEngine, quorum_lease: QuorumLease) -> None:
        super().__init__()
        self.node: NodeEngine = node
        self.quorum_lease: QuorumLease = quorum_lease
        self.lease: Lease | None = None
        self.counts_from: float = math.inf
        self.has_fence: bool | None = None
        self.in_flight: Acquire | WriteFence | None = None
        self.failure: Exception | None = None

    @property
    def ended(self) -> bool:
        """True if the holder has ended, so that its leases are not renewed any more."""
        return self.quorum_lease.owner.ended

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
            majority = self.quorum_lease.majority
            guarded(majority.leases.state, majority.vote_changed, self, loss)

    def ask(
        self, token: bytes, options: LockOptions, caller_until: float | None = None, *, by_script: bool = False
    ) -> None:
        """Ask the node for its vote, until ``caller_until`` at most, in seconds of the timer's clock.

        If it is asked ``by_script``, its reply contains the type of a key of another type.
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
            self.quorum_lease.answered()
            return
        key, lock_type, limit_s = self.quorum_lease.key, self.quorum_lease.group.lock_type, self.quorum_lease.limit_s
        lease = VoteLease(name, lease_args(key, token), engine.group(key, lock_type, options), self)
        lease.fence = self.quorum_lease.fence  # a node that votes when the lease is held draws none that is less
        self.failure = None
        self.in_flight = request = Acquire(
            engine.leases, [lease], options, self._new_future(), waiter_ttl_ms=int(by_script)
        )
        if caller_until is not None:
            request.caller_until = end_of_try(caller_until, engine.timer.now, engine.node)
        if not engine.node.connected and engine.node.last_error is None:
            limit_s = max(limit_s, engine.options.connect_timeout_s)  # whatever the lock's timeout is
        elif not engine.node.connected:
            limit_s = min(limit_s, _DOWN_S)  # it may be back; but an undecided round waits for it
        self._limit(request, limit_s)
        request.begin()

    def new_write(self, fence: int, caller_until: float | None) -> WriteFence:
        """Return the request, not yet sent, that writes the fence of the quorum lease at the node, which has granted it."""
        engine, limit_s = self.node, self.quorum_lease.limit_s
        assert self.lease is not None
        self.has_fence = False
        self.in_flight = request = WriteFence(engine.leases, self.lease, fence, self._new_future())
        if caller_until is not None:
            limit_s = min(limit_s, end_of_try(caller_until, engine.timer.now, engine.node) - engine.timer.now)
        self._limit(request, limit_s)
        return request

    def _limit(self, request: Acquire | WriteFence, limit_s: float) -> None:
        # The node is suspected after this whole time, not after a part of it, because it is short.
        request.limit_s = request.suspicion_s = min(limit_s, self.node.options.response_timeout_s)

    def _new_future(self) -> Future[bool]:
        return Future(partial(guarded, self.quorum_lease.majority.leases.state, self._answered))

    def _answered(self) -> None:
        request, self.in_flight = self.in_flight, None
        assert request is not None
        future = request.future
        self.failure = future.error
        agrees = future.error is None and future.result()
        if isinstance(request, WriteFence):
            self.has_fence = agrees
        elif agrees:
            longest_s = max(self.quorum_lease.majority.longest_s, request.lease.group.timeout_s)
            self.counts_from = self.node.history.counts_from(longest_s)
            self.lease = request.lease
            self.changed(request.lease)
        self.quorum_lease.answered()

    def give_up(self) -> None:
        """End the request under way, and release what it may be granted."""
        request, self.in_flight = self.in_flight, None
        if request is not None:
            request.future = Future(noop)
            request.give_up()

    def withdraw(self, loss: LossReason | None = None) -> None:
        """Release what the node has granted, may have granted, or may be about to grant.

        What it has granted is left to expire instead if ``loss`` is that its holder has abandoned it, as on one server.
        """
        self.give_up()
        lease, node = self.live, self.node
        if lease is not None:
            # Posted: this may be the middle of a tick in which the lease is due, too.
            end = partial(node.abandon, lease)
            node.post_if_open(end if loss is LossReason.ABANDONED else partial(node.release, lease, Future(noop)))


class QuorumLease(Lease):
    """A lease that is valid while a majority of the nodes grants it.

    Attributes:
        round: Called when a node has answered, or exceeded its time limit, as long as it is being acquired; then None.
    """

    __slots__ = ("majority", "options", "round", "votes")

    group: QuorumGroup

    def __init__(
        self,
        name: str | bytes,
        lease_args: bytes,
        group: QuorumGroup,
        owner: Owner = NO_OWNER,
        on_lost: Callable[[LostEvent], object] | None = None,
        call_site: str | None = None,
    ) -> None:
        super().__init__(name, lease_args, group, owner, on_lost, call_site)
        self.majority: Majority = group.renewer
        self.round: Callable[[], object] | None = None
        self.options: LockOptions = group.options
        self.votes: tuple[Vote, ...] = tuple(Vote(node, self) for node in self.majority.engines)

    @property
    def quorum(self) -> int:
        """How many of the votes are a majority."""
        return self.majority.quorum

    @property
    def limit_s(self) -> float:
        """How many seconds a node may take to answer: by default a tenth of the lock's timeout."""
        limit_s = self.majority.leases.state.options.node_timeout_s
        return max(self.options.timeout_s / 10, _LEAST_LIMIT_S) if limit_s is None else limit_s

    def answered(self) -> None:
        """Go on after the answer of a node, or its time limit."""
        if self.round is not None:
            self.round()
            return
        if self.fence is not None and self.state <= EXTENDING:  # for the case that other masters lose it
            self.agree_on_fence(self.majority.timer.clock.now(), None)
        self.majority.heal_later(self)  # it may be held by now, with one more vote

    def support(self, now: float) -> list[Lease]:
        """Return the votes' leases that count at ``now``. An expired one does not, though its loss may not be noted yet."""
        return [lease for counts_from, lease in self._counting() if counts_from <= now < lease.deadline]

    def _counting(self) -> list[tuple[float, Lease]]:
        """Return when each vote counts from, and its lease; as long as a fence is agreed on, of nodes that have it only."""
        agreeing = self.round is not None and self.options.fencing
        votes = [vote for vote in self.votes if vote.has_fence or not agreeing]
        return [(vote.counts_from, lease) for vote in votes if (lease := vote.live) is not None]

    def agree_on_fence(self, now: float, caller_until: float | None) -> int:
        """Have the nodes that have granted the lease write its fence, the largest one, once a majority has drawn any.

        Return the number of votes that wait for a majority.
        """
        granted = [(vote, lease, lease.fence or 0) for vote in self.votes if (lease := vote.live) is not None]
        fence = self.fence
        if fence is None:
            waiting = sum(vote.counts_from <= now < lease.deadline for vote, lease, _ in granted)
            if waiting < self.quorum:
                return waiting
            self.fence = fence = max(drawn for _, _, drawn in granted)
        writes = [
            vote.new_write(fence, caller_until)
            for vote, _, drawn in granted
            if vote.has_fence is None and drawn <= fence  # else it has a larger one, and would refuse
        ]
        for write in writes:
            write.start()
        return 0

    def majority_until(self, now: float) -> float:
        """Return until when, from ``now`` on, a majority of the votes counts without a gap; ``now`` if none does.

        A vote that begins to count before the majority of the others ends may prolong it.
        """
        votes, until, later = self._counting(), -math.inf, now
        while until < later:
            until = later
            deadlines = sorted([lease.deadline for counts_from, lease in votes if counts_from <= until], reverse=True)
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
        return EXCLUSIVE.next_token(self.token)


class Majority(SingleRouter):
    """The nodes of a quorum, where an engine of one server has its router and its renewer. Timer's thread only.

    Attributes:
        longest_s: The longest lock timeout, in seconds, of all users of these nodes, as far as known.
        engines, shards: The engines and the renewers of the nodes, added by the quorum's engine.
    """

    only_renewer: Renewer | None = None
    busy = False  # it sends nothing itself: the engines of its nodes are attached to the timer themselves

    def __init__(self, leases: LeaseTable, quorum: int) -> None:
        self.leases = leases
        self.timer: HashedWheelTimer = leases.timer
        self.shards: list[Renewer] = []
        self.engines: list[NodeEngine] = []
        self.quorum = quorum
        self.longest_s: float = leases.state.options.longest_timeout_s
        self.confirmed_at: float = -math.inf
        self.groups: Groups[QuorumGroup] = Groups()

    @property
    def nodes(self) -> list[Node]:
        """None: requests, and the end of connections, are the business of the engines of the nodes."""
        return []

    @property
    def watching(self) -> bool:
        return all(engine.router.watching for engine in self.engines)

    def note_timeout(self, time_s: float) -> None:
        """Note that a lease of ``time_s`` seconds is requested, which a node may forget by restarting."""
        self.longest_s = max(self.longest_s, time_s)

    def grant(self, lease: QuorumLease, now: float) -> None:
        """Make a lease held that a majority has granted, as its votes were counted at ``now``."""
        self.leases.granted_at = now
        self.leases.state.counters.acquired += 1
        votes = lease.support(now)
        lease.acquired_at = min(vote.acquired_at for vote in votes)
        lease.limits = votes[0].limits  # for looks whether it ends by itself: the votes are what ends
        self.leases.adopt_grant(lease, lease.acquired_at)

    def heal_later(self, lease: QuorumLease) -> None:
        """Schedule :meth:`heal` after a renewal interval if a node does not grant a held lease."""
        every_s = lease.options.renew_every_s
        if lease.state > EXTENDING or every_s is None or all(vote.live or vote.in_flight for vote in lease.votes):
            return
        if lease not in self.timer.wheel:
            self.timer.wheel.schedule(lease, self.timer.scale.ceil(self.timer.now + every_s))

    def heal(self, lease: QuorumLease) -> None:
        """Ask the nodes again that do not grant a held lease, unless its renewal has ended."""
        options = self._remaining(lease)
        if lease.state > EXTENDING or lease.owner.ended or options is None:
            return
        for vote in lease.votes:
            if vote.live or vote.in_flight:
                continue
            if vote.node.node.ready:
                vote.ask(lease.another_token(), options)
            else:
                vote.node.node.connect()
        self.heal_later(lease)

    def _remaining(self, lease: QuorumLease) -> LockOptions | None:
        """Return the options of a vote that joins late, which must not outlast the others; None if no time is left."""
        options = lease.options
        if options.max_renewals is not None:
            options = dataclasses.replace(options, max_renewals=options.max_renewals - lease.renewals)
            if options.max_renewals is not None and options.max_renewals <= 0:
                return None
        if options.max_hold_s is not None:
            left_s = lease.acquired_at + options.max_hold_s - self.timer.now
            if left_s <= options.timeout_s / 3:
                return None
            options = dataclasses.replace(options, max_hold_s=left_s)
        return options

    def vote_changed(self, vote: Vote, loss: LossReason | None) -> None:
        """End the lease if its majority has ended, else schedule :meth:`heal` if the node has ended its grant."""
        lease = vote.quorum_lease
        if lease.state > EXTENDING:
            return
        if not lease.recount(self.timer.clock.now()) or loss is LossReason.ABANDONED:
            self.leases.mark_lost([lease], loss)
        elif loss is not None:
            self.heal_later(lease)

    def untrack(self, lease: QuorumLease) -> None:
        """Ask for no more votes for a lease that ends; if it is lost, withdraw those that there are."""
        self.timer.wheel.cancel(lease)
        if lease.loss is not None:
            for vote in lease.votes:
                if lease.loss is LossReason.CONTEXT_CLOSED:
                    vote.give_up()  # what it has granted is released in bulk
                else:
                    vote.withdraw(lease.loss)

    def clean_up(self, leases: Sequence[Lease], node: Node | None = None) -> None:
        """Do nothing: the votes of a lease that has ended are withdrawn one by one."""

    def end(self, how: End, error: Exception) -> None:
        if how is End.FORKED:
            self.groups.end()
