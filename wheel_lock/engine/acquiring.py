"""Acquire and release, one lock at a time: the requests that begin and end a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheel_lock.engine.channel import ServerError
from wheel_lock.engine.kind import Refusal
from wheel_lock.engine.operation import Operation
from wheel_lock.engine.requests import CallerRequest, terms_of
from wheel_lock.errors import LockLost, LockServerError, LossReason, WheelLockError
from wheel_lock.lease import Event, Lease, State
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine


class Acquire(CallerRequest):
    """One try to acquire one lock. Completes with whether it was granted.

    Attributes:
        operation: What it completes.
        retry_ms: Where it was refused, when the holder's lease ends in milliseconds from now, if that is known.
    """

    __slots__ = ("_counted", "_engine", "_options", "_waiting", "lease", "operation", "retry_ms")

    def __init__(
        self,
        engine: Engine,
        lease: Lease,
        options: LockOptions,
        operation: Operation[bool],
        *,
        waiting: bool = False,
    ) -> None:
        super().__init__(engine.timer, engine.node, lease.name, engine.options.response_timeout_s)
        self._engine = engine
        self.lease = lease
        self._options = options
        self._waiting = waiting
        self.operation = operation
        self.retry_ms: int | None = None
        self._counted = False  # among those being acquired
        self.suspicion_s = min(self.suspicion_s, options.timeout_s / 6)

    def call(self) -> Call:
        terms = terms_of(self.lease)
        return terms.kind.acquire(self.lease, terms.timeout_ms, again=self.sends > 0, waiting=self._waiting)

    def value_reply(self, reply: Reply) -> None:
        verdict = terms_of(self.lease).kind.read_acquire(reply, again=self.tries > 1, waiting=self._waiting)
        if self.finished:
            self._too_late(verdict)
            return
        if isinstance(verdict, str):
            self.error_reply(ServerError(verdict))
            return
        self.finish()
        if isinstance(verdict, Refusal):
            self.retry_ms = verdict.retry_ms
            self._turn_down(False)
        else:
            self.take(verdict)

    def take(self, fence: int) -> None:
        """The server has granted it."""
        if self._engine.grant([self.lease], self._options, self.sent_at):
            self.lease.fence = fence or None
            self.operation.complete(True)
            return
        # Granted, but the reply took longer than the lease lasts.
        if not terms_of(self.lease).kind.own_tokens:
            self._too_late(fence)
        self._turn_down(terms_of(self.lease).kind.own_tokens)

    def _too_late(self, verdict: int | Refusal | str) -> None:
        """Nobody waits any more. An owner-checked release is under way, or else it was waited for this answer."""
        lease = self.lease
        if lease.state is State.PENDING and isinstance(verdict, int):
            lease.move(Event.GRANTED)
            lease.move(Event.RELEASE)
            self._engine.renewer.clean_up([lease])

    def _undo(self, clean_up: bool) -> None:
        """End the try without a grant; ``clean_up`` where the server may have granted it all the same."""
        if not clean_up or terms_of(self.lease).kind.own_tokens:
            self._engine.turn_down([self.lease], clean_up)
        # Else a key with this token may be somebody else's, and only the answer, should it come, tells.

    def _turn_down(self, clean_up: bool) -> None:
        self._engine.turn_down([self.lease], clean_up)
        self.operation.complete(False)

    def failed(self, error: WheelLockError) -> None:
        # An error reply is an answer: that try has granted nothing. A try without a reply may have.
        self._undo(self.tries > isinstance(error, LockServerError))
        self.operation.fail(error)

    def begin(self) -> None:
        """Send it, unless the context takes no more."""
        refusal = self._engine.refusal(self.lease.name, 1)
        if refusal is None:
            self._counted = True
            self._engine.acquiring += 1
            self.start()
        else:
            self.finished = True
            self._engine.turn_down([self.lease], False)
            self.operation.fail(refusal)

    def finish(self) -> None:
        self.finished = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)
        if self._counted:
            self._counted = False
            self._engine.acquiring -= 1

    def give_up(self) -> None:
        """The caller waits no more: undo what was granted, or may have been."""
        if not self.finished:
            self.finish()
            self._undo(bool(self.sends))
        elif self.lease.state <= State.EXTENDING:
            self._engine.release_many([self.lease], Operation(lambda: None))


class Release(CallerRequest):
    """The release of one lease. Completes when the key is gone, or fails with why the lease was not ours any more."""

    __slots__ = ("_engine", "_operation", "lease")

    def __init__(self, engine: Engine, lease: Lease, operation: Operation[None]) -> None:
        super().__init__(engine.timer, engine.node, lease.name, engine.options.response_timeout_s)
        self._engine = engine
        self._operation = operation
        self.lease = lease

    def call(self) -> Call:
        return terms_of(self.lease).kind.release(self.lease)

    def broken(self, error: Exception) -> None:
        if terms_of(self.lease).kind.own_tokens:
            super().broken(error)
        else:
            self.refused(error)  # by the next try the key may be a namesake's

    def value_reply(self, reply: Reply) -> None:
        outcome = terms_of(self.lease).kind.read_release(reply)
        if self.finished:
            return
        self.finish()
        # When an earlier try's reply was lost, that the key is gone, or another's, is what that try has achieved.
        if isinstance(outcome, LossReason) and self.tries <= 1:
            self._engine.lose([self.lease], outcome)
            self._operation.fail(LockLost(self.lease.name, outcome))
            return
        if not isinstance(outcome, LossReason):
            self._engine.lines.listened(self.lease, outcome)
        self._engine.freed([self.lease])
        self._operation.complete(None)

    def failed(self, error: WheelLockError) -> None:
        self._engine.unreleased([self.lease])
        self._operation.fail(error)
