"""The direct path: a free lock is acquired and released by the calling thread itself, on a connection of its own.

The engine's thread costs a caller two switches of threads for each reply. Where one thread takes one lock at a time they
are most of what a lock costs. So a caller that finds the *path* free sends its SET, and later its release, itself, and
reads the replies. The engine's state is not touched: what the path has is one :class:`DirectHold`, which belongs to the
caller until the timer's thread *takes it over*. From then on the lease is like any other: on the wheel, renewed, watched.
Which of the two has it is decided in one atomic step for each phase of the hold: see the table in hold.py.

The timer's thread takes a hold over

* as soon as anything about any lock is submitted to the engine, a wait of another thread for instance;
* when it finds the same hold a second time in one of its looks, which come every 0.1 s while the path is in use: long
  before the first renewal, because locks that are renewed sooner do not use the path;
* when the context is closed, or its timer stops or dies.

All that is unusual goes to the engine, with what is known: a reply other than OK, no reply, a reply that came late, a
connection that broke. It continues as if it had sent the request itself.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import ClassVar

from wheel_lock.engine.direct.connection import INFO, DirectConnection, NoReply, NotSent, ask_run_id, run_id
from wheel_lock.engine.direct.hold import ACQUIRING, HOLDING, LEFT, RELEASING, TAKEN, DirectHold
from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import DirectLocks, Wait, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.requests.query import Query
from wheel_lock.engine.requests.release import Release, release
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import LockServerError, LossReason
from wheel_lock.lease import HELD, Event, Lease
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.net.connector import Connection, sanitize
from wheel_lock.net.node import taken
from wheel_lock.observe.stats import Counters
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.failures import guarded

LOOK_S = 0.1  # between two looks of the timer's thread while the path is in use
_LONGEST_LOOKS = 100  # at a hold that waits for a reply: far more than its time limit
_LEAST_INTERVAL_S = 4 * LOOK_S  # of renewals: taken over after two looks at the latest, a lease is renewed on time
_WORTH_IT = 64  # acquires that could have used the path, before it gets a connection
_MOST_WORTH_IT = 1 << 14  # the same after many failures
_LEAST_LIMIT_S = 0.05  # of callers; a lower one may pass before the reply, which would cost the connection
_REST = 1000  # acquires that do not use the path after another thread has come in between


class _Identity(Future[bytes | None]):
    """The identity of the server's process. (A callback that refers to its future would be a cycle.)"""

    __slots__ = ("_path", "_pipeline")

    def __init__(self, path: DirectPath, pipeline: object) -> None:
        super().__init__(noop)
        self._path = path
        self._pipeline = pipeline

    def _tell(self) -> None:
        self._path.identified(self, self._pipeline)


class DirectPath(DirectLocks):
    """The direct path of an engine of one server.

    Args:
        table: The leases of the engine.
        queues: Its wait queues: while they have waiters, nothing new uses the path.
        renewer: The renewer of the server.

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
        self._worth_it: float = _WORTH_IT
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
        self._missed = 0  # acquires that could have used the path if it had a connection
        self._connecting = False  # written by the timer's thread
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
            self._miss()
            return None
        if "gevent" in sys.modules or "eventlet" in sys.modules:  # a wait would block all greenlets of the thread
            return None
        if not node.ready or node.missing_rights or state.over:
            return None
        if wait.caller_until is not None and wait.caller_until < self.clock() + _LEAST_LIMIT_S:
            return None
        return DirectHold(self, wait, connection)

    def _miss(self) -> None:
        self._missed += 1
        if self._missed >= self._worth_it and not self._connecting:
            self._missed = 0
            self.state.post_if_open(self._open)

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
        if self.connection is not None and self.uses - self._uses_before > self._worth_it:
            self._worth_it = _WORTH_IT  # this connection was
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
        self.watched = self._connecting = False
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
            self._failed()

    # -- the connection ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin to connect to the server that the node is connected to."""
        pipeline, connection = self._node.pipeline, self.connection
        if pipeline is None or self._connecting or (connection is not None and connection.pipeline is pipeline):
            return
        self._connecting = True
        identity = _Identity(self, pipeline)
        Query(self._table, b"INFO", b"INFO", Command(None, 0, 0, INFO), run_id, identity).start()

    def identified(self, known: Future[bytes | None], pipeline: object) -> None:
        """Connect to the server of that identity, which is the one at the other end of ``pipeline``."""
        if isinstance(known.error, LockServerError) or (known.error is None and known.result() is None):
            self._worth_it = math.inf  # the user may not ask, or the server does not say
        if known.error is not None or (identity := known.result()) is None:
            self._failed()
            return
        try:
            self.state.launch(partial(self._connect, pipeline, identity))
        except RuntimeError:  # no thread can be started
            self._failed()

    def _connect(self, pipeline: object, identity: bytes) -> None:
        """Connect, on a helper thread. A balancer may lead to another server, where the lock would not be excluded."""
        connection: Connection | None = None
        try:
            limit_s = self.state.options.connect_timeout_s
            connection = self._node.connector.connect(limit_s)
            plain = not hasattr(connection.sock, "pending") and not connection.missing_rights
            arrived = [DirectConnection(connection, pipeline, self.clock)] if plain else []
            if plain and ask_run_id(arrived[0], self.clock() + limit_s) == identity and not self.state.over:
                connection = None
                self._timer.post(partial(self._arrived, arrived), self.state)
                if self._timer.stopped and (left := taken(arrived)) is not None:
                    left.close()  # it may have been posted behind the last turn
                return
        except BaseException as error:
            sanitize(error)
        if connection is not None:
            connection.close()
        self._timer.post(self._failed, self.state)

    def _arrived(self, arrived: list[DirectConnection]) -> None:
        self._connecting = False
        if (connection := taken(arrived)) is None:
            return
        if self.state.closed or connection.pipeline is not self._node.pipeline:
            connection.close()
            return
        self._uses_before = self.uses
        self._replace_connection(connection)

    def _failed(self) -> None:
        self._connecting = False
        if self._worth_it < _MOST_WORTH_IT:
            self._worth_it *= 2


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
