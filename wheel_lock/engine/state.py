"""The state that the parts of one engine share, and the way in for other threads."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.interfaces import NO_DIRECT_LOCKS, DirectLocks, Wait
from wheel_lock.engine.loss_events import LossReporter
from wheel_lock.errors import (
    ContextClosed,
    LockAlreadyHeld,
    LockLost,
    LockNotHeld,
    LossReason,
    TooManyLocks,
    WheelLockError,
    quoted,
    text_of,
)
from wheel_lock.lease import EXTENDING, NO_OWNER, Group, Lease, Owner, State, held_lock
from wheel_lock.lock_types.base import LockType
from wheel_lock.observe.contexts import HeldName, Reading
from wheel_lock.observe.events import HeldLock
from wheel_lock.observe.health import Health, NodeHealth, assess
from wheel_lock.observe.stats import ContextStats, Counters
from wheel_lock.options import MAX_SECONDS, ContextOptions, LockOptions
from wheel_lock.protocol.owners import owner_head
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.ends import ANEW, LOSSES, End
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.loop import Member
from wheel_lock.runtime.timer import HashedWheelTimer

if TYPE_CHECKING:  # it imports OpenTelemetry
    from wheel_lock.observe.spans import Spans

T = TypeVar("T")
Launch = Callable[[Callable[[], None]], None]

_LATEST = 1024  # held leases that a nested acquire is looked for among: some 0.1 ms


class HeldLeases:
    """The held leases of one engine, as far as one server and a quorum have the same rules. Timer's thread only.

    Args:
        state: The state that the parts of the engine share.
        report_lost: Reports lost leases to the log and to their holders.

    Attributes:
        acquiring: The number of leases that are being acquired, as far as ``max_held`` counts them.
        held: The held leases, in order of acquisition.
    """

    def __init__(self, state: EngineState, report_lost: Callable[[Sequence[Lease]], object]) -> None:
        self.state = state
        self.timer: HashedWheelTimer = state.timer
        self.report_lost = report_lost
        self.held: dict[Lease, None] = {}
        self.acquiring: int = 0

    def end(self, how: End, error: Exception) -> None:
        """Lose the held leases, if that is an end of theirs; in a forked child drop them, because they are the parent's."""
        try:
            if how in LOSSES:
                self.mark_lost(list(self.held), LOSSES[how])
        finally:
            if how in ANEW:
                self.held.clear()
                self.acquiring = 0

    def admission_error(self, name: str | bytes | None, wanted: int) -> WheelLockError | None:
        """Return why ``wanted`` more locks may not be acquired, or None if they may."""
        if self.state.closed:
            return ContextClosed("The context has been closed", name)
        most = self.state.options.max_held
        if most is not None and len(self.held) + self.acquiring + wanted > most:
            return TooManyLocks(f"{len(self.held)} locks are held already, the limit of this context is {most}", name)
        return None

    def refuse_endless(
        self,
        owner: Owner,
        keys: Collection[bytes],
        refuse: Callable[[LockAlreadyHeld], object],
        passed_over: int = 0,
    ) -> None:
        """Have ``refuse(error)`` called if ``owner``, which waits without limit, waits for its own release.

        Called when the lock was refused, so a lock that is free costs nothing. The server is asked whether the owner still
        has it: a wait for another owner is none of these. Of very many held leases only the latest are looked at, because a
        look at all would keep renewals waiting, and a nested acquire mostly follows the outer one soon.

        Args:
            owner: The thread or task that waits.
            keys: The keys of the locks for which it waits.
            refuse: Ends the wait, if it has not ended.
            passed_over: The number of leases that the same call was granted.
        """
        if owner is NO_OWNER or not self.held:
            return
        now = self.timer.clock.now()
        for lease in itertools.islice(reversed(self.held), _LATEST + passed_over):
            if owner.is_same(lease.owner) and lease.key in keys and lease.is_valid(now):
                # One with limits ends by itself, unless its key has no expiry.
                endless = lease.limits is None or lease.group.timeout_s >= MAX_SECONDS
                if endless and lease.owner.releases_alone(lease):
                    self._refuse_if_owned(lease, refuse)
                return

    def _refuse_if_owned(self, lease: Lease, refuse: Callable[[LockAlreadyHeld], object]) -> None:
        def answered() -> None:
            if owned.error is None and owned.result() and lease.state <= EXTENDING:
                refuse(
                    LockAlreadyHeld(
                        f"The lock {quoted(lease.name)} is held by this very thread or task, which would wait for ever: "
                        "use reentrant_lock, do not nest, or limit the wait (blocking_timeout)",
                        lease.name,
                    )
                )

        owned: Future[bool] = Future(partial(guarded, self.state, answered))
        self.state.owned(lease, owned)

    def check_owned(self, lease: Lease) -> WheelLockError | None:
        """Return why ``lease`` cannot be released or extended, or None if it can. A lapsed lease is marked lost."""
        if not lease.group.alive:
            return LockLost(lease.name, lease.loss or LossReason.FORKED)
        if lease.state <= EXTENDING:
            if lease.loss is None and self.timer.clock.now() < lease.deadline:  # as is_valid()
                return None
            self.mark_lapsed(lease)
        if lease.state is State.LOST or lease.loss is not None:
            return LockLost(lease.name, lease.loss or LossReason.NOT_CONFIRMED)
        if lease.state > EXTENDING:
            return LockNotHeld("Cannot release or extend a lock that is not held", lease.name)
        return None

    def mark_lapsed(self, lease: Lease) -> None:
        """Mark a lease lost whose deadline has passed."""
        self.mark_lost([lease])

    def mark_lost(self, leases: Iterable[Lease], reason: LossReason | None = None) -> None:
        """End leases that were not released, and report each loss once; leases that have ended are skipped.

        Args:
            leases: The leases.
            reason: The reason of the loss; by default, the reason for which each lapses now.
        """
        raise NotImplementedError


