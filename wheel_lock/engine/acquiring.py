"""Acquire and release, one lock at a time and in bulk: the requests that begin and end a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheel_lock.engine.channel import ServerError
from wheel_lock.engine.kind import NO_GRANT
from wheel_lock.engine.operation import Operation
from wheel_lock.engine.requests import CallerRequest, terms_of
from wheel_lock.errors import LockLost, LockServerError, WheelLockError
from wheel_lock.lease import Lease, State
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine


class Acquire(CallerRequest):
    """One try to acquire one lock. Completes with whether it was granted."""

    __slots__ = ("_counted", "_engine", "_operation", "_options", "lease")

    def __init__(self, engine: Engine, lease: Lease, options: LockOptions, operation: Operation[bool]) -> None:
        super().__init__(engine.timer, engine.node, lease.name, engine.options.response_timeout_s)
        self._engine = engine
        self.lease = lease
        self._options = options
        self._operation = operation
        self._counted = False  # among those being acquired
        self.suspicion_s = min(self.suspicion_s, options.timeout_s / 6)

    def call(self) -> Call:
        terms = terms_of(self.lease)
        return terms.kind.acquire(self.lease, terms.timeout_ms, again=self.sends > 0)

    def value_reply(self, reply: Reply) -> None:
        fence = terms_of(self.lease).kind.read_acquire(reply, again=self.tries > 1)
        if self.finished:
            return  # its owner-checked release is under way
        if isinstance(fence, str):
            self.error_reply(ServerError(fence))
            return
        self.finish()
        if fence == NO_GRANT:
            self._turn_down(False)
        elif self._engine.grant([self.lease], self._options, self.sent_at):
            self.lease.fence = fence or None
            self._operation.complete(True)
        else:
            self._turn_down(True)  # granted, but the reply took longer than the lease lasts

    def _turn_down(self, clean_up: bool) -> None:
        self._engine.turn_down([self.lease], clean_up)
        self._operation.complete(False)

    def failed(self, error: WheelLockError) -> None:
        # An error reply is an answer: that try has granted nothing. A try without a reply may have.
        self._engine.turn_down([self.lease], self.tries > isinstance(error, LockServerError))
        self._operation.fail(error)

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
            self._operation.fail(refusal)

    def finish(self) -> None:
        super().finish()
        self._engine.acquiring -= self._counted
        self._counted = False

    def give_up(self) -> None:
        """The caller waits no more: undo what was granted, or may have been."""
        if not self.finished:
            self.finish()
            self._engine.turn_down([self.lease], bool(self.sends))
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

    def value_reply(self, reply: Reply) -> None:
        reason = terms_of(self.lease).kind.read_release(reply)
        if self.finished:
            return
        self.finish()
        if reason is None or self.tries > 1:
            # When an earlier try's reply was lost, that the key is gone, or another's, is what that try has achieved.
            self._engine.freed([self.lease])
            self._operation.complete(None)
        else:
            self._engine.lose([self.lease], reason)
            self._operation.fail(LockLost(self.lease.name, reason))

    def failed(self, error: WheelLockError) -> None:
        self._engine.unreleased([self.lease])
        self._operation.fail(error)


class Extend(CallerRequest):
    """Change the time-to-live of one lease. Completes when the server has, or fails with why it could not."""

    __slots__ = ("_engine", "_operation", "_replace", "_time_ms", "lease")

    def __init__(self, engine: Engine, lease: Lease, time_ms: int, replace: bool, operation: Operation[None]) -> None:
        super().__init__(engine.timer, engine.node, lease.name, engine.options.response_timeout_s)
        self._engine = engine
        self._operation = operation
        self.lease = lease
        self._time_ms = time_ms
        self._replace = replace

    def call(self) -> Call:
        return terms_of(self.lease).kind.extend(self.lease, self._time_ms, replace=self._replace)

    def value_reply(self, reply: Reply) -> None:
        # Also when nobody waits any more: the lease does, because its renewals must not overtake this reply.
        outcome = terms_of(self.lease).kind.read_extend(reply)
        self.finish()
        self._engine.extended(self.lease, self.sent_at, outcome, self._replace, self._operation)

    def broken(self, error: Exception) -> None:
        # Adding twice would be adding too much, so a caller who adds must decide whether to try again.
        if self._replace and not self.finished:
            self.node.send(self)
        else:
            self._engine.unextended(self.lease)
            self.refused(error)

    def error_reply(self, error: ServerError) -> None:
        self._engine.unextended(self.lease)
        super().error_reply(error)

    def refused(self, error: Exception) -> None:
        self._engine.unextended(self.lease)
        super().refused(error)

    def resend(self) -> None:
        if self.finished:
            self._engine.unextended(self.lease)
        super().resend()

    def failed(self, error: WheelLockError) -> None:
        self._operation.fail(error)
