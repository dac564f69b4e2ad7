"""The engine of a quorum: it begins and ends leases that consist of votes of several nodes.

Below it is one engine per node, on the same thread, with its own connection and renewals. So this engine neither waits for
a node nor renews: it counts votes. It is an engine like that of one server, with the same table of leases, the same ends
and the same waiters, but its router is a :class:`Majority`, and what it requests it requests of all nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.future import Future
from wheel_lock.errors import LockLost, LockUnavailable, LossReason, WheelLockError
from wheel_lock.lease import Lease, State
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.clients import AnyClient
from wheel_lock.observe.stats import ContextStats, Counters
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.quorum.acquire import QuorumWaiter, QuorumWaits, caused_by
from wheel_lock.quorum.lease import Majority, QuorumGroup, QuorumLease, Vote
from wheel_lock.quorum.node import Masters, NodeEngine
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.greenlets import start_helper_thread
from wheel_lock.runtime.timer import HashedWheelTimer

T = TypeVar("T")

_HEALTHY_REPLY_S = 0.5  # a healthy node answers sooner


class VoteTally:
    """Answers of nodes, counted until a majority is certain. Timer's thread only.

    Args:
        decided: Called once, with this object, when the outcome is certain.
        wait_for_all: Whether to wait for all answers although the outcome is certain, until :meth:`decide_early`.

    Attributes:
        yes: The number of nodes that agree.
        no: The answers of the nodes that do not.
        failures: The errors of the nodes that could not be asked, or did not answer.
    """

    def __init__(self, nodes: int, quorum: int, decided: Callable[[VoteTally], object], wait_for_all: bool) -> None:
        self._nodes = nodes
        self._quorum = quorum
        self._decided = decided
        self._wait_for_all = wait_for_all
        self._over = False
        self.yes = 0
        self.no: list[object] = []
        self.failures: list[Exception] = []

    def ask(self, node: NodeEngine, send: Callable[[Future[T]], object], agrees: Callable[[T], object] = bool) -> None:
        """Call ``send(future)``, which asks ``node``; ``agrees`` returns whether its answer is a yes.

        A node that is suspected to be dead has failed at once: a later reply is ignored.
        """

        def answered() -> None:
            if isinstance(future.error, LockLost):
                self.no.append(future.error.reason)
            elif future.error is not None:
                self.failures.append(future.error)
            elif agrees(future.result()):
                self.yes += 1
            else:
                self.no.append(future.result())
            self._check()

        future: Future[T] = Future(answered)
        send(future)
        if node.is_silent:
            future.set_exception(LockUnavailable(f"{node.connector.describe()} is silent"))

    def deny(self, answer: object) -> None:
        """Count the ``answer`` of a node that need not be asked, which is a no."""
        self.no.append(answer)
        self._check()

    @property
    def agreed(self) -> bool:
        """True if a majority agrees."""
        return self.yes >= self._quorum

    @property
    def denied(self) -> bool:
        """True if so many nodes do not agree that there can be no majority."""
        return len(self.no) > self._nodes - self._quorum

    def decide_early(self) -> None:
        """Decide as soon as the outcome is certain, from now on."""
        self._wait_for_all = False
        self._check()

    def _check(self) -> None:
        certain = (self.agreed or self.denied) and not self._wait_for_all
        if not self._over and (certain or self.yes + len(self.no) + len(self.failures) == self._nodes):
            self._over = True
            self._decided(self)

    def failure(self, name: str | bytes | None) -> WheelLockError:
        """Return the error to raise if too few nodes answered, or agree."""
        if not self.failures:
            return WheelLockError(f"Only {self.yes} of {self._nodes} nodes agree, and it takes {self._quorum}", name)
        first = self.failures[0]
        error_type = type(first) if isinstance(first, WheelLockError) else WheelLockError
        text = f"Only {self._nodes - len(self.failures)} of {self._nodes} nodes answered: {first}"
        return caused_by(first, error_type(text, name))


class QuorumEngine(Engine):
    """Acquires, keeps and releases by a majority of nodes. Its leases are :class:`QuorumLease`.

    Attributes:
        engines: The engines of the nodes.
        quorum: How many of the nodes are a majority.
    """

    router: Majority

    def __init__(self, clients: Sequence[AnyClient], options: ContextOptions, timer: HashedWheelTimer) -> None:
        self.quorum: int = len(clients) // 2 + 1
        self.nodes_needed: int | None = self.quorum
        # Before the engines of its nodes are made: when the timer stops, it says why an acquire ends.
        own = dataclasses.replace(options, release_on_crash=False)  # the engines of its nodes send all there is
        self._compose(own, timer, start_helper_thread, partial(Majority, quorum=self.quorum))
        per_node = dataclasses.replace(options, max_held=None, max_waiting=None)  # counted by this engine
        masters = Masters()
        self.engines: list[NodeEngine] = self.router.engines
        self.engines += [NodeEngine(client, per_node, timer, masters) for client in clients]
        self.router.shards += [engine.router.renewer for engine in self.engines]

    def _new_wait_queues(self) -> QuorumWaits:
        return QuorumWaits(self.leases)

    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> QuorumGroup:
        """Return the group of the leases with these options. From any thread.

        Raises:
            ValueError: The engine of a node does not accept these options.
        """
        self.engines[0].group(key, lock_type, options)
        groups = self.router.groups
        return groups.get(options) or groups.add(options, QuorumGroup(self.router, lock_type, options))

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
        assert isinstance(self.wait_queues, QuorumWaits)
        return QuorumWaiter(self.wait_queues, lease, self.release, blocking, until, future)

    # -- the verbs: each asks every node, and counts -----------------------------------------------------------------

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release the lease on every node that grants it; completes when a majority has released it."""
        assert isinstance(lease, QuorumLease)
        error = self.leases.begin_release(lease)
        if error is not None:
            future.set_exception(error)
            return
        tally = self._tally(partial(self._released, lease, future))
        for vote in lease.votes:
            vote.give_up()
            if (granted := vote.live) is not None:
                tally.ask(vote.node, partial(vote.node.release, granted), lambda answer: True)
            else:
                tally.deny((vote.lease and vote.lease.loss) or LossReason.NOT_CONFIRMED)

    def _released(self, lease: QuorumLease, future: Future[None], tally: VoteTally) -> None:
        if lease.state is not State.RELEASING:  # lost meanwhile
            future.set_exception(lease.lost_error())
        elif tally.agreed:
            self.leases.release_done([lease])
            future.set_result(None)
        elif tally.denied:
            reason = next(why for why in reversed(tally.no) if isinstance(why, LossReason))
            self.leases.mark_lost([lease], reason)
            future.set_exception(LockLost(lease.name, reason))
        else:
            self.leases.release_unknown([lease])
            future.set_exception(tally.failure(lease.name))

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live on every node that grants it; completes when all healthy nodes have answered."""
        assert isinstance(lease, QuorumLease)
        error = self.leases.check_owned(lease)
        if error is not None:
            future.set_exception(error)
            return
        now = self.timer.clock.now()
        self.router.note_timeout(time_ms / 1000 + (0.0 if replace else lease.deadline - now))
        # All healthy nodes are awaited: a majority may include votes that joined late, and had less time left.
        tally = self._tally(partial(self._extended, lease, future), wait_for_all=True)
        self.timer.call_at(now + _HEALTHY_REPLY_S, lambda now: tally.decide_early(), self)
        for vote in lease.votes:
            if (granted := vote.live) is not None:
                tally.ask(vote.node, partial(vote.node.extend, granted, time_ms, replace), partial(self._counts, vote))
            else:
                tally.deny(LossReason.NOT_CONFIRMED)

    def _extended(self, lease: QuorumLease, future: Future[None], tally: VoteTally) -> None:
        error: Exception | None = self.leases.check_owned(lease)
        if error is None and not tally.agreed:
            # The nodes' engines refuse what is too long, or being extended already: that says nothing about the nodes. Not
            # isinstance(): all errors of locks are ValueErrors, as redis-py's are.
            refused = next((error for error in tally.failures if type(error) in (ValueError, WheelLockError)), None)
            error = refused or tally.failure(lease.name)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def _counts(self, vote: Vote, answer: object) -> bool:
        return vote.counts_from <= self.timer.clock.now()

    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], Any], future: Future[Any]) -> None:
        """Send ``call`` to every node; completes with whether a majority agrees."""
        tally = self._tally(partial(_counted, name, future))
        for engine in self.engines:
            tally.ask(engine, partial(engine.query, name, call, read))

    def owned(self, lease: Lease, future: Future[bool]) -> None:
        """Ask every node whether it still has its vote's token; completes with whether a majority has."""
        assert isinstance(lease, QuorumLease)
        tally = self._tally(partial(_counted, lease.name, future))
        for vote in lease.votes:
            if vote.lease is not None:
                tally.ask(vote.node, partial(vote.node.owned, vote.lease))
            else:
                tally.deny(False)

    def _tally(self, decided: Callable[[VoteTally], object], *, wait_for_all: bool = False) -> VoteTally:
        return VoteTally(len(self.engines), self.quorum, partial(guarded, self, decided), wait_for_all)

    # -- what is seen of it ------------------------------------------------------------------------------------------

    def stats(self) -> ContextStats:
        """Return a frozen snapshot: locks count once; renewals and connections are sums over all nodes."""
        nodes = [engine.stats() for engine in self.engines]
        time_left_min_s = min(node.renewal_time_left_min_s for node in nodes)
        return dataclasses.replace(
            super().stats(),
            renewed=sum(node.renewed for node in nodes),
            unknown=sum(node.unknown for node in nodes),
            batches=sum(node.batches for node in nodes),
            connects=sum(node.connects for node in nodes),
            renewal_lag_p50_s=max(node.renewal_lag_p50_s for node in nodes),
            renewal_lag_p99_s=max(node.renewal_lag_p99_s for node in nodes),
            renewal_lag_max_s=max(node.renewal_lag_max_s for node in nodes),
            renewal_slack_min_s=time_left_min_s,
            renewal_time_left_min_s=time_left_min_s,
        )

    @property
    def label(self) -> str:
        addresses = ",".join(engine.connector.describe() for engine in self.engines)
        return self.options.label or self.options.owner or addresses

    @property
    def node_counters(self) -> Sequence[tuple[str, Counters]]:
        return [(engine.connector.describe(), engine.counters) for engine in self.engines]

    def overdue_most(self) -> int:
        return max(engine.overdue_most() for engine in self.engines)

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        open_nodes, until = len(self.engines), self.timer.now + timeout_s

        def closed() -> None:
            nonlocal open_nodes
            open_nodes -= 1
            if not open_nodes:
                future.set_result(None)

        def close_nodes() -> None:
            for engine in self.engines:
                engine.close(max(until - self.timer.now, 0.0), Future(closed), exiting=exiting)

        super().close(timeout_s, Future(close_nodes), exiting=exiting)

    def retire(self) -> None:
        for engine in self.engines:
            engine.retire()


def _counted(name: str | bytes, future: Future[bool], tally: VoteTally) -> None:
    """Complete ``future`` with whether a majority agrees, or with an error if too few nodes answered."""
    if tally.agreed or tally.denied:
        future.set_result(tally.agreed)
    else:
        future.set_exception(tally.failure(name))