class EngineState(Member):
    """An engine as its parts and lock objects see it: shared state, and the failure domain of calls without a smaller one.

    Args:
        options: The context's settings.
        timer: The timer whose thread the engine lives on.
        launch: Runs an attempt to connect on a thread that may block.

    Attributes:
        closed: True if the context has been closed: nothing is acquired any more.
        counters: The counters of the context's statistics.
        deaths: The number of events that ended everything at once: a fork, the death of the thread, a failure.
        exiting: True if the interpreter is about to end.
        interrupted: True if a caller has stopped waiting: its operation may not have begun yet.
        unawaited: A key for each release that has not ended yet and for which no caller waits.
        leases: The held leases. Set once, by the engine.
        losses: Reports those that are lost. Set once, by the engine.
        token_head: What precedes the random part of each token; empty unless the context has a ``readable_owner``.
        direct: The direct path of uncontended locks (see engine/direct/path.py).
        spans: Makes the spans of acquires and releases; None without a tracer.
        nodes_needed: How many of the nodes must work: the majority of a quorum; None for all.
        keeps_groups: True if the leases of a lock always have the same group: a name lives on the same nodes for ever.
    """

    leases: HeldLeases
    keeps_groups: bool
    losses: LossReporter
    above: FailureDomain | None = None  # a failure of one engine puts nothing else in doubt
    nodes_needed: int | None = None

    def __init__(self, options: ContextOptions, timer: HashedWheelTimer, launch: Launch) -> None:
        self.options = options
        self.timer = timer
        self.launch = launch
        self.counters: Counters = Counters()
        self.closed = False
        self.deaths = 0
        self.exiting = False
        self.interrupted: bool = False
        self.unawaited: dict[object, None] = {}
        self.spans: Spans | None = None
        self.direct: DirectLocks = NO_DIRECT_LOCKS
        self.name_tokens()

    def name_tokens(self) -> None:
        """Set the head of new tokens. Called again in a forked child, whose default owner is another one."""
        options = self.options
        self.token_head: bytes = owner_head(options.current_owner) if options.readable_owner else b""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a context, and what it has made, cannot be pickled: each process makes its own; a held lock is handed over "
            "with export() and adopt()"
        )

    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> Group:
        """Return the group of such a lease. From any thread."""
        raise NotImplementedError

    def new_wait(
        self,
        options: LockOptions,
        lease: Lease,
        key: bytes,
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> Wait:
        """Return a caller's wait for the lock with this key, ready to begin. From any thread."""
        raise NotImplementedError

    def release(self, lease: Lease, future: Future[None]) -> None:
        """Release one lease."""
        raise NotImplementedError

    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None:
        """Change the time-to-live of a held lease."""
        raise NotImplementedError

    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], bool], future: Future[bool]) -> None:
        """Send ``call``; the result of ``future`` is ``read(reply)``, or that of a majority."""
        raise NotImplementedError

    def retire(self) -> None:
        """Close the connections as soon as nothing is held: the context object has been collected."""
        raise NotImplementedError

    def crashed(self, error: Exception) -> None:
        """End everything: after a failure in a call of this engine's, any lease or request may be inconsistent."""
        raise NotImplementedError

    def submit(self, work: Callable[[], object]) -> None:
        """Call ``work()`` on the timer's thread. From any thread.

        Raises:
            ContextClosed: The context, or its timer, is closed, or the interpreter has ended all threads but this.
        """
        if self.exiting:
            end_quietly(True)  # a lock that a daemon thread acquired now could stay held
            if sys.is_finalizing():
                raise ContextClosed("The interpreter has ended, and with it the thread that keeps the locks")
        if self.closed or self.timer.stopped:
            raise ContextClosed("The context has been closed")
        if self.direct.claim:
            self.timer.post(self.direct.collided, self)
        self.timer.post(work, self)

    def post_if_open(self, work: Callable[[], object]) -> None:
        """Like :meth:`submit`, but does nothing if the context is closed: for finalisers and for giving up."""
        if not self.over:
            if self.direct.claim:
                self.timer.post(self.direct.collided, self)
            self.timer.post(work, self)

    def post_if_running(self, work: Callable[[], object]) -> None:
        """Like :meth:`post_if_open`, but never starts the thread: without it there is nothing to do."""
        if self.timer.running:
            self.post_if_open(work)

    @property
    def over(self) -> bool:
        """True if the engine does nothing any more. From any thread."""
        return self.closed or self.timer.stopped or (self.exiting and sys.is_finalizing())

    def release_unawaited(self, release: Callable[[Future[T]], object]) -> None:
        """Begin ``release(future)`` for a caller that does not wait: it was interrupted, or may not. From any thread."""
        key = object()
        self.unawaited[key] = None
        self.post_if_open(partial(release, Future(partial(self.unawaited.pop, key, None))))

    def come_by(self, future: Future[None]) -> None:
        """Complete ``future``: all work that was submitted before, such as an interrupted release, has begun."""
        future.set_result(None)

    # -- the leases --------------------------------------------------------------------------------------------------

    @property
    def held(self) -> list[Lease]:
        """The held leases, in order of acquisition. From any thread. O(n)."""
        young, held = self.direct.young(), list(self.leases.held)  # first: it may be taken over in between
        return held + [lease for lease in young if lease not in held]

    @property
    def held_count(self) -> int:
        """The number of held leases. From any thread."""
        while True:
            young, others = self.direct.young(), len(self.leases.held)
            if young == self.direct.young():  # else it was taken over in between
                return len(young) + others

    def own(self, wires: Container[bytes]) -> list[Lease]:
        """Return the leases with one of these encoded names and tokens: held, or on the direct path. From any thread."""
        on_path = list(self.direct.claim)  # first: one may be taken over meanwhile
        return [lease for lease in dict.fromkeys([*on_path, *self.held]) if lease.lease_args in wires]

    @property
    def in_use(self) -> bool:
        """True if locks are held, being acquired, or waited for."""
        raise NotImplementedError

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease whose lock object has been collected, unless it is being released."""
        if lease.state <= EXTENDING:
            self.leases.mark_lost([lease], LossReason.ABANDONED)

    def lapse_seen(self, lease: Lease) -> None:
        """Mark a lease lost if its holder has seen its deadline pass."""
        self.leases.mark_lost([lease] if lease.state <= EXTENDING else ())

    def held_locks(self) -> list[HeldLock]:
        """Return a snapshot of each valid lease, in order of acquisition. From any thread. O(n)."""
        now, overdue = self.timer.clock.now(), self.overdue_leases()
        return [held_lock(lease, now, lease in overdue) for lease in self.held if lease.is_valid(now)]

    def longest_held(self, most: int) -> list[Lease]:
        """Return the ``most`` leases that have been held for the longest time. From any thread. O(most)."""
        while True:
            try:
                young = self.direct.young()  # first: it may be taken over in between
                return list(dict.fromkeys(itertools.islice(itertools.chain(self.leases.held, young), most)))
            except RuntimeError:
                pass  # a lease has come or gone meanwhile, which a GIL rules out

    def held_names(self, most: int) -> list[HeldName]:
        """Return those of the ``most`` leases that have been held for the longest time which are valid. From any thread."""
        now = self.timer.clock.now()
        valid = [lease for lease in self.longest_held(most) if lease.is_valid(now)]
        return [HeldName(text_of(lease.name), now - lease.acquired_at, lease.deadline - now) for lease in valid]

    # -- what is seen of it ------------------------------------------------------------------------------------------

    def owned(self, lease: Lease, future: Future[bool]) -> None:
        """Query whether the server has the token of ``lease``; a majority of the servers, for a lock of a quorum."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """The name of the context in metrics, dumps and log records."""
        raise NotImplementedError

    def node_health(self) -> list[NodeHealth]:
        """Return the health of each node. From any thread."""
        raise NotImplementedError

    def waits(self) -> list[tuple[str | bytes, int, float]]:
        """Return for each name its number of waiters, and when the longest wait began. From any thread.

        Times are in seconds of the timer's clock.
        """
        raise NotImplementedError

    def connect_nodes(self) -> None:
        """Begin to connect to the nodes without a connection."""
        raise NotImplementedError

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

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. From any thread."""
        raise NotImplementedError

    def read_into(self, reading: Reading) -> None:
        """Add the figures of this moment to ``reading``. From any thread."""
        stats = self.stats()
        reading.contexts += not self.over
        reading.held += stats.held
        reading.waiting += stats.waiting
        reading.overdue += stats.overdue
        reading.longest_wait_s = max(reading.longest_wait_s, self.longest_wait_s())
        reading.counters.merge(self.direct.counted(self.counters))

    def overdue_leases(self) -> Collection[Lease]:
        """Return the overdue leases. From any thread."""
        return ()

    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None:
        """End every lease, release them all at the server if that is configured and possible, and close the connections.

        Args:
            timeout_s: The time limit, in seconds.
            future: Completed when everything is closed.
            exiting: True at interpreter shutdown: waiters are dropped without being completed.
        """
        raise NotImplementedError

    def exit(self, timeout_s: float, future: Future[None]) -> None:
        """Close an engine in use, at interpreter shutdown. All work that was posted before has begun by now."""
        self.losses.flush()
        if self.in_use:
            self.close(timeout_s, future, exiting=True)
        else:
            future.set_result(None)
