"""Requests: what the engine sends on behalf of callers, how often it tries, and when it gives up.

A caller's request is sent again on the next connection if its own breaks, until its time is up. Whatever ends an
acquire without a grant that somebody waits for is followed by an owner-checked release, on the same road and so in the
right order: no grant is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from wheel_lock.engine.channel import ServerError
from wheel_lock.engine.node import Node
from wheel_lock.engine.operation import Operation
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, WheelLockError, quoted
from wheel_lock.lease import Lease
from wheel_lock.protocol.resp import Reply, error_text
from wheel_lock.protocol.scripts import Call
from wheel_lock.timer import HashedWheelTimer
from wheel_lock.wheel import WheelEntry

if TYPE_CHECKING:
    from wheel_lock.engine.batches import RenewalGroup
    from wheel_lock.engine.kind import Kind


_FIRST_PAUSE_S = 0.05  # before a clean-up that was refused is tried again, twice this
_LONGEST_PAUSE_S = 30.0
_MOMENT_S = 0.05  # what is suspicious so soon goes onto the wheel at once


class Patience:
    """The wheel's group of requests whose time may run out."""

    def due(self, entries: Sequence[Any], now: float) -> None:
        """Tell each request that it is late."""
        for request in entries:
            request.late(now)


PATIENCE = Patience()


class Request(WheelEntry):
    """One command that waits for one reply; on the wheel it waits for its time limit.

    Attributes:
        finished: Nobody waits for its reply any more.
        in_full: Its script is sent as text because the server did not know its SHA-1.
        sends: How often it has been sent.
        sent_at: When it was last about to be sent, in seconds of the timer's clock.
    """

    __slots__ = ("finished", "group", "in_full", "node", "sends", "sent_at", "timer")

    def __init__(self, timer: HashedWheelTimer, node: Node) -> None:
        self.tick = -1
        self.group = PATIENCE
        self.timer = timer
        self.node = node
        self.finished = False
        self.in_full = False
        self.sends = 0
        self.sent_at = timer.now

    def call(self) -> Call:
        """Return the command."""
        raise NotImplementedError

    def encode(self, flagged: bool) -> bytes:
        """Return the bytes to send, noting the time before they exist."""
        self.sent_at = self.timer.now
        call = self.call()
        self.sends += 1
        return call.encode(flagged, self.in_full)

    def answered(self, reply: Reply) -> None:
        """Take the reply. Raises MalformedReply, before anything has changed, if it makes no sense."""
        if isinstance(reply, ServerError):
            if not self.in_full and str(reply).startswith("NOSCRIPT"):
                self.in_full = True
                self.resend()
            else:
                self.error_reply(reply)
        else:
            self.value_reply(reply)

    def resend(self) -> None:
        """Send it once more, at once."""
        if not self.finished:
            self.node.send(self)

    def value_reply(self, reply: Reply) -> None:
        """Take a reply that is no error."""
        raise NotImplementedError

    def error_reply(self, error: ServerError) -> None:
        """Take an error reply."""
        raise NotImplementedError

    def broken(self, error: Exception) -> None:
        """Its connection has gone without a reply."""
        raise NotImplementedError

    def refused(self, error: Exception) -> None:
        """It will never be sent (again)."""
        raise NotImplementedError

    def late(self, now: float) -> None:
        """Its time is up."""
        raise NotImplementedError


