"""The engine of a quorum: the beginning and the end of leases that consist of votes of several nodes.

Below it is one engine per node, on the same thread, with its own connection and renewals. So this engine neither waits for
a node nor renews: it counts votes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from wheel_lock.engine.engine import ENGINES
from wheel_lock.engine.future import Future
from wheel_lock.engine.loss_events import LossReporter, log_given_up, log_illegal
from wheel_lock.engine.state import EngineState
from wheel_lock.errors import (
    ContextClosed,
    LockLost,
    LockNotHeld,
    LockUnavailable,
    LossReason,
    TooManyLocks,
    WheelLockError,
)
from wheel_lock.lease import EXTENDING, Event, Lease, State, held_lock
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.clients import AnyClient
from wheel_lock.observe import HeldLock
from wheel_lock.observe.stats import ContextStats, snapshot
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.quorum.acquire import QuorumWaiter
from wheel_lock.quorum.lease import QuorumGroup, QuorumLease, Vote, node_limit_s
from wheel_lock.quorum.node import NodeEngine
from wheel_lock.quorum.tally import VoteTally
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.greenlets import start_helper_thread
from wheel_lock.runtime.timer import HashedWheelTimer

_WELL_S = 0.5  # a healthy node answers sooner


class QuorumEngine(EngineState):
    """Acquires, keeps and releases by a majority of nodes. Its leases are :class:`QuorumLease`.

    Args:
        clients: A client for each node.
        options: The context's settings.
        timer: The timer on whose thread the engines run.
        node_timeout_s: Seconds that a node may take to answer an acquire; None for a tenth of the lock's timeout.
        longest_s: The longest lock timeout, in seconds, of all users of these nodes, as far as known.
        trusts_new: Whether a node that is seen for the first time counts at once, whatever its uptime.

    Attributes:
        acquiring: The number of elections under way, which ``max_held`` counts, too.
        contests: The waits that are between two elections.
        engines: The engines of the nodes.
        longest_s: As above, including the timeouts of this engine's own locks.
        quorum: How many of them are a majority.
    """

    stable = True  # a name has the same nodes for ever

    def __init__(
        self,
        clients: Sequence[AnyClient],
        options: ContextOptions,
        timer: HashedWheelTimer,
        node_timeout_s: float | None,
        longest_s: float,
        trusts_new: bool,
    ) -> None:
        super().__init__(options, timer, start_helper_thread)
        per_node = dataclasses.replace(options, max_held=None, max_waiting=None)  # counted by this engine
        self.engines = [NodeEngine(client, per_node, timer, trusts_new) for client in clients]
        self.quorum = len(self.engines) // 2 + 1
        self.contests: set[QuorumWaiter] = set()
        self.longest_s = longest_s
        self.report_lost = LossReporter(timer).report
        self.held: dict[Lease, None] = {}
        self.acquiring = 0
        self._node_timeout_s = node_timeout_s
        self._groups: dict[float, QuorumGroup] = {}
        timer.attach(self)
        ENGINES.add(self)  # after the engines of its nodes, which are closed first at the end of the interpreter

    @property
    def busy(self) -> bool:
        """False: it sends nothing itself. The engines of its nodes are members of the loop on their own account."""
        return False

    def describe(self) -> str:
        """Return the addresses of the nodes, without credentials."""
        return ", ".join(engine.connector.describe() for engine in self.engines)

    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> QuorumGroup:
        """Return what leases of one timeout share. From any thread.

        Raises:
            ValueError: The engine of a node would refuse these terms.
        """
        self.engines[0].group(key, lock_type, options)
        timeout_s = options.timeout_s
        return self._groups.get(timeout_s) or self._groups.setdefault(timeout_s, QuorumGroup(self, timeout_s))

    def new_wait(
        self,
        options: LockOptions,
        leases: Sequence[Lease],
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> QuorumWaiter:
        """Return a caller's wait for a lock, ready to begin; see :meth:`LockEngine.new_wait`. From any thread."""
        (lease,) = leases
        assert isinstance(lease, QuorumLease)
        return QuorumWaiter(self, lease, blocking, until, future)

    def limit_s(self, timeout_s: float) -> float:
        """Return how many seconds a node may take to answer an acquire of a lease of ``timeout_s`` seconds."""
        return node_limit_s(self._node_timeout_s, timeout_s)

    def asks_for(self, time_s: float) -> None:
        """Note that a lease of ``time_s`` seconds is requested, which a node may forget by restarting."""
        self.longest_s = max(self.longest_s, time_s)

    def refusal(self, name: str | bytes | None, wanted: int) -> WheelLockError | None:
        """Return why ``wanted`` more locks may not be acquired, or None if they may."""
        if self.closed:
            return ContextClosed("The context has been closed", name)
        most = self.options.max_held
        if most is not None and len(self.held) + self.acquiring + wanted > most:
            return TooManyLocks(f"{len(self.held)} locks are held already, the limit of this context is {most}", name)
        return None

    def may_wait(self, contest: QuorumWaiter) -> WheelLockError | None:
        """Add ``contest`` to the waits; return the error instead if ``max_waiting`` does not allow it."""
        most = self.options.max_waiting
        if contest not in self.contests and most is not None and len(self.contests) >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context")
        self.contests.add(contest)
        return None

    # -- a lease begins, and is kept ---------------------------------------------------------------------------------

    def begin(self, lease: QuorumLease) -> None:
        """Make a lease held that a majority has granted."""
        lease.acquired_at = min(vote.acquired_at for vote in lease.support(self.timer.clock.now()))
        lease.transition(Event.GRANTED)
        self.held[lease] = None
        self.counters.acquired += 1
        self.complete(lease)

    def complete(self, lease: QuorumLease) -> None:
        """Schedule :meth:`heal` after a renewal interval if a node does not grant a held lease."""
        every_s = lease.options.renew_every_s
        if lease.state > EXTENDING or every_s is None or all(vote.alive or vote.in_flight for vote in lease.votes):
            return
        if lease not in self.timer.wheel:
            self.timer.wheel.schedule(lease, self.timer.scale.ceil(self.timer.now + every_s))

    def heal(self, lease: QuorumLease) -> None:
        """Ask the nodes again that do not grant a held lease, unless it is not to be renewed any more."""
        params = self._left(lease)
        if lease.state > EXTENDING or lease.owner.ended or params is None:
            return
        for vote in lease.votes:
            if vote.alive or vote.in_flight is not None:
                continue
            if vote.node.node.ready:
                vote.ask(lease.another_token(), params, self.limit_s(params.timeout_s), partial(self.complete, lease))
            else:
                vote.node.node.connect()
        self.complete(lease)

    def _left(self, lease: QuorumLease) -> LockOptions | None:
        """Return the terms of a vote that joins late, which must not outlast the others; None if no time is left."""
        options = lease.options
        if options.max_renewals is not None:
            options = dataclasses.replace(options, max_renewals=options.max_renewals - lease.renewals)
            if options.max_renewals is not None and options.max_renewals <= 0:
                return None
        if options.max_hold_s is not None:
            left_s = lease.hold_until - self.timer.now
            if left_s <= options.timeout_s / 3:
                return None
            options = dataclasses.replace(options, max_hold_s=left_s)
        return options

    def vote_lost(self, vote: Vote, reason: LossReason) -> None:
        """End the lease if no majority is left, else schedule :meth:`heal`: a node has ended its grant."""
        lease = vote.whole
        if lease.state <= EXTENDING:
            if lease.is_valid(self.timer.clock.now()) and reason is not LossReason.ABANDONED:
                self.complete(lease)
            else:
                self.lose([lease], reason)

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def lose(self, leases: Iterable[Lease], reason: LossReason | None = None) -> None:
        for lease in leases:
            assert isinstance(lease, QuorumLease)
            if not lease.group.alive or (lease.state > EXTENDING and lease.state is not State.RELEASING):
                continue
            lease.loss = why = lease.loss or reason or lease.lapse_reason()
            self._take_out(lease, Event.LOSE)
            self.counters.lost[why] += 1
            for vote in lease.votes:
                if vote.in_flight is not None or why is not LossReason.CONTEXT_CLOSED:  # else released in bulk
                    vote.withdraw()
            self.report_lost([lease])
            if not self.exiting:
                lease.owner.lost(lease)

    def _take_out(self, lease: QuorumLease, event: Event) -> None:
        lease.deadline = lease.latest_deadline()
        lease.transition(event)
        self.held.pop(lease, None)
        if lease in self.timer.wheel:
            self.timer.wheel.cancel(lease)

    def not_ours(self, lease: Lease) -> WheelLockError | None:
        """Return why the holder cannot do anything with ``lease``, or None where it can. A lapsed lease is marked lost."""
        if not lease.group.alive:
            return LockLost(lease.name, lease.loss or LossReason.FORKED)
        if lease.state <= EXTENDING and not lease.is_valid(self.timer.clock.now()):
            self.lose([lease])
        if lease.state is State.LOST or lease.loss is not None:
            return LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED)
        if lease.state > EXTENDING:
            return LockNotHeld("Cannot release or extend a lock that is not held", lease.name)
        return None

    def abandon(self, lease: Lease) -> None:
        """Stop asking for a lease whose lock object is gone, unless it is being released."""
        if lease.state <= EXTENDING:
            self.lose([lease], LossReason.ABANDONED)

    def lapse_seen(self, lease: Lease) -> None:
        """Mark a lease lost whose holder has seen its deadline pass."""
        self.lose([lease] if lease.state <= EXTENDING else ())

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release the lease on every node that grants it; completes when a majority has released it."""
        assert isinstance(lease, QuorumLease)
        error = self.not_ours(lease)
        if error is not None:
            future.set_exception(error)
            return
        self._take_out(lease, Event.RELEASE)
        gathering = self._gathering(partial(self._released, lease, future))
        for vote in lease.votes:
            released = gathering.future()
            if vote.alive:
                assert vote.lease is not None
                vote.node.release(vote.lease, released)
                self._unless_silent(vote.node, released)
            else:
                vote.withdraw()
                released.set_exception(
                    LockLost(lease.name, (vote.lease and vote.lease.loss) or LossReason.NOT_CONFIRMED)
                )

    def _released(self, lease: QuorumLease, future: Future[None], gathering: VoteTally) -> None:
        if lease.state is not State.RELEASING:  # lost meanwhile
            future.set_exception(LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED))
        elif gathering.agreed:
            self.counters.released += 1
            lease.transition(Event.RELEASED)
            future.set_result(None)
        elif gathering.denied:
            reason = next(why for why in reversed(gathering.no) if isinstance(why, LossReason))
            self.lose([lease], reason)
            future.set_exception(LockLost(lease.name, reason))
        else:
            lease.transition(Event.RELEASED)
            future.set_exception(gathering.failure(lease.name))

    # -- in between --------------------------------------------------------------------------------------------------

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live on every node that grants it; completes when all healthy nodes have answered."""
        assert isinstance(lease, QuorumLease)
        error = self.not_ours(lease)
        if error is not None:
            future.set_exception(error)
            return
        now = self.timer.clock.now()
        self.asks_for(time_ms / 1000 + (0.0 if replace else lease.deadline - now))
        # All healthy nodes are awaited: a majority may include votes that joined late, and had less time left.
        gathering = VoteTally(len(self.engines), self.quorum, partial(self._extended, lease, future), patient=True)
        self.timer.call_at(now + _WELL_S, lambda now: gathering.hurry(), self)
        for vote in lease.votes:
            extended = gathering.future()
            counted = vote.counted(now)
            if counted is not None:
                vote.node.extend(counted, time_ms, replace, extended)
                self._unless_silent(vote.node, extended)
            else:
                extended.set_exception(LockLost(lease.name, LossReason.NOT_CONFIRMED))

    def _extended(self, lease: QuorumLease, future: Future[None], gathering: VoteTally) -> None:
        too_long = next((error for error in gathering.failures if isinstance(error, ValueError)), None)
        if gathering.agreed and lease.is_valid(self.timer.clock.now()):
            future.set_result(None)
        elif too_long is not None and lease.is_valid(self.timer.clock.now()):
            future.set_exception(too_long)
        elif lease.loss is not None or not gathering.failures:
            future.set_exception(LockLost(lease.name, lease.loss or lease.lapse_reason()))
        else:
            future.set_exception(gathering.failure(lease.name))

    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], Any], future: Future[Any]) -> None:
        """Send ``call`` to every node; completes with whether a majority agrees."""
        gathering = self._gathering(partial(_counted, name, future))
        for engine in self.engines:
            answered = gathering.future(bool)
            engine.query(name, call, read, answered)
            self._unless_silent(engine, answered)

    def owned(self, lease: QuorumLease, future: Future[Any]) -> None:
        """Ask every node whether it still has its vote's token; completes with whether a majority has."""
        gathering = self._gathering(partial(_counted, lease.name, future))
        lock_type = lease.params.lock_type
        for vote in lease.votes:
            answered = gathering.future(bool)
            if vote.lease is None:
                answered.set_result(False)
            else:
                read = partial(lock_type.parse_owned, lease=vote.lease)
                vote.node.query(lease.name, lock_type.owned(vote.lease), read, answered)
                self._unless_silent(vote.node, answered)

    def _gathering(self, decided: Callable[[VoteTally], object]) -> VoteTally:
        return VoteTally(len(self.engines), self.quorum, partial(guarded, self, decided))

    @staticmethod
    def _unless_silent(engine: NodeEngine, answer: Future[Any]) -> None:
        """Fail ``answer`` at once if the node is suspected to be dead; a later reply is ignored."""
        if engine.is_silent:
            answer.set_exception(LockUnavailable(f"{engine.connector.describe()} is silent"))

    def stats(self) -> ContextStats:
        """Return a frozen snapshot: locks count once; renewals and connections are sums over all nodes."""
        nodes = [engine.stats() for engine in self.engines]
        return dataclasses.replace(
            snapshot(self.counters, held=len(self.held), overdue=0, waiting=len(self.contests)),
            renewed=sum(node.renewed for node in nodes),
            unknown=sum(node.unknown for node in nodes),
            overdue=sum(node.overdue for node in nodes),
            batches=sum(node.batches for node in nodes),
            connects=sum(node.connects for node in nodes),
            renewal_lag_p50_s=max(node.renewal_lag_p50_s for node in nodes),
            renewal_lag_p99_s=max(node.renewal_lag_p99_s for node in nodes),
            renewal_lag_max_s=max(node.renewal_lag_max_s for node in nodes),
            renewal_slack_min_s=min(node.renewal_slack_min_s for node in nodes),
        )

    def held_locks(self) -> list[HeldLock]:
        """Return what is held now, in order of acquisition. From any thread. O(n)."""
        now = self.timer.clock.now()
        return [held_lock(lease, now, False) for lease in self.held.copy() if lease.is_valid(now)]

    # -- the end, and other fates ------------------------------------------------------------------------------------

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        if self.closed:
            future.set_result(None)
            return
        self.closed = True
        self._end_contests(None if exiting else ContextClosed("The context has been closed"))
        self.lose(list(self.held), LossReason.CONTEXT_CLOSED)
        open_nodes = len(self.engines)

        def closed() -> None:
            nonlocal open_nodes
            open_nodes -= 1
            if not open_nodes:
                future.set_result(None)

        for engine in self.engines:
            engine.close(timeout_s, Future(closed), exiting=exiting)

    def end(self, timeout_s: float, future: Future[None]) -> None:
        """Close because the interpreter exits, unless that would change nothing."""
        if self.held or self.acquiring or self.contests:
            self.close(timeout_s, future, exiting=True)
        else:
            future.set_result(None)

    def retire(self) -> None:
        for engine in self.engines:
            engine.retire()

    def timer_stopped(self) -> None:
        self.timer.post(self._stop, self)

    def _stop(self) -> None:
        if not self.closed:
            self.closed = True
            self._end_contests(ContextClosed("The timer has been stopped"))
            self.lose(list(self.held), LossReason.CONTEXT_CLOSED)

    def illegal(self, lease: Lease, event: Event) -> None:
        log_illegal(lease, event)
        self.lose([lease], LossReason.INTERNAL_ERROR)

    def crashed(self, error: Exception) -> None:
        log_given_up(len(self.held), error)
        self._begin_anew(LossReason.INTERNAL_ERROR, "The engine that keeps the locks has failed")

    def thread_died(self) -> None:
        self._begin_anew(LossReason.THREAD_DIED, "The thread that keeps the locks ended before it answered")

    def _begin_anew(self, reason: LossReason, message: str) -> None:
        self.deaths += 1
        self.lose(list(self.held), reason)
        self._end_contests(LockUnavailable(message))
        self.held.clear()
        self.acquiring = 0

    def _end_contests(self, error: WheelLockError | None) -> None:
        for contest in tuple(self.contests):
            if error is None:
                contest.drop_all()
            else:
                contest.fail(type(error)(str(error)))  # a copy each: a traceback belongs to one caller

    def after_fork_in_child(self) -> None:
        self.deaths += 1
        groups, self._groups = self._groups, {}
        for group in groups.values():
            group.alive = False
        self.held.clear()
        self.contests.clear()
        self.acquiring = 0
        self.counters.reset()


def _counted(name: str | bytes, future: Future[Any], gathering: VoteTally) -> None:
    """Complete ``operation`` with the outcome of a vote, or with an error if too few nodes answered."""
    if gathering.agreed or gathering.denied:
        future.set_result(gathering.agreed)
    else:
        future.set_exception(gathering.failure(name))
