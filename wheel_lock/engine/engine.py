"""The engine of one context: what callers ask for, and the one place where a lease begins and ends.

Everything here runs on the timer's thread, except :meth:`Engine.submit`, which is how the other threads get work there.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from wheel_lock.engine.acquiring import Release
from wheel_lock.engine.batches import RenewalGroup
from wheel_lock.engine.bulk import ReleaseMany
from wheel_lock.engine.cluster import Cluster
from wheel_lock.engine.connect import Connector
from wheel_lock.engine.ending import Ending
from wheel_lock.engine.extending import Extend
from wheel_lock.engine.failover import Failovers
from wheel_lock.engine.kind import Kind
from wheel_lock.engine.lines import Lines
from wheel_lock.engine.node import Node, NodeObserver
from wheel_lock.engine.operation import Operation, end_quietly, nobody
from wheel_lock.engine.renewal import Renewer
from wheel_lock.engine.requests import Query, terms_of
from wheel_lock.engine.sentinel import SentinelConnector
from wheel_lock.engine.sharded import wakeups_for
from wheel_lock.engine.slots import ClusterConnector
from wheel_lock.engine.telling import Teller, log_given_up, log_illegal
from wheel_lock.engine.wakeups import WakeUps
from wheel_lock.errors import (
    ContextClosed,
    LockLost,
    LockNotHeld,
    LossReason,
    TooManyLocks,
    WheelLockError,
)
from wheel_lock.greenlets import start_helper_thread
from wheel_lock.lease import EXTENDING, Event, Lease, Limits, State, grant_all, latest_grant
from wheel_lock.observe.events import HeldLock, held_lock
from wheel_lock.observe.stats import ContextStats, Counters, snapshot
from wheel_lock.options import ContextOptions, LockOptions, lock_name
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.timer import HashedWheelTimer
from wheel_lock.weak import WeakRegistry

if TYPE_CHECKING:
    from wheel_lock.engine.swapping import Swap

_UNDONE = (
    LossReason.NOT_CONFIRMED,
    LossReason.RENEWAL_LIMIT,
    LossReason.HOLD_LIMIT,
    LossReason.ABANDONED,
    LossReason.INTERNAL_ERROR,
)


class Engine:
    """Acquires, renews and releases on one node, on the timer's thread.

    Args:
        connector: What connects to the node.
        options: The context's settings.
        timer: Whose thread it lives on.
        launch: Runs an attempt to connect somewhere it may block.
    """

    above = None  # a failure of one engine is in doubt of nothing else
    exiting = False  # the interpreter ends
    interrupted = False  # a caller has stopped waiting: what he has asked for may be still to be begun

    def __init__(
        self,
        connector: Connector | ClusterConnector,
        options: ContextOptions,
        timer: HashedWheelTimer,
        launch: Callable[[Callable[[], None]], None] = start_helper_thread,
    ) -> None:
        self.options = options
        self.timer = timer
        self.launch = launch
        self.tell_lost: Callable[[Sequence[Lease]], object] = Teller(timer).tell
        self.counters = Counters()
        self.held: dict[Lease, None] = {}
        self.swaps: dict[Lease, Swap] = {}  # those in flight, by what is to take the place of a held lease
        self.acquiring = 0
        self.deaths = 0
        self.closed = False
        self.connector = connector
        first = connector.to(connector.servers[0]) if isinstance(connector, ClusterConnector) else connector
        self.renewer = Renewer(self, first)
        self.node = self.renewer.node
        self.renewers = [self.renewer]  # one for each node
        self.cluster = Cluster(self, connector) if isinstance(connector, ClusterConnector) else None
        self.wakeups = wakeups_for(self, connector)
        self.failovers = Failovers(self, connector, launch) if isinstance(connector, SentinelConnector) else None
        self.listeners = [self.wakeups] if self.failovers is None else [self.wakeups, *self.failovers.wakeups]
        self.lines = Lines(self)
        self._ending = Ending(self)
        timer.attach(self)
        ENGINES.add(self)

    def new_node(self, observer: NodeObserver, connector: Connector, held_up_s: float = 0.0) -> Node:
        """Return a node that reports to ``observer``."""
        return Node(observer, self.timer, connector, self.options, self.counters, self.launch, held_up_s=held_up_s)

    def group(self, key: bytes, kind: Kind, options: LockOptions) -> RenewalGroup:
        """Return what a lease of these terms shares with others on its node. From any thread."""
        return self._renewer_of(key).group(kind, options.timeout_s, options.timeout_ms, options.renew_every_s)

    def _renewer_of(self, key: bytes) -> Renewer:
        return self.renewer if self.cluster is None else self.cluster.renewer_of(key)

    def submit(self, work: Callable[[], object]) -> None:
        """Have ``work()`` done on the timer's thread. From any thread.

        Raises:
            ContextClosed: The context, or its timer, is closed, or the interpreter has ended all threads but this.
        """
        if self.exiting:
            end_quietly(True)  # what a daemon thread would acquire now could be left behind
            if sys.is_finalizing():
                raise ContextClosed("The interpreter has ended, and with it the thread that keeps the locks")
        if self.closed or self.timer.stopped:
            raise ContextClosed("The context has been closed")
        self.timer.post(work, self)

    def tell(self, work: Callable[[], object]) -> None:
        """Like :meth:`submit`, but quiet about a closed context: for finalisers and for giving up."""
        if not self.over:
            self.timer.post(work, self)

    @property
    def over(self) -> bool:
        """Whether it does nothing for anybody any more. From any thread."""
        return self.closed or self.timer.stopped or (self.exiting and sys.is_finalizing())

    def __reduce__(self) -> NoReturn:
        raise TypeError("a context, and what it has made, cannot be pickled: each process makes its own")

    @property
    def in_use(self) -> bool:
        """Whether something is held, asked for or waited for."""
        return bool(self.held or self.acquiring or self.lines or self.busy)

    @property
    def busy(self) -> bool:
        """Whether a request waits for its reply, or for a connection."""
        return self.wakeups.busy or any(node.busy for node in self.nodes)

    def tell_if_running(self, work: Callable[[], object]) -> None:
        """Like :meth:`tell`, but never starts the thread: where it does not run there is nothing to do."""
        if self.timer.running:
            self.tell(work)

    def refusal(self, name: str | bytes | None, wanted: int) -> WheelLockError | None:
        """Return why ``wanted`` more locks may not be acquired, or None if they may."""
        if self.closed:
            return ContextClosed("The context has been closed", name)
        most = self.options.max_held
        if most is not None and len(self.held) + self.acquiring + wanted > most:
            return TooManyLocks(f"{len(self.held)} locks are held already, the limit of this context is {most}", name)
        return None

    # -- a lease begins ----------------------------------------------------------------------------------------------

    def grant(self, leases: Sequence[Lease], options: LockOptions, sent_at: float) -> bool:
        """Take the server's grant; False if the leases, or their hold limit, have run out before it was read."""
        latest = latest_grant(sent_at, options.timeout_s, options.max_hold_s, self.timer.scale.tick_s)
        if self.closed or self.timer.clock.now() >= latest:
            return False
        limits = None
        if options.renew_every_s is None or options.max_renewals is not None or options.max_hold_s is not None:
            hold_until = float("inf") if options.max_hold_s is None else sent_at + options.max_hold_s
            limits = Limits(0 if options.renew_every_s is None else options.max_renewals, hold_until)
        if not grant_all(leases, sent_at, options.timeout_s, limits):
            self.lose(leases, LossReason.INTERNAL_ERROR)
            return False
        if len(leases) == 1:
            self.held[leases[0]] = None
        else:
            self.held.update(dict.fromkeys(leases))
        self.counters.acquired += len(leases)
        renewer = terms_of(leases[0]).renewer
        renewer.begin(leases, sent_at)
        renewer.server_is_well()
        self.watch_master()
        return True

    def turn_down(self, leases: Sequence[Lease], clean_up: bool, node: Node | None = None) -> None:
        """End leases that were never held; ``clean_up`` where they may have been granted, by what was sent to ``node``."""
        for lease in leases:
            if lease.state is State.PENDING:
                lease.move(Event.TURNED_DOWN)
        if clean_up:
            self.clean_up(leases, node)

    def clean_up(self, leases: Iterable[Lease], node: Node | None = None) -> None:
        """Release, owner-checked, leases that nobody holds any more; behind what was sent to ``node``."""
        for group, some in itertools.groupby(leases, terms_of):
            group.renewer.clean_up(list(some), node)

    @property
    def nodes(self) -> list[Node]:
        """All nodes, each once for each of its channels."""
        return [node for renewer in self.renewers for node in renewer.nodes]

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def let_go(self, lease: Lease, event: Event = Event.RELEASE) -> WheelLockError | None:
        """Take a lease that its holder gives away out of everything; return why that is impossible, if it is."""
        error = self.not_ours(lease)
        if error is None:
            terms_of(lease).renewer.forget(lease)
            lease.move(event)
            self.held.pop(lease, None)
        return error

    def not_ours(self, lease: Lease) -> WheelLockError | None:
        """Return why the holder cannot do anything with ``lease``, or None where it can."""
        if not lease.group.alive:
            return LockLost(lease.name, lease.loss or LossReason.FORKED)
        if lease.state <= EXTENDING and not lease.believed(self.timer.clock.now()):
            self.lose([lease])
            self.clean_up([lease])  # an unconfirmed renewal may have prolonged it after all
        if lease.state is State.LOST or lease.loss is not None:
            return LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED)
        if lease.state > EXTENDING:
            return LockNotHeld("Cannot release or extend a lock that is not held", lease.name)
        return None

    def release(self, lease: Lease, operation: Operation[None]) -> None:
        """Release one lease. Nothing is sent for it any more once the operation is done."""
        error = self.let_go(lease)
        if error is None:
            Release(self, lease, operation).start()
            self.lines.ended(lease)  # who waits in this process asks right behind the release, in the same write
        elif lease in self.swaps:
            self.swaps[lease].release(operation)
        else:
            operation.fail(error)

    def export(self, lease: Lease, operation: Operation[None]) -> None:
        """Let go of a held lease without releasing it: whoever adopts it renews it from now on."""
        error = self.not_ours(lease)
        if error is None and lease.state is EXTENDING:
            error = WheelLockError("The lock is being extended, and cannot be exported meanwhile", lease.name)
        error = error or self.let_go(lease, Event.EXPORT)
        if error is None:
            self._ending.look()
            operation.complete(None)
        else:
            operation.fail(error)

    def release_unawaited(self, release: Callable[[Operation[Any]], object]) -> None:
        """Have ``release(operation)`` begun for a caller who was interrupted, and does not wait for it. From any thread."""
        self.interrupted = True
        self.tell(partial(release, Operation(nobody)))

    def come_by(self, operation: Operation[None]) -> None:
        """Complete it: what was asked for before has been begun by now, such as a release that an interruption left."""
        operation.complete(None)

    def release_many(self, leases: Iterable[Lease], operation: Operation[dict[str | bytes, LossReason]]) -> None:
        """Release many; the operation completes with the reasons of those that had been lost."""
        ends = [(lease, self.let_go(lease)) for lease in leases]
        bulk = ReleaseMany(self, [lease for lease, error in ends if error is None], operation)
        bulk.losses = {lease.name: error.reason for lease, error in ends if isinstance(error, LockLost)}
        bulk.pump()

    def freed(self, leases: Sequence[Lease]) -> None:
        """The server has released them."""
        self.counters.released += len(leases)
        for lease in leases:
            lease.move(Event.FREED)
        self._ending.look()

    def unreleased(self, leases: Sequence[Lease]) -> None:
        """Whether the server has released them is not known; they are over here, and will expire there."""
        releasing = [lease for lease in leases if lease.state is State.RELEASING]
        for lease in releasing:
            lease.move(Event.FREED)
        # An extension would keep the key for far longer than anybody expects who was told that this has failed.
        now = self.timer.now
        self.clean_up([lease for lease in releasing if lease.may_last > now and terms_of(lease).kind.own_tokens])

    def watch_master(self) -> None:
        """Hear of it from the Sentinels, if there are any, when another server is made the master."""
        if self.failovers is not None:
            self.failovers.listen()

    def lose(self, leases: Iterable[Lease], reason: LossReason | None = None) -> None:
        """End leases that were not released, and have their holders told, once.

        Args:
            leases: Believed leases, or ones in the middle of their release; others are passed over.
            reason: Why; by default, the reason for which each lapses now.
        """
        lost: list[Lease] = []
        for lease in leases:
            if not lease.group.alive or (lease.state > EXTENDING and lease.state is not State.RELEASING):
                continue
            lease.loss = why = lease.loss or reason or lease.lapse_reason()
            terms_of(lease).renewer.forget(lease)
            self.held.pop(lease, None)
            lease.move(Event.LOSE)
            self.counters.lost[why] += 1
            lost.append(lease)
        if lost:
            self.tell_lost(lost)
            for lease in lost:
                if not self.exiting:
                    lease.owner.lost(lease)
                if lease.may_last > self.timer.now and lease.loss in _UNDONE:
                    # An extension would outlast by far what anybody expects. Not at once: its node may be about to restart.
                    self.timer.post(partial(self.clean_up, [lease]), self)
                self.lines.ended(lease)
            self._ending.look()

    def abandon(self, lease: Lease) -> None:
        """Its lock object is gone: renew it no more. Nothing to do if it is being released."""
        if lease.state <= EXTENDING:
            self.lose([lease], LossReason.ABANDONED)

    def lapse_seen(self, lease: Lease) -> None:
        """A holder has seen the deadline pass before we did."""
        self.lose([lease] if lease.state <= EXTENDING else ())

    # -- in between --------------------------------------------------------------------------------------------------

    def extend(self, lease: Lease, time_ms: int, replace: bool, operation: Operation[None]) -> None:
        """Change the time-to-live of a held lease."""
        error = self.not_ours(lease)
        if error is None and lease.state is EXTENDING:
            error = WheelLockError("The lock is being extended already", lease.name)
        if error is None:
            Extend(self, lease, time_ms, replace, operation).start()
        else:
            operation.fail(error)

    def query(self, name: str | bytes, call: Call, read: Callable[[Reply], Any], operation: Operation[Any]) -> None:
        """Ask the server something."""
        node = self._renewer_of(lock_name(name)).node
        Query(self.timer, node, name, self.options.response_timeout_s, call, read, operation).start()

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. From any thread."""
        overdue = sum(len(renewer.overdue) for renewer in self.renewers)
        return snapshot(self.counters, held=len(self.held), overdue=overdue, waiting=self.lines.count)

    def held_locks(self) -> list[HeldLock]:
        """Return what is held now, in order of acquisition. From any thread. O(n)."""
        now = self.timer.clock.now()
        overdue = {lease for renewer in self.renewers for lease in renewer.overdue.snapshot()}
        return [held_lock(lease, now, lease in overdue) for lease in self.held.copy() if lease.believed(now)]

    # -- the end, and other fates ------------------------------------------------------------------------------------

    def close(self, timeout_s: float, operation: Operation[None], *, exiting: bool = False) -> None:
        """End every lease, release them all at the server if that is wanted and possible, and hang up.

        Args:
            timeout_s: How long that may take.
            operation: Completed when it is done.
            exiting: The interpreter ends, so whoever waits for a lock is not told: he would only be in the way.
        """
        self._ending.close(timeout_s, operation, exiting)

    def end(self, timeout_s: float, operation: Operation[None]) -> None:
        """The interpreter ends: close, unless that would change nothing. Here it is seen what was posted before, too."""
        if self.in_use:
            self.close(timeout_s, operation, exiting=True)
        else:
            operation.complete(None)

    def retire(self) -> None:
        """The context object is gone: hang up as soon as nothing is held."""
        self._ending.retire()

    def timer_stopped(self) -> None:
        """The timer is about to stop for good."""
        self.timer.post(self._ending.stop, self)

    def illegal(self, lease: Lease, event: Event) -> None:
        """Give up a lease of which a step was asked that its state does not allow. That is a bug; the log says where."""
        log_illegal(lease, event)
        self.give_up([lease])
        if event in (Event.GRANTED, Event.CONFIRMED) and terms_of(lease).kind.own_tokens:
            self.clean_up([lease])  # the server has just said that its key is alive

    def give_up(self, leases: Sequence[Lease]) -> None:
        """End leases that a failure of the library's own code has left half done; those that are over stay as they are."""
        self.turn_down(leases, False)
        self.unreleased(leases)
        self.lose(leases, LossReason.INTERNAL_ERROR)

    def crashed(self, error: Exception) -> None:
        """End everything: a call of this engine's has failed, and it is not known what is still watched."""
        log_given_up(len(self.held), error)
        self._ending.begin_anew(LossReason.INTERNAL_ERROR, error, "The engine that keeps the locks has failed")

    def thread_died(self) -> None:
        """End everything: the timer's thread has died, and every alarm with it."""
        died = RuntimeError("the timer's thread died")
        self._ending.begin_anew(
            LossReason.THREAD_DIED, died, "The thread that keeps the locks ended before it answered"
        )

    def listen_anew(self, begin: Callable[[WakeUps], object]) -> None:
        """Have ``begin()`` done to every connection that listens; nothing is being asked for then."""
        for wakeups in self.listeners:
            begin(wakeups)
        if self.failovers is not None:
            self.failovers.begin_anew()
        if self.cluster is not None:
            self.cluster.begin_anew()

    def forked(self) -> None:
        """In the child: hold nothing, and let nobody wait for what only the parent will hear."""
        self.deaths += 1
        self.held.clear()
        self.swaps.clear()
        self.acquiring = 0
        for renewer in self.renewers:
            renewer.start_empty()
        self.lines.forget()
        if self.cluster is not None:
            self.cluster.forget()
        if self.failovers is not None:
            self.failovers.forget()
        self.listen_anew(WakeUps.forget)
        for node in self.nodes:
            node.forget()
        self.counters.reset()


ENGINES: WeakRegistry[Engine] = WeakRegistry()