class CallerRequest(Request):
    """A request that a caller waits for, with a time limit that includes reconnecting.

    Args:
        timer: Whose thread this is.
        node: Where it is sent.
        name: The lock's name, for errors.
        limit_s: How long it may take.
    """

    __slots__ = ("limit_s", "name", "suspicion_s", "until")

    def __init__(self, timer: HashedWheelTimer, node: Node, name: str | bytes | None, limit_s: float) -> None:
        # Not through super(): there are two of these in every acquire and release.
        self.tick = -1
        self.group = PATIENCE
        self.timer = timer
        self.node = node
        self.finished = False
        self.in_full = False
        self.sends = 0
        self.sent_at = timer.now
        self.name = name
        self.limit_s = limit_s
        self.suspicion_s = limit_s / 5  # silence for so long makes the connection suspect
        self.until = 0.0

    def start(self) -> None:
        """Send it and let its time run."""
        timer = self.timer
        self.until = timer.now + self.limit_s
        if self.suspicion_s > _MOMENT_S:
            self.node.expect(self)
        else:
            self.look_later()
        self.node.send(self)

    def look_later(self) -> None:
        """Be told by the wheel when it has been unanswered for suspiciously long."""
        timer = self.timer
        timer.wheel.schedule(self, timer.scale.floor(self.until - self.limit_s + self.suspicion_s))

    @property
    def tries(self) -> int:
        """How often the server may have carried it out: a call that it had no script for does not count."""
        return self.sends - self.in_full

    def finish(self) -> None:
        """Nobody waits any more."""
        self.finished = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)

    def failed(self, error: WheelLockError) -> None:
        """Tell the caller."""
        raise NotImplementedError

    def error_reply(self, error: ServerError) -> None:
        """The server's error is the caller's."""
        if not self.finished:
            self.finish()
            self.failed(LockServerError(f"{error_text(error)} (lock {quoted(self.name)})", self.name))

    def broken(self, error: Exception) -> None:
        """Try again on the next connection, as long as somebody waits."""
        if not self.finished:
            self.node.send(self)

    def refused(self, error: Exception) -> None:
        """Give up: there will be no connection."""
        if not self.finished:
            self.finish()
            failure = LockUnavailable(
                f"No connection to {self.node.connector.describe()}: {error} (lock {quoted(self.name)})",
                self.name,
            )
            failure.__cause__ = error
            self.failed(failure)

    def late(self, now: float) -> None:
        """Give up: the time is up."""
        if self.finished:
            return
        if self.timer.scale.floor(self.until) > self.timer.wheel.now:
            if self.sends:
                self.node.suspect()
            self.timer.wheel.schedule(self, self.timer.scale.floor(self.until))
            return
        if not (self.sends and self.node.connected):
            self.refused(self.node.last_error or TimeoutError(f"not connected within {self.limit_s:g} s"))
            return
        self.finish()
        self.node.suspect()
        self.failed(
            LockTimeout(
                f"{self.node.connector.describe()} did not answer within {self.limit_s:g} s (lock {quoted(self.name)})",
                self.name,
            )
        )


class Query(CallerRequest):
    """A plain read."""

    __slots__ = ("_call", "_operation", "_read")

    def __init__(
        self,
        timer: HashedWheelTimer,
        node: Node,
        name: str | bytes,
        limit_s: float,
        call: Call,
        read: Callable[[Reply], Any],
        operation: Operation[Any],
    ) -> None:
        super().__init__(timer, node, name, limit_s)
        self._call = call
        self._read = read
        self._operation = operation

    def call(self) -> Call:
        return self._call

    def value_reply(self, reply: Reply) -> None:
        value = self._read(reply)
        self.finish()
        self._operation.complete(value)

    def failed(self, error: WheelLockError) -> None:
        self._operation.fail(error)


class CleanUp(Request):
    """An owner-checked release that nobody waits for: of grants that came too late, or may have come.

    It is tried until ``until``, when the keys have expired by themselves.
    """

    __slots__ = ("_kind", "_leases", "_pause_s", "_until")

    def __init__(self, timer: HashedWheelTimer, node: Node, kind: Kind, leases: Sequence[Lease], until: float) -> None:
        super().__init__(timer, node)
        self._kind = kind
        self._leases = leases
        self._until = until
        self._pause_s = _FIRST_PAUSE_S

    def start(self) -> None:
        """Send it, and give it up when its time has come."""
        self.timer.wheel.schedule(self, self.timer.scale.ceil(self._until))
        self.node.send(self)

    def finish(self) -> None:
        """There is nothing left to clean up."""
        self.finished = True
        self.timer.wheel.cancel(self)

    def call(self) -> Call:
        return self._kind.release_many(self._leases)

    def value_reply(self, reply: Reply) -> None:
        self.finish()

    def error_reply(self, error: ServerError) -> None:
        if not self._kind.own_tokens:
            self.finish()  # later the key may be a namesake's
            return
        # It may be able to later (BUSY, LOADING, ...); and should it never be, most keys expire.
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self.timer.call_at(self.timer.now + self._pause_s, lambda now: self.resend())

    def broken(self, error: Exception) -> None:
        if not self._kind.own_tokens:
            self.finish()
        elif not self.finished:
            self.node.send(self)

    def refused(self, error: Exception) -> None:
        self.finish()

    def late(self, now: float) -> None:
        self.finished = True


def batch_call(script: Any, kind: Kind, leases: Sequence[Lease], *first: bytes) -> Call:
    """Return the call of a batched script about ``leases``, whose encoded arguments begin with ``first``."""
    body = b"".join((*first, *[lease.fragment for lease in leases]))
    return Call(script, 0, len(first) + kind.arguments * len(leases), body)


def terms_of(lease: Lease) -> RenewalGroup:
    """The group of a lease that this engine has made."""
    return lease.group  # type: ignore[return-value]
