"""The engine of one context: it composes the parts, and offers the operations that a caller may submit."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from wheel_lock.engine.direct.connection import fits
from wheel_lock.engine.direct.path import DirectPath
from wheel_lock.engine.future import Exit, Future
from wheel_lock.engine.interfaces import DirectLocks, group_of
from wheel_lock.engine.leases import LeaseTable, leases_of
from wheel_lock.engine.loss_events import LossReporter, log_given_up
from wheel_lock.engine.requests.bulk_operations import Sweep, release_many
from wheel_lock.engine.requests.extend import Extend
from wheel_lock.engine.requests.query import ForceRelease, Query, look_at, look_up
from wheel_lock.engine.requests.release import release
from wheel_lock.engine.state import EngineState, Launch
from wheel_lock.engine.topology import AnyConnector, router_for
from wheel_lock.engine.topology.single import SingleRouter
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.errors import ContextClosed, LockLost, LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Event, Group, Lease, State, held_lock
from wheel_lock.lock_types.base import Contention, LockType
from wheel_lock.lock_types.holders import LockState
from wheel_lock.observe.contexts import Reading
from wheel_lock.observe.events import HeldLock
from wheel_lock.observe.health import Health, NodeHealth, assess
from wheel_lock.observe.stats import ContextStats, Counters, snapshot
from wheel_lock.options import ContextOptions, LockOptions, lock_name
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.rows import Rows
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import ANEW, End, Part, end_all
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.greenlets import start_helper_thread
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.weak_registry import WeakRegistry

T = TypeVar("T")

_LOOK_AGAIN_S = 0.02
_LINGER_S = 0.5  # the connections of a retired engine outlive its last use for so long: a lock object may be left
_CALLER_S = 0.25  # at most, for a caller's own request: the caller may be the one that closes, in a signal's handler


class Swaps:
    """The swaps of one engine as a part that ends behind its nodes. Timer's thread only.

    Requests of nodes are refused by then. A swap may wait for an alarm, which is gone, and perhaps has no caller yet: one
    that was interrupted releases later.
    """

    def __init__(self, leases: LeaseTable) -> None:
        self._swaps = leases.swaps

    def end(self, how: End, error: Exception) -> None:
        """Fail the swaps, unless they are those of a parent process."""
        if how is End.FORKED:
            self._swaps.clear()
        elif how in ANEW:
            for swap in tuple(self._swaps.values()):
                guarded(None, swap.on_unavailable, error)


class Engine(EngineState):
    """Acquires, renews and releases the locks of one context. Timer's thread only, but for what says otherwise.

    Args:
        connector: Connects to the server, the master or the cluster.
        options, timer, launch: As for :class:`EngineState`.

    Attributes:
        leases: The held leases.
        losses: Reports those that are lost.
        nodes_needed: How many of the nodes must work: the majority of a quorum; None for all.
        keeps_groups: True if the leases of a lock always have the same group: a name lives on the same nodes for ever.
    """

    connector: AnyConnector
    router: SingleRouter
    wait_queues: WaitQueueRegistry
    closed: bool
    nodes_needed: int | None = None

    def __init__(
        self,
        connector: AnyConnector,
        options: ContextOptions,
        timer: HashedWheelTimer,
        launch: Launch = start_helper_thread,
    ) -> None:
        self.connector = connector
        self._compose(options, timer, launch, partial(router_for, connector))

    def _compose(
        self,
        options: ContextOptions,
        timer: HashedWheelTimer,
        launch: Launch,
        new_router: Callable[[LeaseTable], SingleRouter],
    ) -> None:
        """Make the parts. (Apart from the constructor, because the engine of a quorum has a router and no connector.)"""
        super().__init__(options, timer, launch)
        if options.release_on_crash:
            from wheel_lock.keeper.keeping import Keeping

            self.keeping: Keeping | None = Keeping(timer, options, launch, self, lambda: self.leases.held)
        self.losses: LossReporter = LossReporter(self)
        self.leases: LeaseTable = LeaseTable(self, self.losses.report)
        self.router = self.leases.router = new_router(self.leases)
        self.wait_queues = self.leases.listener = self._new_wait_queues()
        if (renewer := self.router.only_renewer) is not None and fits(self):
            self.direct: DirectLocks = DirectPath(self.leases, self.wait_queues, renewer)
        # In the order of their ends. First what is held is lost. The requests of nodes end before waiters and swaps, whose
        # ends send clean-ups.
        self._parts: Sequence[Part] = (self.direct, self.leases, self.router, Swaps(self.leases), self.wait_queues)
        if self.keeping is not None:
            self._parts = (*self._parts, self.keeping)
        self._closing: list[Future[None]] = []  # of the callers that close the engine
        self._retired = False
        self._next_look: Alarm | None = None  # whether a retired engine is still in use
        self.leases.on_ended = self._on_lease_ended
        self.keeps_groups: bool = self.router.keeps_groups
        timer.attach(self)
        ENGINES.add(self)

    def _new_wait_queues(self) -> WaitQueueRegistry:
        return WaitQueueRegistry(self.leases, self.router.wakeups)

    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> Group:
        """Return the group of such a lease on its node. From any thread."""
        renewer = self.router.shard_of(key)
        return renewer.group(lock_type, options.timeout_s, options.timeout_ms, options.renew_every_s)

    def new_wait(
        self,
        options: LockOptions,
        lease: Lease,
        key: bytes,
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> FirstTry | Waiter:
        """Return a caller's wait for the lock with this key, ready to begin; see :class:`Waiter`. From any thread."""
        group = group_of(lease)
        queues, queued = self.wait_queues, group.lock_type.contention is Contention.SERVER_QUEUE
        if queued or self.options.min_replicas or options.retry_every_s is not None:
            return Waiter(queues, options, (lease,), token_given, blocking, until, future)
        return FirstTry(queues, options, lease, key, token_given, blocking, until, future)

    @property
    def busy(self) -> bool:
        return self.router.busy

    @property
    def in_use(self) -> bool:
        """True if a lock is held, being acquired or waited for, or if the engine is ``busy``."""
        leases = self.leases
        return bool(leases.held or leases.acquiring or self.wait_queues or self.direct.claim or self.busy)

    # -- the leases --------------------------------------------------------------------------------------------------

    @property
    def held(self) -> list[Lease]:
        """The held leases, in order of acquisition. From any thread. O(n)."""
        return self.longest_held(None)

    @property
    def held_count(self) -> int:
        """The number of held leases. From any thread."""
        while True:
            young, others = self.direct.young(), len(self.leases.held)
            if young == self.direct.young():  # else it was taken over in between
                return len(young) + others

    def own(self, wires: Collection[bytes]) -> list[Lease]:
        """Return the leases with one of these encoded names and tokens: held, or on the direct path. From any thread."""
        on_path = list(self.direct.claim)  # first: one may be taken over meanwhile
        found = dict.fromkeys(on_path)
        for entry in self.leases.held.entries():
            if not isinstance(entry, Rows) or any(wire in entry.body for wire in wires):
                found.update(dict.fromkeys(leases_of(entry)))
        return [lease for lease in found if lease.lease_args in wires]

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease whose lock object has been collected, unless it is being released."""
        if lease.state <= EXTENDING:
            self.leases.mark_lost([lease], LossReason.ABANDONED)

    def abandon_all(self, rows: Sequence[Rows]) -> None:
        """Stop renewing the leases of rows whose locks were never made: those of one in each turn."""
        left = deque(rows)

        def abandon_some(after: BaseException | None) -> bool:
            self.leases.mark_lost([lease for lease in left[0] if lease.state <= EXTENDING], LossReason.ABANDONED)
            del left[0]
            return bool(left)

        self.timer.job(abandon_some, self)

    def lapse_seen(self, lease: Lease) -> None:
        """Mark a lease lost if its holder has seen its deadline pass."""
        if lease.state <= EXTENDING:
            renewed = lease.deadline > self.timer.clock.now()  # its block was confirmed at that very moment
            self.leases.mark_lost([lease])
            if renewed:
                self.leases.clean_up([lease])

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release one lease. Nothing is sent for it after ``future`` is done."""
        if (hold := self.direct.claim.get(lease)) is not None:
            hold.finish_release(future)
        else:
            release(self.leases, lease, future)

    def export(self, lease: Lease, future: Future[None]) -> None:
        """Stop renewing a held lease without releasing it: its adopter renews it from now on."""
        error = self._export_error(lease) or self.leases.begin_release(lease, Event.EXPORT)
        if error is None:
            self._on_lease_ended()
            future.set_result(None)
        else:
            future.set_exception(error)

    def _export_error(self, lease: Lease) -> WheelLockError | None:
        error = self.leases.check_owned(lease)
        if error is None and lease.state is EXTENDING:
            error = WheelLockError("The lock is being extended, and cannot be exported meanwhile", lease.name)
        return error

    def export_many(self, leases: Sequence[Lease], future: Future[set[Lease]]) -> None:
        """Stop renewing all of ``leases`` without releasing them; the result of ``future`` is those that were lost before.

        If one of them cannot be exported for another reason, none is, and that is the exception of ``future``.
        """
        errors = {lease: error for lease in leases if (error := self._export_error(lease)) is not None}
        for error in errors.values():
            if not isinstance(error, LockLost):
                future.set_exception(error)
                return
        lost = {lease for lease in leases if lease in errors or self.leases.begin_release(lease, Event.EXPORT)}
        self._on_lease_ended()
        future.set_result(lost)

    def undo_export(self, leases: Sequence[Lease], future: Future[set[Lease]] | Future[None]) -> None:
        """Release what was exported with ``future`` by a caller that was interrupted: no adopter has received a text."""
        if future.done and future.error is None:
            # A lease that was lost may be EXPORTED by an earlier export, whose adopter keeps it.
            lost = future.result() or ()
            self.leases.clean_up([lease for lease in leases if lease not in lost and lease.state is State.EXPORTED])

    def release_many(self, leases: Sequence[Lease], future: Future[dict[str | bytes, LossReason]]) -> None:
        """Release many; the result of ``future`` has the reasons of those that had been lost."""
        release_many(self.leases, leases, future)

    # -- other operations --------------------------------------------------------------------------------------------

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live of a held lease."""
        error = self.leases.check_owned(lease)
        if error is None and lease.state is EXTENDING:
            error = WheelLockError("The lock is being extended already", lease.name)
        if error is None:
            Extend(self.leases, lease, time_ms, replace, future).start()
        else:
            future.set_exception(error)

    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], T], future: Future[T]) -> None:
        """Send ``call``; the result of ``future`` is ``read(reply)``."""
        Query(self.leases, name, lock_name(name, self.options.prefix), call, read, future).start()

    def owned(self, lease: Lease, future: Future[bool]) -> None:
        lock_type = group_of(lease).lock_type
        read = partial(lock_type.parse_owned, lease=lease)
        Query(self.leases, lease.name, lease.key, lock_type.owned(lease), read, future).start()

    def look(self, name: str | bytes, future: Future[LockState]) -> None:
        """Query the state of the lock of a name, of whatever kind it is."""
        look_up(self.leases, name, future)

    def look_at(self, names: Sequence[str | bytes], limit_s: float, future: Future[list[LockState]]) -> None:
        """Query the states of several locks at once, within ``limit_s`` seconds; those without an answer are left out."""
        look_at(self.leases, names, limit_s, future)

    def force_release(
        self, name: str | bytes, seen: LockState, own: Sequence[Lease], future: Future[int | None]
    ) -> None:
        """Release a lock for the holders that were seen; see :class:`ForceRelease`."""
        ForceRelease(self.leases, name, seen, own, future).start()

    # -- what is seen of it ------------------------------------------------------------------------------------------

    def held_locks(self, most: int | None = None) -> list[HeldLock]:
        """Return a snapshot of each valid lease, in order of acquisition. From any thread. O(n).

        With ``most`` only of those among so many leases that have been held for the longest time.
        """
        now, overdue = self.timer.clock.now(), self.overdue_leases()
        found: list[HeldLock] = []
        for entry in self._longest_held(most):
            if type(entry) is Rows and not entry.made:
                found += entry.held_locks(now)
            else:
                leases = [lease for lease in leases_of(entry) if lease.is_valid(now)]
                found += [held_lock(lease, now, lease in overdue) for lease in leases]
            if most is not None and len(found) >= most:
                break
        return found[:most]

    def longest_held(self, most: int | None) -> list[Lease]:
        """Return the ``most`` leases that have been held for the longest time, or all. From any thread. O(most)."""
        return list(itertools.islice(itertools.chain.from_iterable(map(leases_of, self._longest_held(most))), most))

    def _longest_held(self, most: int | None) -> list[Lease | Rows]:
        """Return the ``most`` entries that have been held for the longest time, or all. From any thread. O(most)."""
        while True:
            try:
                young = self.direct.young()  # first: it may be taken over in between
                return list(dict.fromkeys([*self.leases.held.entries(most), *young]))[:most]
            except RuntimeError:
                pass  # a lease has come or gone meanwhile, which a GIL rules out

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. From any thread."""
        overdue = sum(len(renewer.overdue) for renewer in self.router.shards)
        waiting, watching = self.wait_queues.count, self.router.watching
        counters = self.direct.counted(self.counters)
        return snapshot(counters, held=self.held_count, overdue=overdue, waiting=waiting, watching=watching)

    @property
    def label(self) -> str:
        return self.options.label or self.options.owner or self.connector.label()

    @property
    def node_counters(self) -> Sequence[tuple[str, Counters]]:
        return ()

    def node_health(self) -> list[NodeHealth]:
        """Return the health of each node. From any thread."""
        now, router = self.timer.clock.now(), self.router
        return [renewer.health(now) for renewer in list(router.shards) if router.owns_names(renewer)]

    def waits(self) -> list[tuple[str | bytes, int, float]]:
        """Return for each name its number of waiters, and when the longest wait began. From any thread.

        Times are in seconds of the timer's clock.
        """
        return self.wait_queues.waits()

    def connect_nodes(self) -> None:
        """Begin to connect to the nodes without a connection."""
        for renewer in self.router.shards:
            if self.router.owns_names(renewer):
                renewer.node.connect()

    def longest_wait_s(self) -> float:
        """Return the seconds for which the longest of the waiting callers has been waiting, or 0. From any thread."""
        first = min((began_at for _, _, began_at in self.waits()), default=None)
        return 0.0 if first is None else max(self.timer.clock.now() - first, 0.0)

    def health(self) -> Health:
        """Return the health of the context, and begin to connect to nodes without a connection. From any thread."""
        timer, nodes, stats = self.timer, self.node_health(), self.stats()
        late_s = timer.late_s
        reasons = assess(nodes, needed=self.nodes_needed, closed=self.closed, stopped=timer.stopped, late_s=late_s)
        ages = [node.last_confirmation_age_s for node in nodes if node.last_confirmation_age_s is not None]
        if not all(node.connected for node in nodes):
            # Without locks nothing else would, and a process that is not ready is not asked for locks.
            self.post_if_open(self.connect_nodes)
        return Health(
            ok=not reasons,
            reasons=tuple(reasons),
            nodes=tuple(nodes),
            held=stats.held,
            waiting=stats.waiting,
            overdue=stats.overdue,
            overdue_most=self.overdue_most(),
            longest_wait_s=self.longest_wait_s(),
            last_confirmation_age_s=min(ages, default=None),
            timer_late_s=late_s,
            watching=stats.watching,
        )

    def overdue_most(self) -> int:
        """Return the most leases of one node that were overdue at once. From any thread."""
        return self.counters.overdue_most

    def read_into(self, reading: Reading) -> None:
        """Add the figures of this moment to ``reading``. From any thread."""
        stats = self.stats()
        reading.contexts += not self.over
        reading.held += stats.held
        reading.waiting += stats.waiting
        reading.overdue += stats.overdue
        reading.longest_wait_s = max(reading.longest_wait_s, self.longest_wait_s())
        reading.count(self.direct.counted(self.counters), self.node_counters)
        if not self.over:
            for node in self.node_health():
                reading.add_node(node)

    def overdue_leases(self) -> Collection[Lease]:
        """Return the overdue leases. From any thread."""
        return {lease for renewer in self.router.shards for lease in renewer.overdue.snapshot()}

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        """End every lease, release them all at the server if that is configured and possible, and close the connections.

        Args:
            timeout_s: The time limit, in seconds.
            future: Completed when everything is closed.
            exiting: True at interpreter shutdown: waiters are dropped without being completed.
        """
        self.losses.flush()
        timer, until = self.timer, self.timer.now + timeout_s
        if self.closed:
            if self._closing:  # it waits for the close that is under way, for as long as its own may take
                self._closing.append(future)
                timer.call_at(until, lambda now: future.set_result(None), self)
            else:
                future.set_result(None)
            return
        self._closing.append(future)
        self.closed = True
        self._end_parts(End.EXITING if exiting else End.CLOSING, ContextClosed("The context has been closed"))
        hang_up = Future[None](lambda: timer.post(lambda: self._await_caller(until), self))
        sweep = Sweep(self.leases, hang_up)
        # Without a connection nothing is released: making one could take longer than ``timeout_s``.
        if self.options.release_on_close and any(node.connected for node in self.router.nodes):
            timer.call_at(until, lambda now: sweep.stop(), self)
            sweep.pump()
        else:
            sweep.stop()

    def _end_parts(self, how: End, error: Exception) -> None:
        end_all(self._parts, how, error, self)

    def _await_caller(self, until: float) -> None:
        """Hang up when the caller on the direct path has its reply: it releases itself what it is granted now."""
        timer, direct = self.timer, self.direct
        look_until = min(until, timer.now + _CALLER_S)

        def look(now: float) -> None:
            if direct.claim and timer.now < look_until:
                timer.call_at(timer.now + timer.scale.tick_s, look, self)
            else:
                if self.exiting is Exit.SIGNAL:
                    direct.give_up()
                self._hang_up(until)

        look(timer.now)

    def _hang_up(self, until: float) -> None:
        """Close the connections as soon as all replies have been read, or the time is up."""
        if not self._closing:
            return
        timer, nodes = self.timer, self.router.nodes
        waited_for = next((node for node in nodes if node.awaits_replies), None)
        if waited_for is not None and timer.now < until:
            # In the next turn: what the replies have posted, such as a WAIT for the replicas of a grant, is sent before.
            waited_for.when_replied = lambda: timer.post(lambda: self._hang_up(until), self)
            timer.call_at(until + timer.scale.tick_s, lambda now: self._hang_up(until), self)
        elif any(node.begins for node in nodes) and timer.now < until:
            timer.call_at(timer.now + _LOOK_AGAIN_S, lambda now: self._hang_up(until), self)
        else:
            self._end_close(ContextClosed("The context has been closed"))

    def _end_close(self, error: Exception) -> None:
        self._end_parts(End.CLOSED, error)
        closing, self._closing = self._closing, []
        for future in closing:
            future.set_result(None)

    def _stop(self, error: Exception) -> None:
        """End without a release, with ``error``: the timer stops for good, in this very turn."""
        if not self.closed:
            self.closed = True
            self._end_parts(End.CLOSING, error)
        self._end_close(error)  # also during a close, which will not get that far any more

    def exit(self, timeout_s: float, future: Future[None]) -> None:
        """Close an engine in use, at interpreter shutdown. All work that was posted before has begun by now."""
        self.losses.flush()
        if self.in_use or self.closed:  # a close may be under way
            self.close(timeout_s, future, exiting=True)
        else:
            future.set_result(None)

    def retire(self) -> None:
        """Close the connections as soon as nothing is held: the context object has been collected. From any thread."""
        self._retired = True  # also if no thread runs: a lock object may be left, and be used later
        self.post_if_running(self._on_lease_ended)

    def _on_lease_ended(self) -> None:
        """Close the connections of a retired engine soon if its last lease has ended, or one was made without any."""
        if self._retired and not self.leases.held:
            self._look_later()

    def _look_later(self) -> None:
        self.timer.cancel(self._next_look)
        self._next_look = self.timer.call_at(self.timer.now + _LINGER_S, lambda now: self._retire(), self)

    def _retire(self) -> None:
        if self.leases.held or self.closed:
            return
        nodes = self.router.nodes
        in_use = self.wait_queues or self.direct.claim
        if not in_use and not any(node.ready and node.busy for node in nodes):
            self._end_parts(End.RETIRED, ConnectionAbortedError("nothing is held"))
            if not any(node.busy for node in nodes):
                return
            # A clean-up that is left gets a connection once more.
        self._look_later()

    def crashed(self, error: Exception) -> None:
        log_given_up(len(self.leases.held), error)
        self.end(End.FAILED, error)

    def end(self, how: End, error: Exception) -> None:
        """Close in the last turn of a timer that is STOPPED; else begin anew with all parts."""
        if how is End.STOPPED:
            self.timer.post(partial(self._stop, error), self)
            return
        self.deaths += 1
        if how is End.FORKED:
            self.name_tokens()
            self.unawaited.clear()
            self.counters.reset()
            self._closing.clear()  # the parent process may be in the middle of its close
            self._next_look = None
        end_all(self._parts, how, error)


ENGINES: WeakRegistry[Engine] = WeakRegistry()
