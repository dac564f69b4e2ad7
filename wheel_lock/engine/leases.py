"""The lease table: the one place where a lease of an engine begins and ends.

The order of effects in :meth:`LeaseTable.grant` and :meth:`LeaseTable.mark_lost` is a safety rule: see docs/design.md,
"Truth about a lease".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from wheel_lock.block import Block
from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import LeaseListener, PendingSwap, Router, group_of, shared_group
from wheel_lock.engine.loss_events import log_illegal
from wheel_lock.engine.state import EngineState
from wheel_lock.errors import (
    ContextClosed,
    LockAlreadyHeld,
    LockLost,
    LockNotHeld,
    LossReason,
    TooManyLocks,
    WheelLockError,
    quoted,
)
from wheel_lock.lease import (
    EXTENDING,
    NO_OWNER,
    Event,
    Lease,
    Limits,
    Owner,
    State,
    grant_all,
    latest_grant,
    local_deadline,
    release_all,
)
from wheel_lock.net.node import Node
from wheel_lock.options import MAX_SECONDS, LockOptions
from wheel_lock.rows import Rows, unmade
from wheel_lock.runtime.ends import ANEW, LOSSES, End
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.timer import HashedWheelTimer

if TYPE_CHECKING:  # imported by those who use it only
    from wheel_lock.keeper.keeping import Keeping

_LATEST = 1024  # held leases that a nested acquire is looked for among: some 0.1 ms

# A lease that was lost for one of these reasons may still exist at the server.
_UNDONE = (
    LossReason.NOT_CONFIRMED,
    LossReason.RENEWAL_LIMIT,
    LossReason.HOLD_LIMIT,
    LossReason.ABANDONED,
    LossReason.INTERNAL_ERROR,
)


class Held(dict[Lease, None]):
    """The held leases, in order of acquisition. Its own keys are leases, and rows for those of theirs that are held.

    To iterate makes the leases of all rows. Other threads use its length, ``entries`` and ``leases``.
    """

    __slots__ = ("_in_rows",)

    def __init__(self) -> None:
        super().__init__()
        self._in_rows = 0  # the number of leases in rows, less the number of rows

    def add(self, leases: Sequence[Lease]) -> None:
        """Hold leases, or rows as they are."""
        if unmade(leases):
            more = len(leases) - 1
            self[cast("Lease", leases)] = None  # as an entry
            self._in_rows += more  # nothing comes between, as in remove()
        else:
            self.update(dict.fromkeys(leases))

    def remove(self, lease: Lease, default: None = None) -> None:
        """Hold a lease no more; it may have been removed already."""
        rows = lease.rows
        if rows is None:
            self.pop(lease, None)
            return
        lease.rows = None
        rows.left -= 1
        if rows.left:
            self._in_rows -= 1
        else:
            self.pop(rows, None)

    def clear(self) -> None:
        super().clear()
        self._in_rows = 0

    def entries(self, most: int | None = None) -> list[Lease | Rows]:
        """Return the leases, and the rows as they are: all, or the first ``most`` of them."""
        return [*itertools.islice(dict.keys(self), most)]

    def leases(self) -> list[Lease]:
        """Return the leases, those of rows included."""
        return list(itertools.chain.from_iterable(map(leases_of, self.entries())))

    def __contains__(self, lease: object) -> bool:
        return super().__contains__(lease) or getattr(lease, "rows", None) is not None

    def __len__(self) -> int:
        return super().__len__() + self._in_rows

    def __iter__(self) -> Iterator[Lease]:
        return itertools.chain.from_iterable(map(leases_of, super().__iter__()))

    def __reversed__(self) -> Iterator[Lease]:
        return itertools.chain.from_iterable(reversed(leases_of(entry)) for entry in super().__reversed__())


def leases_of(entry: Lease | Rows) -> Sequence[Lease]:
    """Return the held leases that an entry of :class:`Held` stands for."""
    return (entry,) if isinstance(entry, Lease) else entry.held


class LeaseTable:
    """Admits, grants and ends the leases of one engine. Timer's thread only.

    Args:
        state: The state that the parts of the engine share.
        report_lost: Reports lost leases to the log and to their holders.

    Attributes:
        acquiring: The number of leases that are being acquired, as far as ``max_held`` counts them.
        held: The held leases, in order of acquisition.
        router: The router of the engine, which sets it once.
        keeping: That of the state.
        listener: Called for leases that end. Set once, by the engine.
        unhold: Removes a lease, its first argument, from ``held``.
        on_ended: Called when leases have ended at the server, too, and when a connection was made. Set once, by the engine.
        swaps: Swaps whose outcome is not known, by the new lease.
        granted_at: When the latest grant was read, in seconds of the timer's clock.
    """

    router: Router
    listener: LeaseListener
    on_ended: Callable[[], object]

    def __init__(self, state: EngineState, report_lost: Callable[[Sequence[Lease]], object]) -> None:
        self.state = state
        self.keeping: Keeping | None = state.keeping
        self.timer: HashedWheelTimer = state.timer
        self.report_lost = report_lost
        self.held: Held = Held()
        self.acquiring: int = 0
        self.swaps: dict[Lease, PendingSwap] = {}
        self.granted_at: float = 0.0
        self.unhold: Callable[[Lease, None], object] = self.held.remove

    def end(self, how: End, error: Exception) -> None:
        """Lose the held leases, if that is an end of theirs; in a forked child drop them, because they are the parent's."""
        try:
            if how in LOSSES:
                self.mark_lost(list(self.held), LOSSES[how])
        finally:
            if how in ANEW:
                self.held.clear()
                self.acquiring = 0

    # -- a lease begins ----------------------------------------------------------------------------------------------

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
        if owner.heir is NO_OWNER or not self.held:
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

    def grant(self, leases: Sequence[Lease], options: LockOptions, sent_at: float) -> bool:
        """Begin to hold leases that the server has granted.

        Args:
            leases: PENDING leases of one group.
            options: The options of the acquire.
            sent_at: When the acquire was about to be sent, in seconds of the timer's clock.

        Returns:
            False if the leases, or their hold limit, have run out before the reply was read.
        """
        state, timer, timeout_s = self.state, self.timer, options.timeout_s
        if state.closed:
            return False
        now, limits = timer.clock.now(), None
        # Within half of its time a lease without a hold limit was never granted too late.
        maybe_late = now >= sent_at + timeout_s / 2 or options.max_hold_s is not None
        if maybe_late and now >= latest_grant(sent_at, timeout_s, options.max_hold_s, timer.scale.tick_s):
            return False
        if options.renew_every_s is None or options.max_renewals is not None or options.max_hold_s is not None:
            hold_until = float("inf") if options.max_hold_s is None else sent_at + options.max_hold_s
            limits = Limits(0 if options.renew_every_s is None else options.max_renewals, hold_until)
        if limits is None and type(leases) is Rows and unmade(leases):
            leases.granted(sent_at, local_deadline(sent_at, timeout_s))
            Block(leases)  # before they are in `held`, where other threads find them
        elif not grant_all(leases, sent_at, timeout_s, limits):
            self.mark_lost(leases, LossReason.INTERNAL_ERROR)
            return False
        if len(leases) == 1:
            self.held[leases[0]] = None
        else:
            self.held.add(leases)
        state.counters.acquired += len(leases)
        self.granted_at = now
        group = shared_group(leases)
        group.begin(leases, sent_at)
        group.renewer.granted(leases, now)
        self.router.watch_master()
        return True

    def adopt_grant(self, lease: Lease, sent_at: float) -> None:
        """Begin to hold a lease whose caller has read the grant itself, on the direct path.

        Args:
            lease: A lease that is HELD, or PENDING if its caller was interrupted behind the reply. Its grant is counted.
            sent_at: When the acquire was about to be sent, in seconds of the timer's clock.
        """
        if lease in self.held:
            return  # the thread has died in here, and all leases are lost
        self.held[lease] = None
        lease.try_transition(Event.GRANTED)
        group = group_of(lease)
        group.renewer.confirmed_at = max(group.renewer.confirmed_at, sent_at)
        group.begin([lease], sent_at)
        if self.keeping is not None:
            self.keeping.begin((lease,))  # there may have been no memory for a record when it was sent
        if lease.loss is not None:
            self.mark_lost([lease])

    def reject(self, leases: Sequence[Lease], clean_up: bool, node: Node | None = None) -> None:
        """End leases that were never held.

        Args:
            leases: The leases.
            clean_up: True if the server may have granted them, so that a release follows.
            node: The connection of the acquire; by default that of their group.
        """
        for lease in leases:
            if lease.state is State.PENDING:
                lease.transition(Event.REJECTED)
        if self.keeping is not None:
            (self.keeping.drop_later if clean_up else self.keeping.drop)(leases)
        if clean_up:
            self.clean_up(leases, node)

    def clean_up(self, leases: Iterable[Lease], node: Node | None = None) -> None:
        """Release, owner-checked, leases that are not held any more, behind all commands sent to ``node``."""
        for group, some in itertools.groupby(leases, group_of):
            group.renewer.clean_up(list(some), node)

    # -- a lease ends ------------------------------------------------------------------------------------------------

    def check_owned(self, lease: Lease) -> WheelLockError | None:
        """Return why ``lease`` cannot be released or extended, or None if it can. A lapsed lease is marked lost."""
        if not lease.group.alive:
            return LockLost(lease.name, lease.loss or LossReason.FORKED)
        if lease.state <= EXTENDING:
            if lease.loss is None and self.timer.clock.now() < lease.deadline:  # as is_valid()
                return None
            self.mark_lapsed(lease)
        if lease.state is State.LOST or lease.loss is not None:
            return lease.lost_error()
        if lease.state > EXTENDING:
            return LockNotHeld("Cannot release or extend a lock that is not held", lease.name)
        return None

    def begin_release(self, lease: Lease, event: Event = Event.RELEASE) -> WheelLockError | None:
        """End the renewal of a held lease that its holder releases or exports; return why that is impossible, or None."""
        error = self.check_owned(lease)
        if error is None:
            group_of(lease).renewer.untrack(lease)
            lease.transition(event)
            self.unhold(lease, None)
            if event is Event.EXPORT and self.keeping is not None:
                self.keeping.hand_over(lease)  # before the text, by which another process may adopt it, is returned
        return error

    def begin_release_many(
        self, leases: Iterable[Lease], begun: list[Lease], losses: dict[str | bytes, LossReason]
    ) -> None:
        """Like :meth:`begin_release` for many leases, at a fraction of the cost.

        Args:
            leases: The leases. Those that are not held are passed over.
            begun: Receives each lease of which the renewal is ended, before that.
            losses: Receives the reasons of those that are lost.
        """
        cancel, now = self.timer.wheel.cancel, self.timer.clock.now()

        def end_renewal(lease: Lease) -> None:
            group_of(lease).renewer.untrack(lease)

        for lease in release_all(leases, now, begun.append, cancel, end_renewal, self.unhold):
            if isinstance(error := self.check_owned(lease), LockLost):
                losses[lease.name] = error.reason

    def mark_lapsed(self, lease: Lease) -> None:
        """Mark a lease lost whose deadline has passed."""
        self.mark_lost([lease])
        self.clean_up([lease])  # an unconfirmed renewal may have prolonged it after all

    def release_done(self, leases: Sequence[Lease]) -> None:
        """End leases that the server has released."""
        counters, now = self.state.counters, self.timer.now
        counters.released += len(leases)
        if self.keeping is not None:
            self.keeping.drop(leases)
        for lease in leases:
            lease.transition(Event.RELEASED)
            lease.forget_callback()
            counters.held.add(now - lease.acquired_at)
        self.on_ended()

    def release_unknown(self, leases: Sequence[Lease]) -> None:
        """End leases whose release has an unknown outcome: at the server they expire."""
        releasing = [lease for lease in leases if lease.state is State.RELEASING]
        for lease in releasing:
            lease.transition(Event.RELEASED)
            lease.forget_callback()
            self.state.counters.held.add(self.timer.now - lease.acquired_at)
        if self.keeping is not None:
            self.keeping.drop_later(releasing)
        # An extension would keep the key for far longer than the caller of a failed release expects.
        now = self.timer.now
        kept = [lease for lease in releasing if lease.max_expiry > now and group_of(lease).lock_type.unique_tokens]
        self.clean_up(kept)

    def mark_lost(self, leases: Iterable[Lease], reason: LossReason | None = None) -> None:
        """End leases that were not released, and report each loss once; leases that have ended are skipped.

        Args:
            leases: The leases.
            reason: The reason of the loss; by default, the reason for which each lapses now.
        """
        lost: list[Lease] = []
        try:
            for lease in leases:
                if not lease.group.alive or (lease.state > EXTENDING and lease.state is not State.RELEASING):
                    continue
                lease.loss = why = lease.loss or reason or lease.lapse_reason()
                group_of(lease).renewer.untrack(lease)
                self.unhold(lease, None)
                lease.transition(Event.LOSE)
                lost.append(lease)
                self.state.counters.lost[why] += 1
                self.state.counters.held.add(self.timer.now - lease.acquired_at)
        finally:  # a lease that is lost already is skipped the next time, so it would not be reported
            self._end_lost(lost)

    def _end_lost(self, lost: list[Lease]) -> None:
        if lost:
            if self.keeping is not None:
                self.keeping.drop_later(lost)
            self.report_lost(lost)
            for lease in lost:
                if not self.state.exiting:
                    lease.owner.lost(lease)
                if lease.max_expiry > self.timer.now and lease.loss in _UNDONE:
                    # An extension would keep the key for far longer than a holder expects. Not at once: the node may be
                    # restarting.
                    self.timer.post(partial(self.clean_up, [lease]), self.state)
                self.listener.ended(lease)
            self.on_ended()

    def abandon_later(self, leases: Sequence[Lease]) -> None:
        """End leases whose owners have ended, behind all messages: one of them may be an owner's last release."""
        if leases:
            self.timer.post(partial(self._abandon, leases), self.state)

    def _abandon(self, leases: Sequence[Lease]) -> None:
        self.mark_lost([lease for lease in leases if lease.state <= EXTENDING], LossReason.ABANDONED)

    def mark_illegal(self, lease: Lease, event: Event) -> None:
        """Give up a lease after a transition that its state does not allow. That is a bug; the log says where."""
        log_illegal(lease, event)
        self.give_up([lease])
        if event in (Event.GRANTED, Event.CONFIRMED) and group_of(lease).lock_type.unique_tokens:
            self.clean_up([lease])  # the server has just said that its key is alive

    def give_up(self, leases: Sequence[Lease]) -> None:
        """End leases that a failure of the library's own code has left inconsistent; ended ones stay as they are."""
        self.reject(leases, False)
        self.release_unknown(leases)
        self.mark_lost(leases, LossReason.INTERNAL_ERROR)


class BelowEngine:
    """A failure domain right below its engine."""

    __slots__ = ()

    table: LeaseTable

    @property
    def above(self) -> EngineState:
        return self.table.state
