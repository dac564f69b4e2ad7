"""One lock on the direct path, and what its caller does with it; see path.py.

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

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from wheel_lock.engine.direct.connection import DirectConnection, NoReply, NotSent
from wheel_lock.engine.future import Future, end_quietly
from wheel_lock.engine.interfaces import OnPath, group_of
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.engine.waiting.registry import WaitQueueRegistry
from wheel_lock.errors import ContextClosed, LockTimeout, LockUnavailable, quoted
from wheel_lock.lease import HELD, Event, Lease, local_deadline
from wheel_lock.lock_types import EXCLUSIVE
from wheel_lock.protocol.resp import MalformedReply, Reply
from wheel_lock.protocol.server_errors import ServerError

ACQUIRING, HOLDING, RELEASING = PHASES = ("acquiring", "holding", "releasing")
LEFT, TAKEN = "left", "taken"

_LONGEST_S = 2.0  # that a caller waits for a reply itself: far less than the looks before its hold is ended

F = TypeVar("F", bound=Future[None])


class HoldOwner(Protocol):
    """The path, as its holds see it; the attributes are documented in ``DirectPath``."""

    claim: dict[Lease, DirectHold]
    connection: DirectConnection | None
    clock: Callable[[], float]
    granted_at: float
    next_number: Callable[[], int]
    queues: WaitQueueRegistry
    state: EngineState
    uses: int
    watched: bool

    def watch(self) -> None: ...
    def drop(self, connection: DirectConnection) -> None: ...
    def leave(self, hold: DirectHold) -> None: ...
    def go_on(
        self, hold: DirectHold, future: Future[None] | None = None, reply: Reply | NoReply | None = None
    ) -> None: ...


class DirectHold(OnPath):
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

    __slots__ = (
        "asked_at",
        "connection",
        "ends",
        "held_s",
        "lease",
        "looks",
        "number",
        "path",
        "sent_at",
        "took_s",
        "wait",
    )

    def __init__(self, path: HoldOwner, wait: FirstTry, connection: DirectConnection) -> None:
        self.path: HoldOwner = path
        self.wait: FirstTry = wait
        self.lease: Lease = wait.leases[0]
        self.connection: DirectConnection = connection
        self.ends: dict[str, object] = {}
        self.number: int = -1
        self.looks: int = 0
        self.sent_at: float = math.inf
        self.asked_at: float = math.inf
        self.took_s: float = 0.0
        self.held_s: float = 0.0

    # -- on the thread of its caller ---------------------------------------------------------------------------------

    def acquire(self) -> bool:
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
        self.path.go_on(self, future)
