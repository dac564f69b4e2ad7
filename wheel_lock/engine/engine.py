"""The engine of one context: it composes the parts, and offers the operations that a caller may submit.

All of it runs on the timer's thread, but for the methods that say otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.loss_events import Teller, log_given_up
from wheel_lock.engine.renewal.batch import RenewalGroup
from wheel_lock.engine.requests.acquire import release
from wheel_lock.engine.requests.base import start_query
from wheel_lock.engine.requests.bulk_operations import release_many
from wheel_lock.engine.requests.extend import Extend
from wheel_lock.engine.shutdown import Ending
from wheel_lock.engine.state import EngineState, Launch
from wheel_lock.engine.topology.routing import AnyConnector, router_for
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.errors import LossReason, WheelLockError
from wheel_lock.lease import EXTENDING, Event, Lease, State, held_lock
from wheel_lock.lock_types.base import LockType
from wheel_lock.observe.events import HeldLock
from wheel_lock.observe.stats import ContextStats, snapshot
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.greenlets import start_helper_thread
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.weak_registry import WeakRegistry


class Engine(EngineState):
    """Acquires, renews and releases the locks of one context.

    Args:
        connector: What connects to the server, the master or the cluster.
        options: The context's settings.
        timer: Whose thread it lives on.
        launch: Runs an attempt to connect on a thread that may block.
    """

    def __init__(
        self,
        connector: AnyConnector,
        options: ContextOptions,
        timer: HashedWheelTimer,
        launch: Launch = start_helper_thread,
    ) -> None:
        super().__init__(options, timer, launch)
        self.connector = connector
        self.leases = LeaseTable(self, Teller(timer).tell)
        self.router = self.leases.router = router_for(connector, self.leases)
        self.wait_queues = self.leases.listener = WaitQueueRegistry(self.leases, self.router.wakeups)
        self._ending = Ending(self.leases, self.router, self.wait_queues)
        self.leases.on_ended = self._ending.look
        self.stable = self.router.stable
        timer.attach(self)
        ENGINES.add(self)

    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> RenewalGroup:
        """Return what a lease of these terms shares with others on its node. From any thread."""
        renewer = self.router.shard_of(key)
        return renewer.group(lock_type, options.timeout_s, options.timeout_ms, options.renew_every_s)

    def new_wait(
        self,
        options: LockOptions,
        leases: Sequence[Lease],
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> Waiter:
        """Return a caller's wait for a lock, ready to begin; see :class:`Waiter`. From any thread."""
        return Waiter(self.wait_queues, options, leases, token_given, blocking, until, future)

    @property
    def held(self) -> Collection[Lease]:
        """The held leases, in order of acquisition."""
        return self.leases.held

    @property
    def busy(self) -> bool:
        """Whether a request waits for its reply, or for a connection."""
        return self.router.busy

    @property
    def in_use(self) -> bool:
        """Whether something is held, asked for or waited for."""
        return bool(self.leases.held or self.leases.acquiring or self.wait_queues or self.busy)

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release one lease. Nothing is sent for it any more once the operation is done."""
        release(self.leases, lease, future)

    def export(self, lease: Lease, future: Future[None]) -> None:
        """Let go of a held lease without releasing it: its adopter renews it from now on."""
        error = self.leases.check_owned(lease)
        if error is None and lease.state is EXTENDING:
            error = WheelLockError("The lock is being extended, and cannot be exported meanwhile", lease.name)
        error = error or self.leases.begin_release(lease, Event.EXPORT)
        if error is None:
            self._ending.look()
            future.set_result(None)
        else:
            future.set_exception(error)

    def undo_export(self, lease: Lease, future: Future[None]) -> None:
        """Release a lease whose export was interrupted before its text could reach an adopter.

        Args:
            lease: The lease.
            future: The export; where that has failed, the lease was exported by another one, whose text is out there.
        """
        if future.done and future.error is None and lease.state is State.EXPORTED:
            self.leases.clean_up([lease])

    def release_many(self, leases: Iterable[Lease], future: Future[dict[str | bytes, LossReason]]) -> None:
        """Release many; the operation completes with the reasons of those that had been lost."""
        release_many(self.leases, leases, future)

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease whose lock object is gone, unless it is being released."""
        if lease.state <= EXTENDING:
            self.leases.mark_lost([lease], LossReason.ABANDONED)

    def lapse_seen(self, lease: Lease) -> None:
        """Mark a lease lost whose holder has seen its deadline pass."""
        self.leases.mark_lost([lease] if lease.state <= EXTENDING else ())

    # -- in between --------------------------------------------------------------------------------------------------

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live of a held lease."""
        error = self.leases.check_owned(lease)
        if error is None and lease.state is EXTENDING:
            error = WheelLockError("The lock is being extended already", lease.name)
        if error is None:
            Extend(self.leases, lease, time_ms, replace, future).start()
        else:
            future.set_exception(error)

    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], Any], future: Future[Any]) -> None:
        """Ask the server something."""
        start_query(self.leases, name, call, read, future)

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. From any thread."""
        overdue = sum(len(renewer.overdue) for renewer in self.router.shards)
        return snapshot(self.counters, held=len(self.leases.held), overdue=overdue, waiting=self.wait_queues.count)

    def held_locks(self) -> list[HeldLock]:
        """Return what is held now, in order of acquisition. From any thread. O(n)."""
        now = self.timer.clock.now()
        overdue = {lease for renewer in self.router.shards for lease in renewer.overdue.snapshot()}
        return [held_lock(lease, now, lease in overdue) for lease in self.leases.held.copy() if lease.is_valid(now)]

    # -- the end, and other fates ------------------------------------------------------------------------------------

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        """End every lease, release them all at the server if that is wanted and possible, and hang up.

        Args:
            timeout_s: How long that may take, in seconds.
            operation: Completed when it is done.
            exiting: The interpreter ends, so waiters are dropped without being completed.
        """
        self._ending.close(timeout_s, future, exiting)

    def end(self, timeout_s: float, future: Future[None]) -> None:
        """The interpreter ends: close, unless that would change nothing. Here it is seen what was posted before, too."""
        if self.in_use:
            self.close(timeout_s, future, exiting=True)
        else:
            future.set_result(None)

    def retire(self) -> None:
        """Hang up as soon as nothing is held: the context object is gone."""
        self._ending.retire()

    def timer_stopped(self) -> None:
        """The timer is about to stop for good."""
        self.timer.post(self._ending.stop, self)

    def crashed(self, error: Exception) -> None:
        log_given_up(len(self.leases.held), error)
        self._ending.begin_anew(LossReason.INTERNAL_ERROR, error, "The engine that keeps the locks has failed")

    def thread_died(self) -> None:
        """End everything: the timer's thread has died, and every alarm with it."""
        died = RuntimeError("the timer's thread died")
        self._ending.begin_anew(
            LossReason.THREAD_DIED, died, "The thread that keeps the locks ended before it answered"
        )

    def after_fork_in_child(self) -> None:
        """In the child: hold nothing, and drop waiters whose replies only the parent will read."""
        self.deaths += 1
        self.leases.forget()
        for renewer in self.router.shards:
            renewer.start_empty()
        self.wait_queues.after_fork_in_child()
        self.router.after_fork_in_child()
        for node in self.router.nodes:
            node.after_fork_in_child()
        self.counters.reset()


ENGINES: WeakRegistry[LockEngine] = WeakRegistry()
