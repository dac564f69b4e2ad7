"""The engine of a quorum: it begins and ends leases that consist of votes of several nodes.

Below it is one engine per node, on the same thread, with its own connection and renewals. So this engine neither waits for
a node nor renews: it counts votes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import TypeVar

from wheel_lock.engine.engine import ENGINES
from wheel_lock.engine.future import Future
from wheel_lock.engine.loss_events import LossReporter, log_given_up
from wheel_lock.engine.renewal.groups import Groups
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.long_waits import LongWaits
from wheel_lock.errors import ContextClosed, LockLost, LockUnavailable, LossReason, TooManyLocks, WheelLockError
from wheel_lock.lease import EXTENDING, Event, Lease, State
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.clients import AnyClient
from wheel_lock.observe.contexts import Reading
from wheel_lock.observe.health import NodeHealth
from wheel_lock.observe.stats import ContextStats, snapshot
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.quorum.acquire import QuorumWaiter
from wheel_lock.quorum.lease import QuorumGroup, QuorumLease, QuorumLeases, Vote
from wheel_lock.quorum.node import Masters, NodeEngine
from wheel_lock.quorum.tally import VoteTally
from wheel_lock.runtime.ends import REFUSALS, End
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.greenlets import start_helper_thread
from wheel_lock.runtime.timer import HashedWheelTimer

T = TypeVar("T")
_LEAST_LIMIT_S = 0.05  # longer than a pause of the garbage collector or the scheduler
_HEALTHY_REPLY_S = 0.5  # a healthy node answers sooner


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
        acquires: All acquires, from their beginning to their end.
        engines: The engines of the nodes.
        leases: The held leases; it also counts the rounds under way as leases that are being acquired.
        longest_s: As above, including the timeouts of this engine's own locks.
        quorum: How many of the nodes are a majority.
        waiters: Those of them whose first round was refused, which ``max_waiting`` counts.
    """

    keeps_groups = True  # a name always has the same nodes

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
        self.engines: list[NodeEngine] = []
        self.quorum: int = len(clients) // 2 + 1
        self.nodes_needed: int | None = self.quorum
        self.acquires: set[QuorumWaiter] = set()
        self.waiters: set[QuorumWaiter] = set()
        self.long_waits: LongWaits = LongWaits(self, self._longest)
        self.longest_s: float = longest_s
        self.losses: LossReporter = LossReporter(self, timer, self.counters, lambda: self.label)
        self.leases: QuorumLeases = QuorumLeases(self, self.losses.report)
        self._node_timeout_s = node_timeout_s
        self._groups: Groups[QuorumGroup] = Groups()
        timer.attach(self)  # before the engines of its nodes: it says why an acquire ends
        per_node = dataclasses.replace(options, max_held=None, max_waiting=None)  # counted by this engine
        masters = Masters()
        self.engines += [NodeEngine(client, per_node, timer, trusts_new, masters) for client in clients]
        ENGINES.add(self)  # after the engines of its nodes, which are closed first at the end of the interpreter

    @property
    def busy(self) -> bool:
        """False: it sends nothing itself. The engines of its nodes are attached to the timer themselves."""
        return False

    @property
    def in_use(self) -> bool:
        return bool(self.leases.held or self.acquires)

    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> QuorumGroup:
        """Return the group of leases of one timeout. From any thread.

        Raises:
            ValueError: The engine of a node does not accept these options.
        """
        self.engines[0].group(key, lock_type, options)
        timeout_s = options.timeout_s
        return self._groups.get(timeout_s) or self._groups.add(timeout_s, QuorumGroup(self, timeout_s))

    def new_wait(
        self,
        options: LockOptions,
        lease: Lease,
        key: bytes,
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> QuorumWaiter:
        assert isinstance(lease, QuorumLease)
        return QuorumWaiter(self, lease, blocking, until, future)

    def limit_s(self, timeout_s: float) -> float:
        """Return how many seconds a node may take to answer an acquire: by default a tenth of the lock's timeout."""
        return max(timeout_s / 10, _LEAST_LIMIT_S) if self._node_timeout_s is None else self._node_timeout_s

    def note_timeout(self, time_s: float) -> None:
        """Note that a lease of ``time_s`` seconds is requested, which a node may forget by restarting."""
        self.longest_s = max(self.longest_s, time_s)

    def add_waiter(self, waiter: QuorumWaiter) -> WheelLockError | None:
        """Add ``waiter``; return the error instead if ``max_waiting`` does not allow it."""
        most = self.options.max_waiting
        if waiter not in self.waiters and most is not None and len(self.waiters) >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context")
        self.waiters.add(waiter)
        self.long_waits.watch()
        return None

    def _longest(self) -> list[QuorumWaiter]:
        return sorted(self.waiters, key=attrgetter("began_at"), reverse=True)  # of one name the last one counts

    # -- a lease begins, and is kept ---------------------------------------------------------------------------------

    def grant(self, lease: QuorumLease, began_at: float) -> None:
        """Make a lease held that a majority has granted; the wait for it began at ``began_at``."""
        now = self.timer.clock.now()
        lease.acquired_at = min(vote.acquired_at for vote in lease.support(now))
        self.counters.acquire.add(now - began_at)
        lease.transition(Event.GRANTED)
        self.leases.held[lease] = None
        self.counters.acquired += 1
        self.heal_later(lease)

    def heal_later(self, lease: QuorumLease) -> None:
        """Schedule :meth:`heal` after a renewal interval if a node does not grant a held lease."""
        every_s = lease.options.renew_every_s
        if lease.state > EXTENDING or every_s is None or all(vote.alive or vote.in_flight for vote in lease.votes):
            return
        if lease not in self.timer.wheel:
            self.timer.wheel.schedule(lease, self.timer.scale.ceil(self.timer.now + every_s))

    def heal(self, lease: QuorumLease) -> None:
        """Ask the nodes again that do not grant a held lease, unless its renewal has ended."""
        options = self._remaining(lease)
        if lease.state > EXTENDING or lease.owner.ended or options is None:
            return
        for vote in lease.votes:
            if vote.alive or vote.in_flight is not None:
                continue
            if vote.node.node.ready:
                limit_s, answered = self.limit_s(options.timeout_s), partial(self.heal_later, lease)
                vote.ask(lease.another_token(), options, limit_s, answered)
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
            left_s = lease.hold_until - self.timer.now
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

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release the lease on every node that grants it; completes when a majority has released it."""
        assert isinstance(lease, QuorumLease)
        error = self.leases.check_owned(lease)
        if error is not None:
            future.set_exception(error)
            return
        self.leases.end_one(lease, Event.RELEASE)
        self.counters.held.add(self.timer.now - lease.acquired_at)
        tally = self._tally(partial(self._released, lease, future))
        for vote in lease.votes:
            released: Future[None] = tally.future(lambda answer: True)
            if vote.alive:
                assert vote.lease is not None
                vote.node.release(vote.lease, released)
                self._unless_silent(vote.node, released)
            else:
                vote.withdraw()
                reason = (vote.lease and vote.lease.loss) or LossReason.NOT_CONFIRMED
                released.set_exception(LockLost(lease.name, reason))

    def _released(self, lease: QuorumLease, future: Future[None], tally: VoteTally) -> None:
        if lease.state is not State.RELEASING:  # lost meanwhile
            future.set_exception(LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED))
        elif tally.agreed:
            self.counters.released += 1
            lease.transition(Event.RELEASED)
            future.set_result(None)
        elif tally.denied:
            reason = next(why for why in reversed(tally.no) if isinstance(why, LossReason))
            self.leases.mark_lost([lease], reason)
            future.set_exception(LockLost(lease.name, reason))
        else:
            lease.transition(Event.RELEASED)
            future.set_exception(tally.failure(lease.name))

    # -- in between --------------------------------------------------------------------------------------------------

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live on every node that grants it; completes when all healthy nodes have answered."""
        assert isinstance(lease, QuorumLease)
        error = self.leases.check_owned(lease)
        if error is not None:
            future.set_exception(error)
            return
        now = self.timer.clock.now()
        self.note_timeout(time_ms / 1000 + (0.0 if replace else lease.deadline - now))
        # All healthy nodes are awaited: a majority may include votes that joined late, and had less time left.
        tally = self._tally(partial(self._extended, lease, future), wait_for_all=True)
        self.timer.call_at(now + _HEALTHY_REPLY_S, lambda now: tally.decide_early(), self)
        for vote in lease.votes:
            extended: Future[None] = tally.future(partial(self._counts, vote))
            granted = vote.live
            if granted is not None:
                vote.node.extend(granted, time_ms, replace, extended)
                self._unless_silent(vote.node, extended)
            else:
                extended.set_exception(LockLost(lease.name, LossReason.NOT_CONFIRMED))

    def _extended(self, lease: QuorumLease, future: Future[None], tally: VoteTally) -> None:
        error: Exception | None = self.leases.check_owned(lease)
        if error is None and not tally.agreed:
            too_long = next((error for error in tally.failures if isinstance(error, ValueError)), None)
            error = too_long or tally.failure(lease.name)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _counts(self, vote: Vote, answer: object) -> bool:
        return vote.counts_from <= self.timer.clock.now()

    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], bool], future: Future[bool]) -> None:
        """Send ``call`` to every node; completes with whether a majority agrees."""
        tally = self._tally(partial(_counted, name, future))
        for engine in self.engines:
            answered = tally.future(bool)
            engine.query(name, call, read, answered)
            self._unless_silent(engine, answered)

    def owned(self, lease: Lease, future: Future[bool]) -> None:
        """Ask every node whether it still has its vote's token; completes with whether a majority has."""
        assert isinstance(lease, QuorumLease)
        tally = self._tally(partial(_counted, lease.name, future))
        lock_type = lease.params.lock_type
        for vote in lease.votes:
            answered = tally.future(bool)
            if vote.lease is None:
                answered.set_result(False)
            else:
                read = partial(lock_type.parse_owned, lease=vote.lease)
                vote.node.query(lease.name, lock_type.owned(vote.lease), read, answered)
                self._unless_silent(vote.node, answered)

    def _tally(self, decided: Callable[[VoteTally], object], *, wait_for_all: bool = False) -> VoteTally:
        return VoteTally(len(self.engines), self.quorum, partial(guarded, self, decided), wait_for_all)

    @staticmethod
    def _unless_silent(engine: NodeEngine, answer: Future[T]) -> None:
        """Fail ``answer`` at once if the node is suspected to be dead; a later reply is ignored."""
        if engine.is_silent:
            answer.set_exception(LockUnavailable(f"{engine.connector.describe()} is silent"))

    def stats(self) -> ContextStats:
        """Return a frozen snapshot: locks count once; renewals and connections are sums over all nodes."""
        nodes = [engine.stats() for engine in self.engines]
        return dataclasses.replace(
            snapshot(self.counters, held=len(self.leases.held), overdue=0, waiting=len(self.waiters)),
            renewed=sum(node.renewed for node in nodes),
            unknown=sum(node.unknown for node in nodes),
            overdue=sum(node.overdue for node in nodes),
            batches=sum(node.batches for node in nodes),
            connects=sum(node.connects for node in nodes),
            watching=all(node.watching for node in nodes),
            renewal_lag_p50_s=max(node.renewal_lag_p50_s for node in nodes),
            renewal_lag_p99_s=max(node.renewal_lag_p99_s for node in nodes),
            renewal_lag_max_s=max(node.renewal_lag_max_s for node in nodes),
            renewal_slack_min_s=min(node.renewal_slack_min_s for node in nodes),
        )

    @property
    def label(self) -> str:
        addresses = ",".join(engine.connector.describe() for engine in self.engines)
        return self.options.label or self.options.owner or addresses

    def node_health(self) -> list[NodeHealth]:
        return [node for engine in self.engines for node in engine.node_health()]

    def waits(self) -> list[tuple[str | bytes, int, float]]:
        return [(waiter.name, 1, waiter.began_at) for waiter in self.waiters.copy()]

    def overdue_leases(self) -> Collection[Lease]:
        """Return the overdue leases of all nodes, which are votes. From any thread."""
        return {lease for engine in self.engines for lease in engine.overdue_leases()}

    def connect_nodes(self) -> None:
        for engine in self.engines:
            engine.connect_nodes()

    def overdue_most(self) -> int:
        return max(engine.overdue_most() for engine in self.engines)

    def read_into(self, reading: Reading) -> None:
        super().read_into(reading)
        for engine in self.engines:
            reading.counters.merge_renewals(engine.counters)
            if not self.over:
                for node in engine.node_health():
                    reading.add_node(node, engine.counters)

    # -- the end, and failures ---------------------------------------------------------------------------------------

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        if self.closed:
            future.set_result(None)
            return
        self.closed = True
        self.losses.flush()
        self._end_acquires(None if exiting else ContextClosed("The context has been closed"))
        self.leases.mark_lost(list(self.leases.held), LossReason.CONTEXT_CLOSED)
        open_nodes = len(self.engines)

        def closed() -> None:
            nonlocal open_nodes
            open_nodes -= 1
            if not open_nodes:
                future.set_result(None)

        for engine in self.engines:
            engine.close(timeout_s, Future(closed), exiting=exiting)

    def retire(self) -> None:
        for engine in self.engines:
            engine.retire()

    def _stop(self, error: Exception) -> None:
        if not self.closed:
            self.closed: bool = True
            self._end_acquires(error)
            self.leases.end(End.CLOSED, error)

    def crashed(self, error: Exception) -> None:
        log_given_up(len(self.leases.held), error)
        self.end(End.FAILED, error)

    def end(self, how: End, error: Exception) -> None:
        """Close in the last turn of a timer that is STOPPED; else begin anew."""
        if how is End.STOPPED:
            self.timer.post(partial(self._stop, error), self)
            return
        self.deaths += 1
        if how is End.FORKED:
            self.name_tokens()
            self._groups.end()
            self.acquires.clear()
            self.waiters.clear()
            self.counters.reset()
        guarded(None, self.leases.end, how, error)
        if how in REFUSALS:
            self._end_acquires(LockUnavailable(REFUSALS[how]))

    def _end_acquires(self, error: Exception | None) -> None:
        for waiter in tuple(self.acquires):
            if error is None:
                waiter.end()
            else:
                waiter.fail(type(error)(str(error)))  # a copy each: a traceback belongs to one caller


def _counted(name: str | bytes, future: Future[bool], tally: VoteTally) -> None:
    """Complete ``future`` with whether a majority agrees, or with an error if too few nodes answered."""
    if tally.agreed or tally.denied:
        future.set_result(tally.agreed)
    else:
        future.set_exception(tally.failure(name))
