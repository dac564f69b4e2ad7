"""What holders may never count as held, and which losses must be reported to them."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.simulation.network import SimulatedConnector
from tests.simulation.record import SAME_S, Belief, Holding
from tests.simulation.server_rules import ServerRules
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.loss_events import HeldBack, LoopCallback
from wheel_lock.errors import LockLost, LockUnavailable, LossReason, text_of
from wheel_lock.guards import Fence
from wheel_lock.lease import EXTENDING, Lease, State
from wheel_lock.net.connector import is_refused
from wheel_lock.observe import LostEvent
from wheel_lock.options import lock_name
from wheel_lock.quorum.engine import QuorumEngine
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.rows import Rows

if TYPE_CHECKING:
    from tests.simulation.processes import Process

_TICK_S = 0.01
_GRACE_S = 2 * _TICK_S  # time in which a thread that could not run handles what it has missed
_LONGEST_PAUSE = 1.5  # limit of the pause between two rounds, in fallback intervals
_LONGEST_LIMIT_S = 3.0  # the longest limit of a caller
_LATE_S = 0.6  # tolerance for a caller's limit
_LEFT_S = 0.2  # time in which a replaced master is left
_RECENT = 8  # number of ended leases that are checked for a return


class HolderRules(ServerRules):
    """The rules of the holders' side, too."""

    def look(self, process: Process) -> None:
        """The process has done something: note what it counts as held from now on."""
        now, local, settings = self.now, process.clock.now(), process.world.settings
        active = self._active[process]
        self._follow_made(process)
        if settings.topology == "sentinels":
            for engine in process.engines:
                self._note_master(engine)
        for context in process.contexts:  # this runs after each event, and most find nothing
            for place, holder in context.holders.items():
                if holder.leases.held or holder.direct.claim:
                    for lease in self._without_making(process, holder) if settings.looks_late else holder.held:
                        if lease not in active:
                            self._held(process, place, lease, local)
            if context.votes is not None:
                self._check_rounds(context.votes)
            if settings.context["max_held"] or settings.context["max_waiting"]:
                self._check_room(context)
        for lease, belief in tuple(active.items()):
            if lease.is_valid(local):
                if lease.deadline != belief.deadline:
                    if now > belief.until + SAME_S:
                        self.broken("S5", f"the lease of {belief.name!r} came back after {now - belief.until:.4f} s")
                    self._deadline_moved(belief, lease.deadline)
            else:
                belief.open = False
                belief.let_go = lease.state in (State.RELEASING, State.RELEASED, State.EXPORTED)
                belief.until = min(belief.until, now)
                del active[lease]
                self._ended[process].append(belief)
                self._scheduler.note(
                    "%s: no longer holds %s with %s: %s %s",
                    *(process.name, belief.name, belief.token, lease.state.name, lease.loss),
                )
        if len(self.candidates) > 1:
            self._check_leaders()
        for belief in self._ended[process][-_RECENT:]:
            lease = belief.lease
            if lease.state <= EXTENDING and lease.group.alive:
                if lease.is_valid(local):
                    self.broken("S5", f"the lease of {belief.name!r} with {belief.token!r} came back")
                elif local > self._report_by(process, lease.deadline) + _GRACE_S:
                    self.broken("S5", f"the lease of {belief.name!r} with {belief.token!r} is over, and not lost")

    def _without_making(self, process: Process, holder: Engine) -> Iterator[Lease]:
        """Return the held leases; in place of those that are not made, shadows that only the rules know."""
        for entry in (*holder.direct.young(), *holder.leases.held.entries()):
            if not isinstance(entry, Rows):
                yield entry
            elif entry.made:
                yield from entry.held
            else:
                yield from self._shadows[process].setdefault(entry, entry._new_leases())

    def _follow_made(self, process: Process) -> None:
        """Have real leases in the place of the shadows of those that have been made."""
        shadows, active = self._shadows[process], self._active[process]
        for rows in [rows for rows in shadows if rows.made]:
            for shadow, lease in zip(shadows.pop(rows), rows.leases, strict=True):
                if (belief := active.pop(shadow, None)) is not None:
                    belief.lease = lease
                    active[lease] = belief
                    self._begun.add(lease)

    def _held(self, process: Process, host: str, lease: Lease, local: float) -> None:
        """An engine has a lease among the held ones of which no belief is known."""
        if lease.is_valid(local):
            self._begin(process, host, lease)
        elif lease.state <= EXTENDING and lease.loss is None and lease not in self._begun:
            self.broken("S5", f"{lease.key!r} was granted {local - lease.deadline:.4f} s after its deadline")

    def _begin(self, process: Process, host: str, lease: Lease) -> None:
        kind: str = lease.group.lock_type.name  # type: ignore[attr-defined]
        belief = Belief(lease, process, lease.key, lease.token, kind, self.now, host=host)
        self._deadline_moved(belief, lease.deadline)
        self._check_copies(belief)
        self._active[process][lease] = belief
        self._begun.add(lease)
        self._believed.add(belief.token)
        self._beliefs.append(belief)
        self._scheduler.note("%s: holds %s with %s until %.3f", process.name, lease.key, lease.token, belief.until)

    def _check_copies(self, belief: Belief) -> None:
        """A grant counts as held: as many replicas as its context waits for must have got it."""
        least = belief.process.world.settings.context["min_replicas"]
        if least and belief.token not in self._unconfirmed:
            self.exercised["copies"] += 1
            spans = self._spans.get((belief.host, belief.name, belief.token), ())
            copies: set[str] = set().union(*(span.copies for span in spans))
            taken_away = any(span.tampered and span.end <= self.now for span in spans)
            if len(copies) < least and not taken_away:
                self.broken("copies", f"{belief.name!r} was granted to {belief.token!r}, and no replica has it")

    def _deadline_moved(self, belief: Belief, deadline: float) -> None:
        """A deadline has moved: the server must have promised as much."""
        before, belief.deadline = belief.until, deadline
        belief.until = until = belief.process.clock.moment_of(deadline)
        if isinstance(belief.lease, QuorumLease):
            self._check_votes(belief, belief.lease)
            return
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        latest = {span.place: span.promised for span in spans}
        promised = max(latest.values(), default=0.0)
        if until > promised + SAME_S and not any(span.tampered for span in spans):
            who = f"{belief.process.name} holds {belief.name!r}"
            self.broken("S1", f"{who} until {until:.4f}, the server says {promised:.4f}")
        if until > before:  # an extension that is about to be sent may shorten what is believed
            self._check_master(belief, latest)

    def _note_master(self, engine: Engine) -> None:
        """Note since when an engine knows which server Sentinels call the master."""
        opinion = engine.connector.opinions.belief  # type: ignore[union-attr]
        if opinion is not None and self._named.get(engine, ((), 0.0))[0] != opinion.servers:
            if engine in self._named:
                self._left_a_master.add(engine)
            self._named[engine] = opinion.servers, self.now

    def _check_master(self, belief: Belief, promises: dict[str, float]) -> None:
        """A deadline has moved: not because of a master that its holder knows to be replaced."""
        process = belief.process
        for engine in [context.engines[belief.host] for context in process.contexts if belief.host in context.engines]:
            if engine not in self._named or belief.lease not in engine.leases.held:
                continue
            servers, since = self._named[engine]
            places = [place for place, promised in promises.items() if belief.until <= promised + SAME_S]
            self.exercised["replaced"] += engine in self._left_a_master
            if (
                places
                and belief.host not in places
                and not any(server[0] in places for server in servers)
                and self.now > since + _LEFT_S
                and not any(end >= since for _, end in process.stops)
            ):
                who = f"{process.name} has known {servers} to be the master for {self.now - since:.3f} s"
                self.broken("replaced", f"{who}, and holds {belief.name!r} because of {places}")

    def _check_votes(self, belief: Belief, lease: QuorumLease) -> None:
        """A majority counts as held: the masters must have promised it."""
        promises = []
        for vote in lease.votes:
            if vote.lease is not None:
                host = vote.node.connector.describe()
                spans = self._spans.get((host, belief.name, vote.lease.token), [])
                promises += [max(span.promised for span in spans)] if spans else []
        promises.sort(reverse=True)
        self.exercised["S1"] += 1
        promised = promises[lease.quorum - 1] if len(promises) >= lease.quorum else 0.0
        if belief.until > promised + SAME_S:
            who = f"{belief.process.name} holds {belief.name!r}"
            self.broken("S1", f"{who} until {belief.until:.4f}, a majority says {promised:.4f}")

    def _check_leaders(self, *known: Any) -> None:
        """Look for a second leader. ``known`` are candidates that say to be leaders.

        The others are not asked, for that would change something.
        """
        leaders = [
            f"{process.name} until {process.clock.moment_of(lease.deadline):.4f}"
            for process, candidate in self.candidates
            if process.alive
            and (leadership := candidate._leadership) is not None
            and not leadership._given_up
            and (lease := leadership._lock._own_or_latest()) is not None
            and (candidate in known or lease.is_valid(process.clock.now()))
            and lease.key not in self.tampered
            and not self._was_replaced(process, lease)
        ]
        if len(leaders) > 1:
            self.broken("leader", f"there are several leaders: {leaders}")

    def leads(self, candidate: Any) -> None:
        """A candidate says that it is the leader now."""
        self._check_leaders(candidate)

    def _check_room(self, context: Any) -> None:
        """A context keeps its limits."""
        for engine in context.holders.values():
            options = engine.options
            if options.max_held is not None and len(engine.held) > options.max_held:
                self.broken("limits", f"{len(engine.held)} locks are held, and not {options.max_held}")
            if options.max_waiting is not None:
                waiting = engine.wait_queues.count
                if waiting > options.max_waiting:
                    self.broken("limits", f"{waiting} callers wait, and not {options.max_waiting}")

    def _check_rounds(self, votes: QuorumEngine) -> None:
        """Those who wait for a majority have another round soon, however long the last one took."""
        now = votes.timer.clock.now()
        for waiter in votes.wait_queues.pollers:
            if waiter.tick >= 0:
                self.exercised["rounds"] += 1
                most_s = _LONGEST_PAUSE * max(votes.options.fallback_s, waiter.options.retry_every_s or 0.0)
                pause_s = votes.timer.scale.seconds(waiter.tick) - now
                if pause_s > most_s + _GRACE_S:
                    self.broken(
                        "rounds", f"{waiter.name!r} is wanted again in {pause_s:.3f} s, and not in {most_s:.3f} s"
                    )

    def forked(self, process: Process) -> list[Belief]:
        """A process has forked: what follows is the child, which holds nothing. Return the beliefs of the parent."""
        self.trouble(0.0)  # what its parent is granted from now on has no holder
        beliefs = list(self._active[process].values())
        self._parents.update(dict.fromkeys([belief.token for belief in beliefs], self.now))
        self.died(process)
        self._active[process], self._shadows[process] = {}, {}
        self._waiters = {wait: None for wait in self._waiters if wait.process is not process}
        self._holdings = [entry for entry in self._holdings if entry[1].process is not process]
        for holding in self._with_losses:
            holding.interrupted = holding.interrupted or holding.process is process
        return beliefs

    def promised(self, belief: Belief) -> float:
        """Return until when the servers say that a key belongs to a token, 0 if they have never said it."""
        spans = self._spans.get((belief.host, belief.name, belief.token), [])
        return max((span.promised for span in spans), default=0.0)

    def beliefs_of(self, process: Process) -> list[Belief]:
        """Return what a process believes to hold."""
        return list(self._active.get(process, {}).values())

    def died(self, process: Process) -> None:
        """A process was killed: its beliefs end."""
        for belief in self._active.pop(process, {}).values():
            belief.open = False
            belief.until = min(belief.until, self.now)

    def _check_cause(self, process: Process, event: LostEvent) -> None:
        """A lease was lost: for a reason that is true."""
        name = lock_name(event.name, b"")
        world = process.world
        if event.reason in (LossReason.KEY_GONE, LossReason.TAKEN) and len(world.hosts) == 1:
            leases = [
                lease for lease, _, _ in self._holdings if lease.loss is event.reason and lease.name == event.name
            ]
            spans = [self._spans[world.hosts[0].store, name, lease.token] for lease in leases[-1:]]
            if any(len(some) == 1 and some[0].end > self.now and not some[0].tampered for some in spans):
                self.broken("kept", f"{event.name!r} was lost ({event.reason}), and its key is there")
        if not self._is_well or world.settings.slow_processes or name in self.tampered:
            return
        self.exercised["kept"] += 1
        if event.reason in (LossReason.NOT_CONFIRMED, LossReason.KEY_GONE, LossReason.TAKEN):
            self.broken("kept", f"{event.name!r} was lost ({event.reason}), and nothing was wrong")

    def loss_reported(self, holding: Holding, event: LostEvent) -> None:
        """A loss was reported to a holder."""
        process = holding.process
        self.exercised["S5"] += 1
        self._with_losses[holding] = None
        self._check_cause(process, event)
        self._scheduler.note("%s: hears of the loss of %s: %s", process.name, event.name, event.reason)
        holding.reports[event.name] += 1
        holding.reported_at[event.name] = self.now
        if holding.reports[event.name] > 1:
            self.broken("S5", f"the loss of {event.name!r} was reported {holding.reports[event.name]} times")
        # A caller that has begun to release, or was never granted all that was asked for together, holds nothing, so no
        # news can come too late.
        believed = any(
            not belief.let_go and belief.lease.name == event.name and _callback(belief.lease) == holding.on_lost
            for belief in (*self._ended[process], *self._active[process].values())
        )
        closed = event.reason is LossReason.CONTEXT_CLOSED
        if believed and not closed and event.at > self._report_by(process, event.deadline):
            self.broken(
                "S5", f"the loss of {event.name!r} was reported {event.at - event.deadline:.3f} s after its deadline"
            )

    def _report_by(self, process: Process, deadline: float) -> float:
        """Return until when a loss must be reported, by the clock of its process."""
        clock = process.clock
        moment = clock.moment_of(deadline)
        if not process.world.settings.slow_processes and not any(
            start <= moment and end >= moment - 3 * _TICK_S for start, end in process.stops
        ):
            return deadline
        turned_at = process.turned_at
        for _ in range(2):  # the first turn at or behind the deadline, and the first one 20 ms later
            place = bisect.bisect_left(turned_at, deadline)
            if place == len(turned_at):
                return float("inf")
            deadline = turned_at[place] + _GRACE_S
        return deadline - _GRACE_S

    def released(self, lease: Lease, *, answered: bool) -> None:
        """A release has returned. ``answered`` says that no connection of its process has broken meanwhile."""
        self.exercised["S6"] += 1
        self._released[lease.token] = self.now
        if isinstance(lease, QuorumLease):
            self._of_majority.add(lease.token)
            return
        self.exercised["released"] += 1
        released = lease.token
        for (host, key, token), spans in self._spans.items():
            # Without its reply a release is repeated, and takes it that its first attempt removed the lock.
            # A failover may bring it back, and a replaced master keeps it.
            if token != released or any(span.released for span in spans):
                continue
            if answered or self._is_well or any(span.end > self.now and span.place == host for span in spans):
                self.broken("released", f"{key!r} was released, and its key was still there, or had gone before")

    def found_lost(self, lease: Lease | None, error: LockLost) -> None:
        """A release has found that the lock was lost: not because an attempt of this very release had removed it."""
        if (
            lease is None
            or isinstance(lease, QuorumLease)
            or error.reason not in (LossReason.KEY_GONE, LossReason.TAKEN)
        ):
            return
        for (_, key, token), spans in self._spans.items():
            if token == lease.token and spans[-1].released and not spans[-1].tampered:
                self.broken("released", f"{key!r} was released, and its holder got the error that it was lost")

    def downgraded(self, process: Process, writer: Lease, reader: Lease | None) -> None:
        """A writer goes on as a reader, without a gap: so its lease had not ended by then."""
        ended = process.clock.moment_of(writer.deadline)
        for belief in self._beliefs:
            if belief.lease is reader and belief.start > ended + SAME_S:
                self.broken("S5", f"{writer.name!r} was downgraded {belief.start - ended:.3f} s after its deadline")

    def writes(self, process: Process, lease: Lease) -> None:
        """A holder, or one that was a holder, writes into what its lock protects."""
        name, fence = text_of(lease.key), lease.fence or 0
        newest = max((each.fence or 0 for each in self.written[name]), default=0)
        passed = self.register.write(Fence(name, fence))
        self.exercised["guarded"] += 1
        self._scheduler.note("%s: writes %s with fence %d: %s", process.name, name, fence, passed)
        if (
            any(passes != (fence >= newest) for passes in passed)
            or self.register.read(name) != [max(fence, newest)] * 2
        ):
            self.broken("guarded", f"{name!r} was written with {fence}, the newest was {newest}: {passed}")
        if all(passed):
            self.written[name].append(lease)

    def holds(self, lock: Any, holding: Holding, terms: dict[str, Any]) -> None:
        """A caller has got a lock, on these terms."""
        lease = lock._own_or_latest()
        to_tell = getattr(lease and _callback(lease), "__self__", None)
        if lease is not None and lease.state <= EXTENDING and not isinstance(to_tell, Holding):
            self.broken("S5", f"{lease.name!r} was granted, and its holder would not be told of its loss")
        if lease is not None and _callback(lease) == holding.on_lost:  # else the caller had it already
            self._holdings.append((lease, holding, terms))
            holding.got.add(lease.name)
            self.look(holding.process)  # the caller may have acquired it without the timer's thread
            # In the turn of the grant a context may be closed, or a hold limit come, and the holder is notified.
            if lease not in self._begun and lease.loss not in (LossReason.CONTEXT_CLOSED, LossReason.HOLD_LIMIT):
                self.broken("S5", f"{lease.name!r} was granted, and was never held")

    def limit_kept(self, what: str, limit: float, took: float) -> None:
        """A call with a limit has ended. An attempt without a connection takes half a second, even if less is left."""
        self.exercised["limits"] += 1
        if took > limit + _LATE_S:
            self.broken("limits", f"{what} took {took:.3f} s, its limit was {limit:.3f} s")

    def refused(self, engine: Any, name: Any, limit: float | None, took: float, error: LockUnavailable) -> None:
        """A caller that waits hears that there is no server. Where it never was, that takes as long as its own limit.

        Its attempt may be shared, and end with another one's limit for an answer, unless that is longer than all others.
        """
        if (
            limit is not None
            and engine.nodes_needed is None
            and engine.options.response_timeout_s > _LONGEST_LIMIT_S
            and isinstance(engine.connector, SimulatedConnector)
            and engine.router.renewer.acquiring_node.server is None
        ):
            self.exercised["absent server"] += 1
            if is_refused(error) and took < limit - _GRACE_S:
                self.broken("absent server", f"{name!r} was given up after {took:.3f} s of {limit:.3f} s: {error}")


def _callback(lease: Lease) -> Any:
    """Return the callback that a caller has given for the loss of a lease."""
    on_lost = lease.on_lost
    on_lost = on_lost.on_lost if isinstance(on_lost, HeldBack) else on_lost
    return on_lost.args[-1] if isinstance(on_lost, LoopCallback) else on_lost
