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
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from wheel_lock.engine.direct.connection import INFO, DirectConnection, NoReply, NotSent, ask_run_id, run_id
from wheel_lock.engine.direct.hold import ACQUIRING, CLOSING, HOLDING, LEFT, RELEASING, TAKEN, DirectHold
from wheel_lock.engine.future import Future, noop
from wheel_lock.engine.interfaces import LeaseGroup, Wait, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.requests.query import Query
from wheel_lock.engine.requests.release import Release, release
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import LockServerError, LossReason
from wheel_lock.lease import HELD, Lease, State
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.net.connector import Connection, sanitize
from wheel_lock.net.node import taken
from wheel_lock.observe.stats import Counters
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.native import sleep
from wheel_lock.runtime.timer_threads import on_timer_thread

LOOK_S = 0.1  # between two looks of the timer's thread while the path is in use
_LONGEST_LOOKS = 100  # at a hold that waits for a reply: far more than its time limit
_LEAST_INTERVAL_S = 4 * LOOK_S  # of renewals: taken over after two looks at the latest, a lease is renewed on time
_WORTH_IT = 64  # acquires that could have used the path, before it gets a connection
_MOST_WORTH_IT = 1 << 14  # the same after many failures
_LEAST_LIMIT_S = 0.05  # of callers; a lower one may pass before the reply, which would cost the connection
_MOST_READS = 1000  # of counters while locks are acquired and released all the time
_REST = 1000  # acquires that do not use the path after another thread has come in between

R = TypeVar("R")


class _Identity(Future[bytes | None]):
    """The identity of the server's process. (A callback that refers to its future would be a cycle.)"""

    __slots__ = ("_path", "_pipeline")

    def __init__(self, path: DirectPath, pipeline: object) -> None:
        super().__init__(noop)
        self._path = path
        self._pipeline = pipeline

    def _tell(self) -> None:
        self._path.identified(self, self._pipeline)


