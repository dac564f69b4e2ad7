"""The direct path: a free lock is acquired and released by the calling thread itself, on a connection of its own.

The engine's thread costs a caller two switches of threads for each reply. Where one thread takes one lock at a time they
are most of what a lock costs. So a caller that finds the *path* free sends its SET, and later its release, itself, and
reads the replies. The engine's state is not touched: what the path has is one :class:`DirectHold`, which belongs to the
caller until the timer's thread *takes it over*. From then on the lease is like any other: on the wheel, renewed, watched.

The timer's thread takes a hold over

* as soon as anything about any lock is submitted to the engine, a wait of another thread for instance;
* when it finds the same hold a second time in one of its looks, which come every 0.1 s while the path is in use: long
  before the first renewal, because locks that are renewed sooner do not use the path;
* when the context is closed, or its timer stops or dies.

All that is unusual goes to the engine, with what is known: a reply other than OK, no reply, a reply that came late, a
connection that broke. It continues as if it had sent the request itself.

**Who changes a lease.** A lease on the path is PENDING while the caller's SET is unanswered, HELD, and RELEASING while the
caller's release is unanswered. Its caller changes PENDING to HELD, and HELD to RELEASING; the timer's thread takes over a
HELD one by setting ``over``. Each of the two first reads what the other writes, and then writes, without a call in
between: CPython changes threads, and runs handlers of signals, only after a call, at the start of a function, and at a
jump back (see runtime/interruptions.py). So exactly one of them succeeds.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from wheel_lock.engine.direct.connection import INFO, DirectConnection, NoReply, NotSent, ask_run_id, run_id
from wheel_lock.engine.direct.hold import CLOSING, DirectHold
from wheel_lock.engine.future import Future, end_quietly, noop
from wheel_lock.engine.interfaces import LeaseGroup
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.renewal.verification import check
from wheel_lock.engine.requests.base import Query
from wheel_lock.engine.requests.release import Release, release
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import ContextClosed, LockServerError, LockTimeout, LockUnavailable, quoted
from wheel_lock.lease import HELD, Lease, State, local_deadline
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.net.connector import Connection, sanitize
from wheel_lock.net.node import taken
from wheel_lock.observe.stats import Counters
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
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
_LONGEST_S = 2.0  # that a caller waits for a reply itself: far less than the looks before its hold is ended
_REST = 1000  # acquires that do not use the path after another thread has come in between

_GRANTED = (HELD, State.RELEASING)

F = TypeVar("F", bound=Future[Any])
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
        claim: The hold that is on the path, under the key 0, or nothing: a dictionary, because to look and to enter is one
            atomic step of it.
        uses: The number of holds so far.
        granted_at: When the latest granted acquire was about to be sent, in seconds of the timer's clock.
    """

    def __init__(self, table: LeaseTable, queues: WaitQueueRegistry, renewer: Renewer) -> None:
        self._table = table
        self._state = table.state
        self._timer = table.timer
        self._queues = queues
        self._renewer = renewer
        self._node = renewer.node
        self._worth_it: float = _WORTH_IT
        self.after_fork_in_child()

    def after_fork_in_child(self) -> None:
        """In a forked child: nothing is on the path, and the connection is the parent's."""
        connection: DirectConnection | None = getattr(self, "_connection", None)
        self._connection: DirectConnection | None = None
        if connection is not None:
            connection.after_fork_in_child()
        self.claim: dict[int, DirectHold] = {}
        self.uses: int = 0
        self.granted_at: float = -math.inf
        self._seen = -1  # the number of the hold that the last look has found
        self._looks = 0  # that have found it
        self._uses_seen = 0
        self._alarm: Alarm | None = None
        self._rest = 0  # acquires until the path is used again
        self._watched = False  # a look is scheduled; written by the timer's thread
        self._missed = 0  # acquires that could have used the path if it had a connection
        self._connecting = False  # written by the timer's thread
        self._uses_before = 0  # the connection was opened
        self._moves = 0  # of counts from the path to the counters: odd while there is one
        self._done: deque[tuple[float, float]] = deque()  # not counted yet: the time of the acquire, and the time held

    # -- the caller's side -------------------------------------------------------------------------------------------

    def offer(self, wait: Any, options: LockOptions) -> DirectHold | None:
        """Return a hold for ``wait`` if the path may be used for it now, else None. From any thread; claims nothing."""
        if self._rest > 0:
            self._rest -= 1
            return None
        if type(wait) is not FirstTry:
            return None
        lease: Lease = wait.leases[0]
        group: LeaseGroup = lease.group  # type: ignore[assignment]
        if group.lock_type is not EXCLUSIVE or self.claim or len(self._queues) or self._queues.pollers:
            return None
        state = self._state
        interval_s = options.renew_every_s
        if interval_s is None or interval_s < _LEAST_INTERVAL_S or not options.thread_local:
            return None
        if options.max_renewals is not None or options.max_hold_s is not None or state.exiting or state.interrupted:
            return None
        connection, node = self._connection, self._node
        if connection is None or connection.pipeline is not node.pipeline:
            self._miss()
            return None
        if "gevent" in sys.modules or "eventlet" in sys.modules:  # a wait would block all greenlets of the thread
            return None
        if not node.ready or node.missing_rights or state.over:
            return None
        if wait.caller_until is not None and wait.caller_until < self._timer.clock.now() + _LEAST_LIMIT_S:
            return None
        return DirectHold(self, wait, connection)

    def _miss(self) -> None:
        self._missed += 1
        if self._missed >= self._worth_it and not self._connecting:
            self._missed = 0
            self._state.post_if_open(self._open)

    def acquire(self, hold: DirectHold) -> bool:
        """Send the acquire of ``hold``, and wait for the reply. On the caller's thread.

        Returns:
            True if it was granted; False if the engine goes on with the wait, whose future is to be waited for.
        """
        state, wait, lease, clock = self._state, hold.wait, hold.lease, self._timer.clock.now
        if self.claim.setdefault(0, hold) is not hold:
            state.submit(wait.begin)
            return False
        self.uses = hold.number = self.uses + 1
        if not self._watched:
            self._watch()
        group: LeaseGroup = lease.group  # type: ignore[assignment]
        request = EXCLUSIVE.plain_try(lease, group.ttl)
        assert request is not None
        hold.sent_at = wait.sent_at = sent_at = clock()
        until = sent_at + min(wait.suspicion_s, _LONGEST_S)
        if wait.caller_until is not None and wait.caller_until < until:
            until = wait.caller_until
        wait.attempts = 1
        reply = self._ask(hold, request, until)
        if isinstance(reply, int):
            self._drop(hold.connection)
            reply = NoReply("no reply to an acquire")
        hold.took_s = clock() - sent_at
        deadline = local_deadline(sent_at, group.timeout_s)
        if self.claim.get(0) is not hold:
            raise self._gone(hold)
        # Within half of its time a lease was not granted too late.
        if reply == b"OK" and hold.took_s < group.timeout_s / 2 and not hold.over:
            lease.acquired_at = sent_at
            lease.deadline = deadline
            wait.finished = True
            self.granted_at = sent_at
            lease.state = HELD  # no call since the look at ``over``
            if state.over or not self._watched:
                self._late(hold)
            return True
        if hold.over:
            raise self._gone(hold)
        if reply == b"OK" and state.over:  # too late, and the engine does not go on with it
            self._send_release(hold)
        self._leave(hold)
        if isinstance(reply, NotSent):
            wait.attempts = 0
            state.submit(wait.begin)
            return False
        state.submit(partial(wait.go_on, sent_at, reply, not isinstance(reply, NoReply)))
        return False

    def _late(self, hold: DirectHold) -> None:
        """Handle that the engine has been closed, or its thread has died, while a lock was being granted."""
        if self._state.over:
            lease = hold.lease
            if not hold.over and lease.state is HELD:
                lease.state = State.RELEASING  # no call since the look
                self._send_release(hold)
                lease.state = State.RELEASED
                self._leave(hold)
            end_quietly(self._state.exiting)
            raise ContextClosed("The context has been closed")
        self._watch()

    def _gone(self, hold: DirectHold) -> Exception:
        """Return the error for a caller whose hold the timer's thread has ended, or which goes on in a forked child."""
        name = hold.lease.name
        if not hold.over:
            return LockUnavailable(f"The process was forked in the middle of a request (lock {quoted(name)})", name)
        return LockTimeout(f"{self._node.connector.describe()} did not answer in time (lock {quoted(name)})", name)

    def hold_of(self, lease: Lease) -> DirectHold | None:
        """Return the hold of ``lease`` if it is on the path. From any thread."""
        hold = self.claim.get(0)
        return hold if hold is not None and hold.lease is lease else None

    def release(self, hold: DirectHold, new_future: Callable[[], F], done: F) -> F | None:
        """Release the lock of ``hold``, and wait for the reply. On the thread of its caller.

        Args:
            hold: The hold.
            new_future: Makes a future that the caller can wait for.
            done: The result if it is released.

        Returns:
            ``done``; a new future if the engine goes on with the release; None if the lock is not on the path any more, so
            that nothing has been done.

        Raises:
            LockTimeout, LockUnavailable: As for ``Lock.release``.
        """
        lease, clock = hold.lease, self._timer.clock.now
        now = clock()
        connection, node = hold.connection, self._node
        fits = now < lease.deadline and not len(self._queues) and connection.pipeline is node.pipeline and node.ready
        if not fits or hold.over or lease.loss is not None or lease.state is not HELD:
            return None
        lease.state = State.RELEASING  # no call since the look at ``over``
        reply, done_now = self._send_release(hold), False
        try:
            if not isinstance(reply, (NoReply, ServerError)):
                done_now = isinstance(EXCLUSIVE.parse_release(reply), int)
        except MalformedReply:
            self._drop(hold.connection)
            reply = NoReply("no reply to a release")
        held_s = clock() - hold.sent_at
        if self.claim.get(0) is not hold or hold.over:
            raise self._gone(hold)
        if done_now:
            lease.state = State.RELEASED  # no call since the look at ``over``
            self._done.append((hold.took_s, held_s))  # no call in between, so that an interrupted one is counted, too
            self._leave(hold)
            return done
        released = new_future()
        # The timer's thread frees the path: after an interruption before that it finds what to go on with there.
        try:
            self._state.submit(partial(self._go_on, hold, released, reply))
        except ContextClosed:
            self._leave(hold)
            raise
        return released

    def _send_release(self, hold: DirectHold) -> Reply:
        request = EXCLUSIVE.keyed_release(hold.lease, hold.connection.capability)
        assert request is not None
        limit_s = min(self._state.options.response_timeout_s / 5, _LONGEST_S)
        return self._ask(hold, request, self._timer.clock.now() + limit_s)

    def _ask(self, hold: DirectHold, request: bytes, until: float) -> Reply | NoReply:
        try:
            return hold.connection.ask(request, until)
        except NoReply as error:
            self._drop(hold.connection)
            return error

    def _drop(self, connection: DirectConnection) -> None:
        if self._connection is connection:
            self._connection = None
            self._failed()
        connection.reset()

    def _leave(self, hold: DirectHold) -> None:
        """Free the path. The last user of a connection that is not the path's any more closes it."""
        if self.claim.get(0) is hold:
            del self.claim[0]
        if self._connection is not hold.connection:
            hold.connection.close()

    @property
    def done(self) -> int:
        """The number of locks that were released on the path and are not counted yet. From any thread."""
        return len(self._done)

    def count_into(self, counters: Counters) -> None:
        """Add the grants and releases that no counter has yet to ``counters``. From any thread, in ``read``."""
        for times in self._done.copy():
            _count_released(counters, *times)
        hold = self.claim.get(0)
        if hold is not None and hold.lease.state in _GRANTED and hold.lease not in self._table.held:
            _count_granted(counters, hold.took_s)

    def young(self) -> Sequence[Lease]:
        """Return the held lease that is on the path, and in no other list yet, if there is one. From any thread."""
        hold = self.claim.get(0)
        if hold is None or hold.lease.state is not HELD or hold.lease in self._table.held:
            return ()
        return (hold.lease,)

    # -- the side of the timer's thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the looks begin. From any thread; again if need be: an interrupted caller may have posted nothing."""
        self._timer.post(self._begin_looks, self._state)

    def _begin_looks(self) -> None:
        if not self._watched:
            self._watched = True
            self._look(0.0)

    def _look(self, now: float) -> None:
        if self._done:
            self.count()
            self._renewer.confirmed_at = max(self._renewer.confirmed_at, self.granted_at)
            self._table.on_ended()
        hold = self.claim.get(0)
        if hold is None and self.uses == self._uses_seen:
            self._watched = False
            if not self.claim:
                return
            self._watched = True  # a caller has claimed the path before it could see that
        self._uses_seen = self.uses
        if self._connection is not None and self.uses - self._uses_before > self._worth_it:
            self._worth_it = _WORTH_IT  # this connection was
        if hold is not None:
            if hold.number != self._seen:
                self._seen, self._looks = hold.number, 0
            self._looks += 1
            if self._looks > 1:
                self.take_over()
            if self._looks > _LONGEST_LOOKS:  # its caller's own end has been interrupted, too: it will never go on
                self._go_on(hold)
        self._watched = True  # also if it is the last alarm before an end that rings
        self._timer.cancel(self._alarm)  # there is one if the thread has died in between
        self._alarm = self._timer.call_at(self._timer.now + LOOK_S, self._look, self._state)

    def count(self) -> None:
        """Count the locks that were released on the path."""
        done, counters = self._done, self._state.counters
        self._moves |= 1
        while done:
            took_s, held_s = done[0]
            counters.acquire.add(took_s)
            counters.held.add(held_s)
            counters.acquired += 1
            counters.released += 1
            done.popleft()  # no call since, so that each is counted once, wherever the thread dies
        self._moves += 1

    def read(self, look: Callable[[], R]) -> R:
        """Return ``look()``, which reads counters and what they do not have yet, at a moment when nothing moves.

        From any thread. Else a lock could be counted twice or not at all, and a counter that is shown could decrease.
        """
        for _ in range(0 if on_timer_thread() else _MOST_READS):  # which moves nothing while a finaliser runs on it
            moves, done = self._moves, len(self._done)
            if moves % 2 == 0:
                found = look()
                if moves == self._moves and done == len(self._done):
                    return found
            sleep(0.0001)
        return look()

    def collided(self) -> None:
        """Have the path unused for a while, and take over what is held on it: something else was submitted."""
        self._rest = _REST
        self.take_over()

    def take_over(self) -> None:
        """Have the engine hold the lock that is held on the path, if there is one."""
        hold = self.claim.get(0)
        if hold is None:
            return
        lease = hold.lease
        if not hold.over and lease.state is HELD:
            hold.over = True  # no call since the look at the state
            self._go_on(hold)

    def _go_on(
        self, hold: DirectHold, future: Future[None] | None = None, reply: Reply | NoReply | None = None
    ) -> None:
        """Have the engine go on with what is on the path, and free that; once, and again if the thread has died in it.

        Args:
            hold: What is there: held from now on, or ended if its caller has not got that far.
            future: The future of the release, if one has begun and its caller waits.
            reply: The reply to the release, if there is one.
        """
        if self.claim.get(0) is not hold:
            return
        hold.over = True  # from now on the caller does not change the state
        lease, state, counters = hold.lease, hold.lease.state, self._state.counters
        unanswered = reply is None or isinstance(reply, NoReply)
        if unanswered and state in (State.PENDING, State.RELEASING):
            self._drop(hold.connection)
        if state in _GRANTED:
            self._moves |= 1
            if state is HELD:
                self._table.held[lease] = None  # first: another thread sees it there or on the path, see ``young``
            counters.acquire.add(hold.took_s)
            counters.acquired += 1
            self.claim.pop(0, None)  # no call since: what is on the path is not counted yet
            self._moves += 1
        self._leave(hold)
        if state is HELD:
            self._renewer.confirmed_at = max(self._renewer.confirmed_at, hold.sent_at)
            self._renewer.begin([lease], hold.sent_at)
            if hold.connection.pipeline is not self._node.pipeline and not self._state.closed:
                # The leases that the engine held were verified when the node was connected again, or are when it is.
                self._node.connect()
                if self._renewer.takes_more:
                    check(self._renewer, [lease], noop)
        elif state is State.PENDING:
            hold.wait.give_up()
        elif state is State.RELEASING:
            request = Release(self._table, lease, future or Future(noop))
            if unanswered:
                request.attempts = int(not isinstance(reply, NotSent))
                request.start()
            else:
                guarded(request, request.go_on, reply)
        elif future is not None:
            future.set_result(None)

    def give_up(self, hold: DirectHold) -> None:
        """End the wait, or the lease, of a caller that was interrupted in its acquire."""
        self._go_on(hold)
        hold.wait.give_up()

    def finish_release(self, hold: DirectHold, future: Future[None]) -> None:
        """Release the lock of ``hold``, whose caller was interrupted in its release."""
        if hold.lease.state is HELD:
            self.take_over()
            release(self._table, hold.lease, future)
        else:
            self._go_on(hold, future)

    def end(self) -> None:
        """Take over what is held, and close the connection, because the engine ends or begins anew."""
        self._watched = self._connecting = False
        self._moves += self._moves % 2
        hold = self.claim.get(0)
        if hold is CLOSING:
            del self.claim[0]
        elif hold is not None and hold.over:
            self._go_on(hold)  # the thread has died in it
        self.take_over()
        self.count()
        connection, self._connection = self._connection, None
        if connection is not None:
            self._close(connection)
        if self.claim and not self._state.over:
            self._watch()  # what ends the use by a caller that does not go on may have been lost with the thread

    def _close(self, connection: DirectConnection) -> None:
        """Close a connection that is not the path's any more, when no caller can be about to use it."""
        if self.claim.setdefault(0, CLOSING) is CLOSING:
            connection.close()  # a caller that claims the path for it behind this sends nothing
            del self.claim[0]
        elif not self._timer.stopped:
            self._timer.call_at(self._timer.now + LOOK_S, lambda now: self._close(connection), self._state)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin to connect to the server that the node is connected to."""
        pipeline, connection = self._node.pipeline, self._connection
        if pipeline is None or self._connecting or (connection is not None and connection.pipeline is pipeline):
            return
        self._connecting = True
        Query(self._table, b"INFO", Command(None, 0, 0, INFO), run_id, _Identity(self, pipeline)).start()

    def identified(self, known: Future[bytes | None], pipeline: object) -> None:
        """Connect to the server of that identity, which is the one at the other end of ``pipeline``."""
        if isinstance(known.error, LockServerError) or (known.error is None and known.result() is None):
            self._worth_it = math.inf  # the user may not ask, or the server does not say
        if known.error is not None or (identity := known.result()) is None:
            self._failed()
            return
        try:
            self._state.launch(partial(self._connect, pipeline, identity))
        except RuntimeError:  # no thread can be started
            self._failed()

    def _connect(self, pipeline: object, identity: bytes) -> None:
        """Connect, on a helper thread. A balancer may lead to another server, where the lock would not be excluded."""
        connection: Connection | None = None
        try:
            options = self._state.options
            connection = self._node.connector.connect(options.connect_timeout_s)
            plain = not hasattr(connection.sock, "pending") and not connection.missing_rights
            if plain and ask_run_id(connection, options.connect_timeout_s) == identity and not self._state.over:
                arrived = [DirectConnection(connection, pipeline, self._timer.clock.now)]
                connection = None
                self._timer.post(partial(self._arrived, arrived), self._state)
                if self._timer.stopped and (left := taken(arrived)) is not None:
                    left.close()  # it may have been posted behind the last turn
                return
        except BaseException as error:
            sanitize(error)
        if connection is not None:
            connection.close()
        self._timer.post(self._failed, self._state)

    def _arrived(self, arrived: list[DirectConnection]) -> None:
        self._connecting = False
        if (connection := taken(arrived)) is None:
            return
        if self._state.closed or connection.pipeline is not self._node.pipeline:
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
