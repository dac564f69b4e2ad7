"""The direct path: a free lock is acquired and released by the calling thread itself, on a connection of its own.

The engine's thread costs a caller two switches of threads for each reply. Where one thread takes one lock at a time they
are most of what a lock costs. So a caller that finds the *path* free sends its SET, and later its release, itself, and
reads the replies. The engine's state is not touched: what the path has is one :class:`DirectHold`, which belongs to the
caller until the timer's thread *takes it over*. From then on the lease is like any other: on the wheel, renewed, watched.
Which of the two has it is decided in one atomic step for each phase of the hold.

The timer's thread takes a hold over

* as soon as anything about any lock is submitted to the engine, a wait of another thread for instance;
* when it finds the same hold a second time in one of its looks, which come every 0.1 s while the path is in use: long
  before the first renewal, because locks that are renewed sooner do not use the path;
* when the context is closed, or its timer stops or dies.

All that is unusual goes to the engine, with what is known: a reply other than OK, no reply, a reply that came late, a
connection that broke. It continues as if it had sent the request itself.

A hold goes through phases. Each phase is ended once, by the caller or by the timer's thread, in one atomic step, which is
``dict.setdefault``: whoever finds the own value there has ended the phase, and is the only one who changes the lease next::

    phase      ended with   by      what follows
    ---------  -----------  ------  ---------------------------------------
    ACQUIRING  HOLDING      caller  the lease is held
               LEFT         caller  the engine goes on with the wait
               TAKEN        timer   the wait is given up
    HOLDING    [RELEASING]  caller  the caller sends the release
               TAKEN        timer   the engine holds the lease
    RELEASING  LEFT         caller  the lease is released
               TAKEN        timer   the engine goes on with the release

The timer's thread ends ACQUIRING and RELEASING only if the caller was interrupted, has handed them over, or is overdue. An
overdue caller may go on all the same, so it changes its lease by ``Lease.try_transition``, which has no effect when it is
too late.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, TypeVar

from wheel_lock.engine.direct.connection import DirectConnection, NoReply, NotSent, Opener
from wheel_lock.engine.future import Future, end_quietly, noop
from wheel_lock.engine.interfaces import DirectLocks, Wait, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.requests.release import Release, release
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import ContextClosed, LockTimeout, LockUnavailable, LossReason, quoted
from wheel_lock.lease import HELD, Event, Lease, local_deadline
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.observe.stats import Counters
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.failures import guarded

LOOK_S = 0.1  # between two looks of the timer's thread while the path is in use
_LONGEST_LOOKS = 100  # at a hold that waits for a reply: far more than its time limit
_LEAST_INTERVAL_S = 4 * LOOK_S  # of renewals: taken over after two looks at the latest, a lease is renewed on time
_LEAST_LIMIT_S = 0.05  # of callers; a lower one may pass before the reply, which would cost the connection
_REST = 1000  # acquires that do not use the path after another thread has come in between

ACQUIRING, HOLDING, RELEASING = PHASES = ("acquiring", "holding", "releasing")
LEFT, TAKEN = "left", "taken"

_LONGEST_S = 2.0  # that a caller waits for a reply itself: far less than the looks before its hold is ended

F = TypeVar("F", bound=Future[None])


@dataclass(eq=False, repr=False, slots=True)
class DirectHold:
    """One lock on the direct path, from its acquire to its release, or until the timer's thread takes it over.

    Attributes:
        path: The path.
        wait: The caller's wait, which the engine continues if the path cannot.
        lease: Its lease. Until the caller has ended ACQUIRING, no other thread uses it.
        connection: The connection of its requests.
        ends: How its phases have ended, by phase.
        number: Its number among the holds of the path.
        looks: How often the timer's thread has found it on the path.
        sent_at: When its acquire was about to be sent, in seconds of the timer's clock; inf if it was not.
        asked_at: The same of its latest request.
        took_s: The seconds until it was granted.
        held_s: The seconds until it was released.
    """

    path: DirectPath
    wait: FirstTry
    lease: Lease
    connection: DirectConnection
    ends: dict[str, object] = field(default_factory=dict)
    number: int = -1
    looks: int = 0
    sent_at: float = math.inf
    asked_at: float = math.inf
    took_s: float = 0.0
    held_s: float = 0.0

    # -- on the thread of its caller ---------------------------------------------------------------------------------

    def acquire(self) -> bool:
        """Send the acquire, and wait for the reply.

        Returns:
            True if it was granted; False if the engine goes on with the wait, whose future is to be waited for.
        """
        path, wait, lease, connection = self.path, self.wait, self.lease, self.connection
        state, clock, claim = path.state, path.clock, path.claim
        claim[lease] = self
        # Whoever finds another there does not use the path: never two, if need be none. And the path's connection is looked
        # at behind the claim: one that is not the path's any more is closed as soon as no claim is for it.
        if len(claim) > 1 or path.connection is not connection:
            self._leave_acquiring()
            path.leave(self)
            state.submit(wait.begin)
            return False
        path.uses = self.number = path.next_number()  # atomic: overdue here, it may come back to a path in use
        if not path.watched:
            path.watch()
        group = group_of(lease)
        request = EXCLUSIVE.plain_try(lease, group.ttl)
        assert request is not None
        self.sent_at = self.asked_at = wait.sent_at = sent_at = clock()
        if state.keeping is not None:
            state.keeping.begin((lease,))
        if self.ends:  # overdue: the connection may be another hold's by now. From here on it is dropped, see go_on()
            raise self.gone()
        until = sent_at + min(wait.suspicion_s, _LONGEST_S)
        if wait.caller_until is not None and wait.caller_until < until:
            until = wait.caller_until
        wait.sent()
        try:
            reply: Reply | NoReply = connection.ask(request, until)
        except NoReply as error:
            reply = self._distrust(error)
        if reply != b"OK" and reply is not None and not isinstance(reply, (NoReply, ServerError)):
            reply = self._distrust(NoReply("no reply to an acquire"))
        self.took_s = took_s = clock() - sent_at
        # Within half of its time a lease was not granted too late.
        if reply == b"OK" and took_s < group.timeout_s / 2:
            lease.acquired_at = sent_at
            lease.own_deadline = local_deadline(sent_at, group.timeout_s)
            if self.ends.setdefault(ACQUIRING, HOLDING) is not HOLDING or not lease.try_transition(Event.GRANTED):
                raise self.gone()
            path.granted_at = sent_at
            if state.over:
                self._undo()
            elif not path.watched:  # the timer's thread has died meanwhile
                path.watch()
            return True
        self._leave_acquiring()
        if reply == b"OK" and state.over:  # too late, and the engine does not go on with it
            self._send_release(clock())
        path.leave(self)
        if isinstance(reply, NotSent):
            wait.not_executed()
            state.submit(wait.begin)
        else:
            state.submit(partial(wait.go_on, sent_at, reply, not isinstance(reply, NoReply)))
        return False

    def _leave_acquiring(self) -> None:
        if self.ends.setdefault(ACQUIRING, LEFT) is not LEFT:
            raise self.gone()

    def _undo(self) -> None:
        """Release what was granted while the engine was closed, and raise ContextClosed."""
        mine = [RELEASING]
        if self.ends.setdefault(HOLDING, mine) is mine:
            self.lease.try_transition(Event.RELEASE)
            self._send_release(self.path.clock())
            self.lease.try_transition(Event.RELEASED)
            self.path.leave(self)
        end_quietly(self.path.state.exiting)
        raise ContextClosed("The context has been closed")

    def release(self, new_future: Callable[[], F], done: F) -> F | None:
        """Send the release, and wait for the reply.

        Args:
            new_future: Makes a future that the caller can wait for.
            done: The result if it is released.

        Returns:
            ``done``; a new future if the engine goes on with the release; None if the lock is not on the path any more, so
            that nothing has been done.

        Raises:
            LockTimeout, LockUnavailable: As for ``Lock.release``.
        """
        path, lease, connection = self.path, self.lease, self.connection
        node, now = self.wait.node, path.clock()
        fits = (
            now < lease.own_deadline and not path.queues.queues and connection.pipeline is node.pipeline and node.ready
        )
        if not fits or lease.loss is not None:
            return None
        mine = [RELEASING]  # another one each time: a signal's handler may release the lock at any moment
        if self.ends.setdefault(HOLDING, mine) is not mine:
            return None
        if not lease.try_transition(Event.RELEASE):
            raise self.gone()
        reply = self._send_release(now)
        try:
            if not isinstance(reply, (NoReply, ServerError)) and isinstance(EXCLUSIVE.parse_release(reply), int):
                self.held_s = path.clock() - self.sent_at
                if self.ends.setdefault(RELEASING, LEFT) is not LEFT:
                    raise self.gone()
                path.leave(self)
                return done
        except MalformedReply:
            reply = self._distrust(NoReply("no reply to a release"))
        released = new_future()
        try:
            path.state.submit(partial(path.go_on, self, released, reply))
        except ContextClosed:
            path.leave(self)
            raise
        return released

    def _send_release(self, now: float) -> Reply | NoReply:
        request = EXCLUSIVE.keyed_release(self.lease, self.connection.capability)
        assert request is not None
        self.asked_at = now
        try:
            return self.connection.ask(request, now + min(self.path.state.options.response_timeout_s / 5, _LONGEST_S))
        except NoReply as error:
            return self._distrust(error)

    def _distrust(self, error: NoReply) -> NoReply:
        """End the connection, whose reply did not come or is none; return what is to be taken for the reply."""
        self.path.drop(self.connection)
        return error

    def gone(self) -> LockTimeout | LockUnavailable:
        """Return the error for a caller whose hold the timer's thread has ended, or which goes on in a forked child."""
        name = self.lease.name
        if not self.lease.group.alive:
            return LockUnavailable(f"The process was forked in the middle of a request (lock {quoted(name)})", name)
        where = self.wait.node.connector.describe()
        return LockTimeout(f"{where} did not answer in time (lock {quoted(name)})", name)

    # -- on the timer's thread ---------------------------------------------------------------------------------------

    def take(self) -> str:
        """End the phase that the hold is in, for the timer's thread; the same again after its death.

        Returns:
            That phase; LEFT if the caller has ended the last one.
        """
        for phase in PHASES:
            end = self.ends.setdefault(phase, TAKEN)
            if end is TAKEN:
                return phase
            if end is LEFT:
                break
        return LEFT

    def take_over(self) -> bool:
        """End HOLDING, if the caller holds the lease, for the timer's thread; the same again after its death."""
        return self.lease.state is HELD and self.ends.setdefault(HOLDING, TAKEN) is TAKEN

    def begin(self) -> None:
        """Have the engine begin the wait instead."""
        self.wait.begin()

    def give_up(self) -> None:
        """End the wait, or the lease, of a caller that was interrupted in its acquire."""
        self.path.go_on(self)
        self.wait.give_up()

    def finish_release(self, future: Future[None]) -> None:
        """Release the lock for a caller that was interrupted in its release, or that had to leave it to the engine."""
        self.path.go_on(self, future)