class DirectPath:
    """The direct path of an engine of one server.

    Args:
        table: The leases of the engine.
        queues: Its wait queues: while they have waiters, nothing new uses the path.
        renewer: The renewer of the server.

    Attributes:
        state, queues: The engine's state and wait queues.
        clock: Returns the time, in seconds of the timer's clock.
        claim: What has claimed the path, by lease. Who finds itself alone there has the path until it removes itself.
        hold_of: Returns the hold of a lease if it is on the path.
        done: The time to acquire, and the time held, of each lock that was released on the path and is not counted yet, by
            the number of the hold.
        uses: The number of holds so far.
        next_number: Returns the number of the next hold.
        watched: True if a look is scheduled. Written by the timer's thread.
        granted_at: When the latest granted acquire was about to be sent, in seconds of the timer's clock.
    """

    def __init__(self, table: LeaseTable, queues: WaitQueueRegistry, renewer: Renewer) -> None:
        self._table = table
        self.state: EngineState = table.state
        self._timer = table.timer
        self.clock: Callable[[], float] = table.timer.clock.now
        self.queues = queues
        self._renewer = renewer
        self._node = renewer.node
        self._worth_it: float = _WORTH_IT
        self._connection: DirectConnection | None = None  # written by the timer's thread
        self._begin_empty()

    def _begin_empty(self) -> None:
        self.claim: dict[Lease, DirectHold] = {}
        self.hold_of: Callable[[Lease], DirectHold | None] = self.claim.get
        self.done: dict[int, tuple[float, float]] = {}
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
        self._moves = 0  # of counts from the path to the counters: odd while there is one

    def after_fork_in_child(self) -> None:
        """In a forked child: nothing is on the path, and the connection is the parent's."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.after_fork_in_child()
        for hold in self.claim.values():
            hold.take()  # the fork may be in the middle of its caller's request
        self._begin_empty()

    # -- from any thread ---------------------------------------------------------------------------------------------

    def offer(self, wait: Wait, options: LockOptions) -> DirectHold | None:
        """Return a hold for ``wait`` if the path may be used for it now, else None. Claims nothing."""
        if self._rest > 0:
            self._rest -= 1
            return None
        if type(wait) is not FirstTry:
            return None
        group: LeaseGroup = wait.leases[0].group  # type: ignore[assignment]
        if group.lock_type is not EXCLUSIVE or self.claim or len(self.queues) or self.queues.pollers:
            return None
        state = self.state
        interval_s = options.renew_every_s
        if interval_s is None or interval_s < _LEAST_INTERVAL_S or not options.thread_local:
            return None
        if options.max_renewals is not None or options.max_hold_s is not None or state.exiting:
            return None
        if state.interrupted or state.unawaited:  # what was posted for such a caller would be overtaken
            return None
        connection, node = self._connection, self._node
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
            hold.lease.state = State.RELEASED
            self.done[hold.number] = hold.took_s, hold.held_s
        if self._connection is not hold.connection:
            hold.connection.close()
        self.claim.pop(hold.lease, None)

    def count_into(self, counters: Counters) -> None:
        """Add the grants and releases that no counter has yet to ``counters``, in ``read``."""
        holds = list(self.claim.values())  # first: a lock that is released meanwhile is in both
        done = self.done.copy()
        for hold in holds:
            if hold.ends.get(RELEASING) is LEFT:
                done[hold.number] = hold.took_s, hold.held_s
            elif hold.ends.get(ACQUIRING) is HOLDING:
                _count_granted(counters, hold.took_s)
        for times in done.values():
            _count_released(counters, *times)

    def young(self) -> Sequence[Lease]:
        """Return the held lease that is on the path, and in no other list yet, if there is one."""
        return [
            lease
            for lease, hold in list(self.claim.items())
            if hold.ends.get(ACQUIRING) is HOLDING and lease.state is HELD and lease not in self._table.held
        ]

    def watch(self) -> None:
        """Have the looks begin; again if need be: an interrupted caller may have posted nothing."""
        self._timer.post(self._begin_looks, self.state)

    def read(self, look: Callable[[], R]) -> R:
        """Return ``look()``, which reads counters and what they do not have yet, at a moment when nothing moves.

        Else a lock could be counted twice or not at all, and a counter that is shown could decrease.
        """
        for _ in range(0 if on_timer_thread() else _MOST_READS):  # which moves nothing while a finaliser runs on it
            moves, done = self._moves, len(self.done)
            if moves % 2 == 0:
                found = look()
                if moves == self._moves and done == len(self.done):
                    return found
            sleep(0.0001)
        return look()

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
        if self._connection is not None and self.uses - self._uses_before > self._worth_it:
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
        """Count the locks that were released on the path."""
        counters, done = self.state.counters, list(self.done.items())
        leaving = [hold.number for hold in list(self.claim.values())]
        self._moves |= 1
        for number, (took_s, held_s) in done:
            if number not in leaving:
                counters.acquire.add(took_s)
                counters.held.add(held_s)
                counters.acquired += 1
                counters.released += 1
                self.done.pop(number)  # no call since, so that each is counted once, wherever the thread dies
        self._moves += 1

    def collided(self) -> None:
        """Have the path unused for a while, and take over what is held on it: something else was submitted."""
        self._rest = _REST
        self.take_over()

    def take_over(self) -> None:
        """Have the engine hold the lock that is held on the path, if there is one."""
        for hold in list(self.claim.values()):
            if hold.take_over():
                self.go_on(hold)

    def forced(self, leases: Iterable[Lease]) -> list[Lease]:
        """Note that the keys of ``leases`` were removed by force; return those that are not on the path.

        The others are not held from now on, whenever their callers read the replies to their acquires.
        """
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
        lease, counters = hold.lease, self.state.counters
        if self.hold_of(lease) is not hold:
            if future is not None:
                future.set_exception(hold.gone())
            return
        phase = hold.take()
        unanswered = reply is None or isinstance(reply, NoReply)
        if unanswered and phase in (ACQUIRING, RELEASING) and hold.sent_at < math.inf:
            self.drop(hold.connection)
        if phase in (HOLDING, RELEASING):
            self._moves |= 1
            if phase is HOLDING:
                self._table.held[lease] = None  # first: another thread sees it there or on the path, see ``young``
            else:
                lease.state = State.RELEASING
            counters.acquire.add(hold.took_s)
            counters.acquired += 1
            self.claim.pop(lease, None)  # no call since: what is on the path is not counted yet
            self._moves += 1
        self.leave(hold)
        if phase is ACQUIRING:
            hold.forget_grant()
            hold.wait.give_up()
        elif phase is HOLDING:
            self._held(hold)
            if future is not None:
                release(self._table, lease, future)
        elif phase is RELEASING:
            request = Release(self._table, lease, future or Future(noop))
            executed = not isinstance(reply, NotSent)
            guarded(request, request.go_on, hold.asked_at, executed, None if isinstance(reply, NoReply) else reply)
        elif future is not None:
            future.set_result(None)

    def _held(self, hold: DirectHold) -> None:
        """Have the renewer keep a lease that was taken over."""
        lease, renewer = hold.lease, self._renewer
        renewer.confirmed_at = max(renewer.confirmed_at, hold.sent_at)
        group_of(lease).begin([lease], hold.sent_at)
        if lease.loss is not None:
            self._table.mark_lost([lease])
        elif hold.connection.pipeline is not self._node.pipeline and not self.state.closed:
            # The leases that the engine held were verified when the node was connected again, or are when it is.
            self._node.connect()
            renewer.doubt([lease])

    def end(self) -> None:
        """Take over what is held, and close the connection, because the engine ends or begins anew."""
        self.watched = self._connecting = False
        self._moves += self._moves % 2
        self.claim.pop(CLOSING.lease, None)
        for hold in list(self.claim.values()):
            if hold.take_over() or TAKEN in hold.ends.values():  # the latter if the thread has died in it
                self.go_on(hold)
        self.count()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection)
        if self.claim and not self.state.over:
            self.watch()  # what ends the use by a caller that does not go on may have been lost with the thread

    def _close(self, connection: DirectConnection) -> None:
        """Close a connection that is not the path's any more, when no caller can be about to use it."""
        self.claim[CLOSING.lease] = CLOSING
        alone = len(self.claim) == 1
        if alone:
            connection.close()  # a caller that claims the path for it behind this sends nothing
        self.claim.pop(CLOSING.lease, None)
        if not alone and not self._timer.stopped:
            self._timer.call_at(self._timer.now + LOOK_S, lambda now: self._close(connection), self.state)

    def _dropped(self, connection: DirectConnection) -> None:
        if self._connection is connection:
            self._connection = None
            self._failed()

    # -- the connection ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin to connect to the server that the node is connected to."""
        pipeline, connection = self._node.pipeline, self._connection
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
            options = self.state.options
            connection = self._node.connector.connect(options.connect_timeout_s)
            plain = not hasattr(connection.sock, "pending") and not connection.missing_rights
            if plain and ask_run_id(connection, options.connect_timeout_s) == identity and not self.state.over:
                arrived = [DirectConnection(connection, pipeline, self._timer.clock.now)]
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
        old, self._connection = self._connection, connection
        if old is not None:
            self._close(old)

    def _failed(self) -> None:
        self._connecting = False
        if self._worth_it < _MOST_WORTH_IT:
            self._worth_it *= 2


def _count_granted(counters: Counters, took_s: float) -> None:
    counters.acquired += 1
    counters.acquire.add(took_s)


def _count_released(counters: Counters, took_s: float, held_s: float) -> None:
    _count_granted(counters, took_s)
    counters.released += 1
    counters.held.add(held_s)
