"""The engine of a quorum, as its callers see it: where a lease of several nodes begins and ends.

Below it is an engine for each node, on the same thread, each with a connection and renewals of its own. So nothing here
waits for one node, and nothing here renews: this only counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from wheel_lock.engine.engine import ENGINES, Engine
from wheel_lock.engine.future import Future
from wheel_lock.engine.loss_events import Teller, log_given_up, log_illegal
from wheel_lock.errors import ContextClosed, LockLost, LockUnavailable, LossReason, TooManyLocks, WheelLockError
from wheel_lock.lease import EXTENDING, Event, Lease, State
from wheel_lock.net.clients import AnyClient
from wheel_lock.net.node import Node
from wheel_lock.observe.stats import ContextStats, Counters, snapshot
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.quorum.acquire import QuorumWaiter
from wheel_lock.quorum.lease import QuorumGroup, QuorumLease, Vote, node_limit_s
from wheel_lock.quorum.node import NodeEngine
from wheel_lock.quorum.tally import VoteTally
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.timer import HashedWheelTimer

_WELL_S = 0.5  # a node that is well answers sooner


class QuorumEngine(Engine):
    """Acquires, keeps and releases by a majority of nodes. Its leases are :class:`QuorumLease`.

    Args:
        clients: A client for each node.
        options: The context's settings.
        timer: Whose thread it lives on, and the engines of the nodes with it.
        node_timeout_s: How long one node may take to answer an acquire; None for a tenth of the lock's timeout.
        longest_s: The longest timeout that anybody uses who shares these nodes, as far as is known beforehand.
        trusts_new: Whether a node that is seen for the first time counts at once, however young it is.

    Attributes:
        engines: Those of the nodes.
        quorum: How many of them are a majority.
        contests: Who waits for a lock, between two tries.
    """

    def __init__(
        self,
        clients: Sequence[AnyClient],
        options: ContextOptions,
        timer: HashedWheelTimer,
        node_timeout_s: float | None,
        longest_s: float,
        trusts_new: bool,
    ) -> None:
        # Not through super(), which makes the engine of one node: here there are several, and none of one's own.
        per_node = dataclasses.replace(options, max_held=None, max_waiting=None)  # which are counted here
        self.engines = [NodeEngine(client, per_node, timer, trusts_new) for client in clients]
        self.quorum = len(self.engines) // 2 + 1
        self.contests: set[QuorumWaiter] = set()
        self.longest_s = longest_s
        self.options = options
        self.timer = timer
        self.tell_lost = Teller(timer).tell
        self.counters = Counters()
        self.held: dict[Lease, None] = {}
        self.acquiring = 0
        self.deaths = 0
        self.closed = False
        self.renewers = []
        self.cluster = None
        self._node_timeout_s = node_timeout_s
        self._groups: dict[float, QuorumGroup] = {}
        timer.attach(self)
        ENGINES.add(self)  # behind the engines of its nodes, which the end of the interpreter closes first

    @property
    def in_use(self) -> bool:
        return bool(self.held or self.acquiring or self.contests)

    @property
    def busy(self) -> bool:
        """Whether it waits for something: never, but the engines of its nodes may."""
        return False

    def describe(self) -> str:
        """Return where it connects to, without credentials."""
        return ", ".join(engine.connector.describe() for engine in self.engines)

    def quorum_group(self, timeout_s: float) -> QuorumGroup:
        """Return what leases of one timeout have in common. From any thread."""
        return self._groups.get(timeout_s) or self._groups.setdefault(timeout_s, QuorumGroup(self, timeout_s))

    def limit_s(self, timeout_s: float) -> float:
        """How long one node may take to answer an acquire of so long a lease, in seconds."""
        return node_limit_s(self._node_timeout_s, timeout_s)

    def asks_for(self, time_s: float) -> None:
        """Somebody asks for a lease of so many seconds, which a node may forget if it restarts."""
        self.longest_s = max(self.longest_s, time_s)

    def may_wait(self, contest: QuorumWaiter) -> WheelLockError | None:
        """Let one more wait, or return why not."""
        most = self.options.max_waiting
        if contest not in self.contests and most is not None and len(self.contests) >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context")
        self.contests.add(contest)
        return None

    # -- a lease begins, and is kept ---------------------------------------------------------------------------------

    def begin(self, lease: QuorumLease) -> None:
        """A majority has granted it."""
        lease.acquired_at = min(vote.acquired_at for vote in lease.support(self.timer.clock.now()))
        lease.transition(Event.GRANTED)
        self.held[lease] = None
        self.counters.acquired += 1
        self.complete(lease)

    def complete(self, lease: QuorumLease) -> None:
        """Have the nodes asked again, after a while, that do not grant a held lease."""
        every_s = lease.options.renew_every_s
        if lease.state > EXTENDING or every_s is None or all(vote.alive or vote.in_flight for vote in lease.votes):
            return
        if lease not in self.timer.wheel:
            self.timer.wheel.schedule(lease, self.timer.scale.ceil(self.timer.now + every_s))

    def heal(self, lease: QuorumLease) -> None:
        """Ask those nodes again that do not grant a held lease, as long as there is use in it."""
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
        """The terms of a vote that joins late, which must not outlast the others; None where no time is left."""
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
        """A node grants it no more."""
        lease = vote.whole
        if lease.state <= EXTENDING:
            if lease.is_valid(self.timer.clock.now()) and reason is not LossReason.ABANDONED:
                self.complete(lease)
            else:
                self.mark_lost([lease], reason)

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def mark_lost(self, leases: Iterable[Lease], reason: LossReason | None = None) -> None:
        for lease in leases:
            assert isinstance(lease, QuorumLease)
            if not lease.group.alive or (lease.state > EXTENDING and lease.state is not State.RELEASING):
                continue
            lease.loss = why = lease.loss or reason or lease.lapse_reason()
            self._take_out(lease, Event.LOSE)
            self.counters.lost[why] += 1
            for vote in lease.votes:
                if vote.in_flight is not None or why is not LossReason.CONTEXT_CLOSED:  # else they end in bulk
                    vote.withdraw()
            self.tell_lost([lease])
            if not self.exiting:
                lease.owner.lost(lease)

    def _take_out(self, lease: QuorumLease, event: Event) -> None:
        lease.deadline = lease.latest_deadline()
        lease.transition(event)
        self.held.pop(lease, None)
        if lease in self.timer.wheel:
            self.timer.wheel.cancel(lease)

    def clean_up(self, leases: Iterable[Lease], node: Node | None = None) -> None:
        """Nothing: what is left of a lease has been withdrawn from each node when it ended."""

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release it on every node that grants it; completes when a majority has done so."""
        assert isinstance(lease, QuorumLease)
        error = self.check_owned(lease)
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
            self.mark_lost([lease], reason)
            future.set_exception(LockLost(lease.name, reason))
        else:
            lease.transition(Event.RELEASED)
            future.set_exception(gathering.failure(lease.name))

    # -- in between --------------------------------------------------------------------------------------------------

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live on every node that grants it; completes when those that are well have."""
        assert isinstance(lease, QuorumLease)
        error = self.check_owned(lease)
        if error is not None:
            future.set_exception(error)
            return
        now = self.timer.clock.now()
        self.asks_for(time_ms / 1000 + (0.0 if replace else lease.deadline - now))
        # All that are well are waited for: a majority may consist of votes that joined late and were shorter before.
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
        """Ask every node something; completes with whether a majority says yes."""
        gathering = self._gathering(partial(_counted, name, future))
        for engine in self.engines:
            answered = gathering.future(bool)
            engine.query(name, call, read, answered)
            self._unless_silent(engine, answered)

    def owned(self, lease: QuorumLease, future: Future[Any]) -> None:
        """Ask every node whether it has what it granted; completes with whether a majority has."""
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
        """Do not wait for a node that has been silent for long; should it answer after all, that is ignored."""
        if engine.is_silent:
            answer.set_exception(LockUnavailable(f"{engine.connector.describe()} is silent"))

    def stats(self) -> ContextStats:
        """Return a frozen snapshot: locks are counted once, renewals and connections as the sum of all nodes."""
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

    # -- the end, and other fates ------------------------------------------------------------------------------------

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        if self.closed:
            future.set_result(None)
            return
        self.closed = True
        self._end_contests(None if exiting else ContextClosed("The context has been closed"))
        self.mark_lost(list(self.held), LossReason.CONTEXT_CLOSED)
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

    def timer_stopped(self) -> None:
        self.timer.post(self._stop, self)

    def _stop(self) -> None:
        if not self.closed:
            self.closed = True
            self._end_contests(ContextClosed("The timer has been stopped"))
            self.mark_lost(list(self.held), LossReason.CONTEXT_CLOSED)

    def illegal(self, lease: Lease, event: Event) -> None:
        log_illegal(lease, event)
        self.mark_lost([lease], LossReason.INTERNAL_ERROR)

    def crashed(self, error: Exception) -> None:
        log_given_up(len(self.held), error)
        self._begin_anew(LossReason.INTERNAL_ERROR, "The engine that keeps the locks has failed")

    def thread_died(self) -> None:
        self._begin_anew(LossReason.THREAD_DIED, "The thread that keeps the locks ended before it answered")

    def _begin_anew(self, reason: LossReason, message: str) -> None:
        self.deaths += 1
        self.mark_lost(list(self.held), reason)
        self._end_contests(LockUnavailable(message))
        self.held.clear()
        self.acquiring = 0

    def _end_contests(self, error: WheelLockError | None) -> None:
        for contest in tuple(self.contests):
            if error is None:
                contest.drop_all()
            else:
                contest.fail(type(error)(str(error)))  # a traceback belongs to one

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
    """Tell a caller how the nodes have voted."""
    if gathering.agreed or gathering.denied:
        future.set_result(gathering.agreed)
    else:
        future.set_exception(gathering.failure(name))