class DirectPath(DirectLocks):
    """The direct path of an engine of one server.

    Args:
        queues: The engine's wait queues: while they have waiters, nothing new uses the path.

    Attributes:
        state, queues: The engine's state and wait queues.
        clock: Returns the time, in seconds of the timer's clock.
        claim: What has claimed the path, by lease. Who finds itself alone there has the path until it removes itself.
        done: The time to acquire, and the time held, which is None if the engine has taken over, of each lock that has left
            the path, by the number of its hold. Emptied by ``count``.
        uses: The number of holds so far.
        next_number: Returns the number of the next hold.
        connection: Its connection, or None. Written by the timer's thread.
        watched: True if a look is scheduled. Written by the timer's thread.
        granted_at: When the latest granted acquire was about to be sent, in seconds of the timer's clock.
    """

    exists: ClassVar[bool] = True
    claim: dict[Lease, DirectHold]

    def __init__(self, table: LeaseTable, queues: WaitQueueRegistry, renewer: Renewer) -> None:
        self._table = table
        self.state: EngineState = table.state
        self._timer = table.timer
        self.clock: Callable[[], float] = table.timer.clock.now
        self.queues = queues
        self._renewer = renewer
        self._node = renewer.node
        self.connection: DirectConnection | None = None
        self._begin_empty()

    def _begin_empty(self) -> None:
        self.claim = {}
        self.done: dict[int, tuple[float, float | None]] = {}
        self._counted: tuple[Counters, Collection[int]] = Counters(), ()  # replaced as a whole: see count()
        self.uses: int = 0
        self.next_number: Callable[[], int] = itertools.count(1).__next__
        self.watched: bool = False
        self.granted_at: float = -math.inf
        self._uses_seen = 0
        self._alarm: Alarm | None = None
        self._rest = 0  # acquires until the path is used again
        self._opener = Opener(self._table, self._node, self._opened)
        self._uses_before = 0  # the connection was opened

    def _forked(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.after_fork_in_child()
        for hold in self.claim.values():
            hold.take()  # the fork may be in the middle of its caller's request
        self._begin_empty()

    # -- from any thread ---------------------------------------------------------------------------------------------

    def offer(self, wait: Wait, options: LockOptions) -> DirectHold | None:
        if self._rest > 0:
            self._rest -= 1
            return None
        if type(wait) is not FirstTry:
            return None
        group = group_of(wait.leases[0])
        if group.lock_type is not EXCLUSIVE or self.claim or self.queues.queues or self.queues.pollers:
            return None
        state = self.state
        interval_s = options.renew_every_s
        if interval_s is None or interval_s < _LEAST_INTERVAL_S or not options.thread_local:
            return None
        if options.max_renewals is not None or options.max_hold_s is not None or state.exiting:
            return None
        if state.interrupted or state.unawaited:  # what was posted for such a caller would be overtaken
            return None
        connection, node = self.connection, self._node
        if connection is None or connection.pipeline is not node.pipeline:
            if self._opener.miss():
                state.post_if_open(self._open)
            return None
        if "gevent" in sys.modules or "eventlet" in sys.modules:  # a wait would block all greenlets of the thread
            return None
        if not node.ready or node.missing_rights or state.over:
            return None
        if wait.caller_until is not None and wait.caller_until < self.clock() + _LEAST_LIMIT_S:
            return None
        return DirectHold(self, wait, wait.leases[0], connection)

    def drop(self, connection: DirectConnection) -> None:
        """End a connection that cannot be trusted any more."""
        connection.reset()
        self._timer.post(partial(self._dropped, connection), self.state)

    def leave(self, hold: DirectHold) -> None:
        """Free the path: by the caller of ``hold``, or for one that does not go on. No effect if that was done."""
        if hold.ends.get(RELEASING) is LEFT:
            hold.lease.try_transition(Event.RELEASED)
            self.done[hold.number] = hold.took_s, hold.held_s
            if self.state.keeping is not None:
                self.state.keeping.drop((hold.lease,))
        self.claim.pop(hold.lease, None)
        if self.connection is not hold.connection:
            self._close(hold.connection)

    def counted(self, counters: Counters) -> Counters:
        while True:
            counts, numbers = found = self._counted
            # In this order: a lock that leaves the path meanwhile is in both, by the same number.
            holds, done = list(self.claim.values()), self.done.copy()
            if found is self._counted:
                break
        for hold in holds:
            if hold.ends.get(RELEASING) is LEFT:
                done[hold.number] = hold.took_s, hold.held_s
            elif hold.ends.get(ACQUIRING) is HOLDING:
                done.setdefault(hold.number, (hold.took_s, None))
        return _sum(counters, counts, [times for number, times in done.items() if number not in numbers])

    def young(self) -> list[Lease]:
        return [lease for lease in list(self.claim) if lease.state is HELD and lease not in self._table.held]

    def watch(self) -> None:
        """Have the looks begin; again if need be: an interrupted caller may have posted nothing."""
        self._timer.post(self._begin_looks, self.state)

    # -- on the timer's thread ---------------------------------------------------------------------------------------

    def _begin_looks(self) -> None:
        if not self.watched:
            self.watched = True
            self._look(0.0)

    def _look(self, now: float) -> None:
        if self.done:
            self.count()
            self._renewer.confirmed_at = max(self._renewer.confirmed_at, self.granted_at)
            self._table.on_ended()
        holds = list(self.claim.values())
        if not holds and self.uses == self._uses_seen:
            self.watched = False
            if not self.claim:
                return
            self.watched = True  # a caller has claimed the path before it could see that
        self._uses_seen = self.uses
        if self.connection is not None:
            self._opener.used(self.uses - self._uses_before)
        for hold in holds:
            hold.looks += 1
            # After so many its caller's own end has been interrupted, too: it will never go on.
            if hold.looks > _LONGEST_LOOKS or (hold.looks > 1 and hold.take_over()):
                self.go_on(hold)
        self.watched = True  # also if it is the last alarm before an end that rings
        self._timer.cancel(self._alarm)  # there is one if the thread has died in between
        self._alarm = self._timer.call_at(self._timer.now + LOOK_S, self._look, self.state)

    def count(self) -> None:
        """Count the locks that have left the path.

        What is counted, and which locks in ``done`` are among it, changes in one step. So a reader finds each lock once,
        wherever this thread is or dies.
        """
        counts, numbers = self._counted
        for number in numbers:
            self.done.pop(number, None)
        done = self.done.copy()
        for hold in list(self.claim.values()):
            done.pop(hold.number, None)  # it may be about to be noted again
        self._counted = _sum(counts, Counters(), done.values()), done.keys()
        for number in done:
            self.done.pop(number)

    def collided(self) -> None:
        self._rest = _REST
        self.take_over()

    def take_over(self) -> None:
        """Have the engine hold the lock that is held on the path, if there is one."""
        for hold in list(self.claim.values()):
            if hold.take_over():
                self.go_on(hold)

    def forced(self, leases: Iterable[Lease]) -> list[Lease]:
        # Those on the path are not held from now on, whenever their callers read the replies to their acquires.
        self.take_over()
        elsewhere = []
        for lease in leases:
            if lease in self.claim:
                lease.loss = LossReason.KEY_GONE
            else:
                elsewhere.append(lease)
        return elsewhere

    def go_on(self, hold: DirectHold, future: Future[None] | None = None, reply: Reply | NoReply | None = None) -> None:
        """Have the engine go on with what is on the path, and free that; once, and again if the thread has died in it.

        Args:
            hold: What is there: its caller has been interrupted, is overdue, or has handed it over.
            future: The future of the release, if that is to be completed.
            reply: The reply to the release, if there is one.
        """
        lease = hold.lease
        if self.claim.get(lease) is not hold:
            if future is not None:
                future.set_exception(hold.gone())
            return
        phase = hold.take()
        unanswered = reply is None or isinstance(reply, NoReply)
        if unanswered and phase in (ACQUIRING, RELEASING) and hold.sent_at < math.inf:
            self.drop(hold.connection)
        if phase is HOLDING:
            hold.wait.finished = True  # from here on, to give it up is to release the lease
            self._table.adopt_grant(lease, hold.sent_at)
        elif phase is RELEASING:
            lease.try_transition(Event.RELEASE)  # its caller was interrupted before it could
        if phase in (HOLDING, RELEASING):
            self.done[hold.number] = hold.took_s, None
        self.leave(hold)
        if phase is ACQUIRING:
            hold.wait.give_up()
        elif phase is HOLDING:
            self._verify(hold)
            if future is not None:
                release(self._table, lease, future)
        elif phase is RELEASING:
            request = Release(self._table, lease, future or Future(noop))
            executed = not isinstance(reply, NotSent)
            guarded(request, request.go_on, hold.asked_at, executed, None if isinstance(reply, NoReply) else reply)
        elif future is not None:
            future.set_result(None)

    def _verify(self, hold: DirectHold) -> None:
        """Verify a lease that was taken over after a reconnection. Those that the engine held were, or will be."""
        reconnected = hold.connection.pipeline is not self._node.pipeline and not self.state.closed
        if reconnected and hold.lease.state is HELD:
            self._renewer.doubt([hold.lease])

    def give_up(self) -> None:
        for hold in list(self.claim.values()):
            self.go_on(hold, Future(noop))  # releases what has just been granted

    def end(self, how: End, error: Exception) -> None:
        if how is End.FORKED:
            self._forked()
        elif how is not End.CLOSED:  # what is granted since the close began, its caller releases itself
            self._end()

    def _end(self) -> None:
        self.watched = self._opener.connecting = False
        for hold in list(self.claim.values()):
            if hold.take_over() or TAKEN in hold.ends.values():  # the latter if the thread has died in it
                self.go_on(hold)
        self.count()
        self._replace_connection(None)
        if self.claim and not self.state.over:
            self.watch()  # what ends the use by a caller that does not go on may have been lost with the thread

    def _replace_connection(self, new: DirectConnection | None) -> None:
        old, self.connection = self.connection, new
        if old is not None:
            self._close(old)

    def _close(self, connection: DirectConnection) -> None:
        """Close a connection that is not the path's any more, unless there is a claim with it, whose end comes here again.

        No other caller begins to use it: each looks behind its claim whether its connection is still the path's.
        """
        if all(hold.connection is not connection for hold in list(self.claim.values())):
            connection.close()

    def _dropped(self, connection: DirectConnection) -> None:
        if self.connection is connection:
            self.connection = None
            self._opener.failed()

    def _open(self) -> None:
        if self.connection is None or self.connection.pipeline is not self._node.pipeline:
            self._opener.open()

    def _opened(self, connection: DirectConnection) -> None:
        self._uses_before = self.uses
        self._replace_connection(connection)


def _sum(first: Counters, second: Counters, done: Iterable[tuple[float, float | None]]) -> Counters:
    """Return new counters with the counts of two, and the locks in ``done``."""
    counters = Counters()
    counters.merge(first)
    counters.merge(second)
    for took_s, held_s in done:
        counters.acquired += 1
        counters.acquire.add(took_s)
        if held_s is not None:
            counters.released += 1
            counters.held.add(held_s)
    return counters
