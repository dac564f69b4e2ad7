"""Requests: commands with one reply each, their retries and time limits, the one dispatch of error replies, and rights.

A caller's request is sent again on the next connection if its own breaks, until its time limit. An acquire that ends
without a grant that its caller receives is followed by an owner-checked release on the same connection, and so in order.

A lock that the user could not renew or release is refused before anything is sent. Each new connection finds the commands
of the scripts that the user may not call; usually there are none. A request that needs one of them is preceded by another
check, because an administrator may have granted the right meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Later, Shard, node_of
from wheel_lock.engine.leases import BelowEngine, LeaseTable
from wheel_lock.engine.requests.execution import (
    ASKING,
    BY_SHA1,
    BY_TEXT,
    EARLIER,
    NONE,
    NOT_EXECUTED,
    SENT,
    Execution,
    Sending,
)
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, WheelLockError, internal_error, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.capabilities import read_missing
from wheel_lock.net.connection import BareCommand, NodeRequest
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import LONG_TEXT, Reply, error_text
from wheel_lock.protocol.scripts import Command, Script
from wheel_lock.protocol.server_errors import ServerError, remedy_for
from wheel_lock.rows import encoded
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.wheel import WheelEntry

_AT_ONCE_S = 0.05  # a request that is suspicious, or over, so soon goes onto the wheel at once
_LEAST_S = 0.1  # minimum duration of a try, however little time its caller has left: a round trip to a healthy server
_LEAST_CONNECTING_S = 0.5  # the same where the try waits for a connection
_TO_CALL_SCRIPTS = frozenset({"eval", "evalsha"})


class RequestTimeouts:
    """The wheel's group of requests: calls ``on_timeout`` of each that is due."""

    def due(self, entries: Sequence[Any], now: float) -> None:
        for request in entries:
            guarded(request, request.on_timeout, now)

    def domains(self, entries: Sequence[Any]) -> Sequence[FailureDomain]:
        return entries  # each request is a domain of its own


REQUEST_TIMEOUTS = RequestTimeouts()


def least_s(node: Node) -> float:
    """Return the minimum time limit of a try at ``node``, in seconds, however little time its caller has left."""
    return _LEAST_S if node.connected else _LEAST_CONNECTING_S


def end_of_try(caller_until: float, begun_at: float, node: Node) -> float:
    """Return until when a try at ``node`` may last whose caller has a time limit, all in seconds of the timer's clock."""
    return max(caller_until, begun_at + least_s(node))


def no_answer(node: Node, name: str | bytes | None, limit_s: float) -> LockTimeout | LockUnavailable:
    """Return the error for a caller whose request ``node`` has not answered within ``limit_s`` seconds."""
    if not node.connected:
        return unavailable(node, name, why_unsent(node, limit_s))
    return LockTimeout(f"{node.connector.describe()} did not answer within {limit_s:.3g} s (lock {quoted(name)})", name)


def _with_remedy(error: Exception) -> str:
    """Return the text of an error, and what to do about it, if that is known."""
    text, remedy = error_text(error, LONG_TEXT), remedy_for(error)
    return text if remedy is None else f"{text.rstrip('.')}: {remedy}"


def unavailable(node: Node, name: str | bytes | None, cause: Exception) -> LockUnavailable:
    """Return the error for a caller whose request cannot be sent, or is refused again and again."""
    address = node.connector.describe()
    where = f"{address} can serve nothing" if isinstance(cause, ServerError) else f"No connection to {address}"
    error = LockUnavailable(f"{where}: {_with_remedy(cause)} (lock {quoted(name)})", name)
    error.__cause__ = cause
    return error


def why_unsent(node: Node, limit_s: float) -> Exception:
    """Return why a request could not be sent, or was refused, for ``limit_s`` seconds."""
    why = "refused again and again" if node.connected else "not connected"
    return node.last_error or node.refusal or TimeoutError(f"{why} within {limit_s:.3g} s")


class Request(BelowEngine, WheelEntry):
    """One command with one reply; on the wheel it waits for its time limit. See also ``NodeRequest``.

    Attributes:
        declared: True if its last try declared its keys, or was not a script call.
        execution: Which of its tries the server may have executed.
        finished: True if its reply does not matter any more.
        sending: How it is sent.
        sent_at: When it was last about to be sent, in seconds of the timer's clock.
    """

    __slots__ = (
        "declared",
        "execution",
        "finished",
        "group",
        "node",
        "sending",
        "sent_at",
        "table",
        "timer",
    )

    timer: HashedWheelTimer

    def __init__(self, table: LeaseTable, node: Node) -> None:
        self.tick = -1
        self.group: RequestTimeouts = REQUEST_TIMEOUTS
        self.table: LeaseTable = table
        self.timer = timer = table.timer
        self.node: Node = node
        self.sending: Sending = BY_SHA1
        self.declared: bool = False
        self.finished: bool = False
        self.execution: Execution = NONE
        self.sent_at: float = timer.now

    def call(self) -> Command:
        """Return the command."""
        raise NotImplementedError

    def encode(self, capability: int) -> bytes:
        """Return the bytes to send, and set ``sent_at`` before they exist."""
        self.sent_at = self.timer.now
        if (keeping := self.table.keeping) is not None:
            keeping.begin(self.may_grant())
        if self.execution is NONE and self.sending is BY_SHA1 and (data := self.encode_first(capability)) is not None:
            self.declared = True
            self.sent()
            return data
        call = self.call()
        if self.node.declares:
            call = call.declared()  # so a cluster's node that does not own the key names the one that does
        self.declared = call.keys > 0 or call.script is None
        self.sent()
        return call.encode(capability, self.sending is not BY_SHA1)

    def may_grant(self) -> Sequence[Lease]:
        """Return the leases that the server may grant by this request."""
        return ()

    @property
    def sent_asking(self) -> bool:
        """True if it went with ASKING, and so alone, to a node that does not own its slot yet."""
        return self.sending is ASKING

    @property
    def maybe_executed(self) -> bool:
        """True if the server may have executed a try."""
        return self.execution is not NONE

    @property
    def maybe_executed_before(self) -> bool:
        """True if the server may have executed a try before the latest one."""
        return self.execution >= EARLIER

    def sent(self) -> None:
        """Note that a try is put into a connection."""
        self.execution = SENT[self.execution]

    def not_executed(self) -> None:
        """Note that the server has certainly not executed the latest try."""
        self.execution = NOT_EXECUTED[self.execution]

    def encode_first(self, capability: int) -> bytes | None:
        """Return the first try, encoded, if it names its keys and can be made in one step; None to encode ``call()``."""
        return None

    def on_reply(self, reply: Reply) -> None:
        """Handle the reply. Raises MalformedReply, with nothing changed, if it is malformed."""
        if isinstance(reply, ServerError):
            if self.sending is BY_SHA1 and reply.code == "NOSCRIPT":
                self.not_executed()
                self.sending = BY_TEXT
                self.resend()
            else:
                self.error_reply(reply)
        else:
            self.value_reply(reply)

    def finish(self) -> None:
        """Mark the request as finished and take it off the wheel."""
        self.finished = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)

    @property
    def wanted(self) -> bool:
        """True unless sending the request again is pointless."""
        return not self.finished

    def resend(self) -> None:
        """Send the request again at once unless it is finished."""
        if not self.finished:
            self.node.send(self)

    @property
    def may_wait(self) -> bool:
        """True if the request waits for room in a full connection. False for requests about held leases."""
        return False

    def outlasts_refusal(self, *, first: bool) -> bool:
        """Return whether the request waits for a server that refuses connections, up to its time limit.

        ``first`` is True if there has been no connection to it: then only a caller with a limit of its own waits.
        """
        return not first

    @property
    def awaited(self) -> bool:
        """True while the reply is awaited."""
        return not self.finished

    def unsent(self) -> None:
        self.not_executed()

    @property
    def leases(self) -> Sequence[Lease]:
        """The leases that the request is about."""
        return ()

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        return self

    @property
    def key(self) -> bytes | None:
        """The key whose hash slot decides the request's node; None if there is none."""
        return self.leases[0].key if self.leases else None

    def redirect_to(self, shard: Shard) -> None:
        """Migrate the request's leases to ``shard``, and send the request there."""
        for lease in self.leases:
            self.table.router.migrate(lease, shard)
        self._asked()
        self.node = self.node_on(shard)
        self.resend()

    def node_on(self, shard: Shard) -> Node:
        """Return the node for this request: the shard's connection for acquires, or the other one."""
        return shard.node

    def send_home(self) -> None:
        """Send the request to the node on which its key lives by now, unless it is finished."""
        home = None if self.finished else self.table.router.home_of(self)
        if home is None:
            self.resend()
        else:
            self.redirect_to(home)

    def retry(self, later: Later, error: ServerError) -> bool:
        """Schedule a retry after ``error``. Returns False if this type of request is not retried."""
        if not later.maybe_executed:
            self.not_executed()
        self._asked()
        self.timer.call_at(self.timer.now + later.pause_s, lambda now: self.send_home(), self)
        return True

    def crashed(self, error: Exception) -> None:
        """End the request and its leases, whose state is in doubt after an exception in the library's own code."""
        self.finish()
        for lease in self.leases:
            self.table.give_up([lease])

    def value_reply(self, reply: Reply) -> None:
        """Handle a reply that is not an error."""
        raise NotImplementedError

    def error_reply(self, error: ServerError) -> None:
        """Follow a redirection, repeat a call whose keys must be declared, or fail with the error."""
        if self.redirect(error):
            return
        if self.node.note_keys_required(error, self.declared):
            self.on_keys_required()
        else:
            self.on_error(error)

    def redirect(self, error: ServerError) -> bool:
        """Send the request to another node, or again later, if ``error`` calls for that; return whether it does."""
        answer = self.table.router.redirection(self, error)
        if isinstance(answer, Later):
            return self.retry(answer, error)
        if answer is not None:
            self.not_executed()
            if not answer.asking:
                self.redirect_to(answer.shard)
            elif self.wanted:
                self._ask_at(self.node_on(answer.shard))
            else:
                self.resend()
        return answer is not None

    def _ask_at(self, node: Node) -> None:
        """Send the request once to a node that does not own its slot yet."""
        self.sending = ASKING  # with the script's text, because a NOSCRIPT of that node would use up the ASKING
        self.node = node
        node.send(BareCommand(b"ASKING"))
        self.resend()

    def _asked(self) -> None:
        """Note that the next try is without ASKING."""
        if self.sending is ASKING:
            self.sending = BY_TEXT

    def on_keys_required(self) -> None:
        """Handle a refusal to execute the call because its keys must be declared: the node is in single-key mode now."""
        raise NotImplementedError

    def on_error(self, error: ServerError) -> None:
        """Handle an error reply that another try would not help."""
        raise NotImplementedError

    def on_connection_lost(self, error: Exception) -> None:
        raise NotImplementedError

    def on_unavailable(self, error: Exception) -> None:
        raise NotImplementedError

    def on_timeout(self, now: float) -> None:
        """Handle that the tick has come for which the request was scheduled."""
        raise NotImplementedError


class CallerRequest(Request):
    """A request whose outcome a caller waits for, with a time limit that includes reconnecting."""

    __slots__ = ("limit_s", "name", "refusal", "suspicion_s", "until")

    limit_s: float

    def __init__(self, table: LeaseTable, node: Node, name: str | bytes | None) -> None:
        super().__init__(table, node)
        self.name: str | bytes | None = name
        self.limit_s = limit_s = table.state.options.response_timeout_s
        self.suspicion_s: float = limit_s / 5  # silence for so long makes the connection suspect
        self.until: float = 0.0
        self.refusal: ServerError | None = None  # because of which it was last sent again

    def start(self) -> None:
        """Send the request; its time limit begins now."""
        timer = self.timer
        self.limit_s += self.node.expected_delay_s
        self.suspicion_s += self.node.expected_delay_s
        self.until = timer.now + self.limit_s
        if self.suspicion_s > _AT_ONCE_S < self.limit_s:
            self.node.expect(self)
        else:
            self.look_later()
        self.node.send(self)

    def look_later(self) -> None:
        """Put the request on the wheel for the time at which its connection becomes suspect."""
        timer = self.timer
        timer.wheel.schedule(self, timer.scale.floor(self.until - self.limit_s + min(self.suspicion_s, self.limit_s)))

    def look_from_now(self) -> None:
        """Like :meth:`look_later`, for a request whose time limit has begun before, when its caller sent the first try."""
        timer = self.timer
        timer.wheel.schedule(self, timer.scale.floor(min(timer.now + self.suspicion_s, self.until)))

    def withdraw(self) -> None:
        """Remove the request from its connection if it may wait and none of its bytes has been sent."""
        if self.may_wait and self.node.withdraw(self):
            self.unsent()

    def failed(self, error: WheelLockError) -> None:
        """Complete the caller's future with ``error``. The request is finished."""
        raise NotImplementedError

    def crashed(self, error: Exception) -> None:
        super().crashed(error)
        self.failed(internal_error(error, self.name))

    def retry(self, later: Later, error: ServerError) -> bool:
        self.refusal = error
        return super().retry(later, error)

    def redirect(self, error: ServerError) -> bool:
        if super().redirect(error):
            return True
        if error.code != "READONLY" or not self.node.demoted(error, self):
            return False
        self.not_executed()
        return True

    def on_keys_required(self) -> None:
        self.not_executed()
        if not self.finished:
            self.repeat_declared()

    def repeat_declared(self) -> None:
        """Send the request again, in calls that declare their keys."""
        self.resend()

    def on_error(self, error: ServerError) -> None:
        if not self.finished:
            script = self.call().script
            missing = script.commands & self.node.missing_rights if script and error.code == "NOPERM" else frozenset()
            self.finish()
            self.failed(refused_by_server(error, self.name, missing))

    @property
    def needs(self) -> frozenset[str]:
        """The commands that the user must be allowed to call, or the request is refused; see rights.lua."""
        return frozenset()

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        return RightsCheck(self) if missing_rights and missing_rights & self.needs else self

    def forbidden(self, commands: Iterable[str]) -> None:
        """Fail, without sending anything, because the user may not call ``commands``, which the request needs."""
        if not self.finished:
            self.finish()
            self.sent()  # as if the server had refused this one: those before it have no known outcome
            self.not_executed()
            error = ServerError("NOPERM a lock of this kind could not be renewed, or not be released")
            self.failed(refused_by_server(error, self.name, commands))

    @property
    def repeatable(self) -> bool:
        """True if the request may be sent again although an earlier try may have been executed."""
        return True

    def on_connection_lost(self, error: Exception) -> None:
        """Send the request on the next connection unless it is finished; fail if it is not repeatable."""
        if not self.repeatable:
            self.on_unavailable(error)
        elif not self.finished:
            self.node.send(self)

    def on_unavailable(self, error: Exception) -> None:
        if not self.finished:
            self.finish()
            self.failed(unavailable(self.node, self.name, error))

    def on_timeout(self, now: float) -> None:
        """Suspect the connection when the reply is late; fail when the time limit has passed."""
        if self.finished:
            return
        if self.timer.scale.floor(self.until) > self.timer.wheel.now:
            if self.maybe_executed or self.node.crowded:
                self.node.suspect()
            self.timer.wheel.schedule(self, self.timer.scale.floor(self.until))
            return
        if not (self.node.connected and (self.maybe_executed or self.node.crowded)):
            self.on_unavailable(why_unsent(self.node, self.limit_s))
            return
        self.withdraw()
        self.finish()
        # A shorter time limit says nothing about the connection, unless requests of callers wait for room in it.
        if self.limit_s >= self.suspicion_s or self.node.crowded:
            self.node.suspect()
        # If the server has refused it again and again, that is what its caller hears, although the last try has no answer.
        refused = None if self.refusal is None else unavailable(self.node, self.name, self.refusal)
        self.failed(refused or no_answer(self.node, self.name, self.limit_s))


class RightsCheck(Request):
    """The check which commands the user may not call, ahead of a request that needs some of them."""

    __slots__ = ("_request",)

    def __init__(self, request: CallerRequest) -> None:
        super().__init__(request.table, request.node)
        self._request = request

    def call(self) -> Command:
        return self.node.rights_call()

    @property
    def awaited(self) -> bool:
        return not self._request.finished

    def _go_on(self, missing: frozenset[str]) -> None:
        self.finished = True
        self.node.missing_rights = missing
        if missing & self._request.needs:
            self._request.forbidden(missing & self._request.needs)
        elif not self._request.finished:
            self.node.send(self._request)

    def value_reply(self, reply: Reply) -> None:
        self._go_on(read_missing(reply))

    def error_reply(self, error: ServerError) -> None:
        known = self.node.missing_rights
        self._go_on(error.forbidden & _TO_CALL_SCRIPTS)  # the request itself will meet any other error
        self.node.missing_rights = known  # the error says nothing about other commands

    def crashed(self, error: Exception) -> None:
        super().crashed(error)
        self._request.crashed(error)

    def on_connection_lost(self, error: Exception) -> None:
        self.finished = True
        self._request.on_connection_lost(error)

    def on_unavailable(self, error: Exception) -> None:
        self.finished: bool = True
        self._request.on_unavailable(error)


class LeaseRequest(CallerRequest):
    """A request about one held lease."""

    __slots__ = ("_future", "lease")

    def __init__(self, table: LeaseTable, lease: Lease, future: Future[None]) -> None:
        super().__init__(table, node_of(lease), lease.name)
        self._future = future
        self.lease: Lease = lease

    @property
    def leases(self) -> Sequence[Lease]:
        return (self.lease,)

    def failed(self, error: WheelLockError) -> None:
        self._future.set_exception(error)


def hold_limit_error(name: str | bytes | None, options: LockOptions, took_s: float) -> LockTimeout | None:
    """Return the error for a grant that took ``took_s`` seconds, longer than its hold limit; None if it has none."""
    limit_s = options.max_hold_s
    if limit_s is None or limit_s >= options.timeout_s:
        return None
    took = f"The grant of the lock {quoted(name)} arrived after {took_s:.3f} s"
    return LockTimeout(f"{took}, and it may be held for {limit_s:g} s only (max_hold)", name)


def refused_by_server(
    error: ServerError, name: str | bytes | None, missing: Iterable[str] = frozenset()
) -> LockServerError:
    """Return the exception for a caller: the server's error, and the commands that the user may not call."""
    names = ", ".join(sorted(missing)).upper()
    lacks = f"; the user may not call {names}" if names else ""
    return LockServerError(f"{_with_remedy(error)}{lacks} (lock {quoted(name)})", name, code=error.code)


def needs_of(lock_type: LockType, lease: Lease, *, renewed: bool) -> frozenset[str]:
    """Return the commands that the release of a lease calls, and if it is ``renewed`` its renewals.

    A missing right for its acquire shows in the reply to that.
    """
    release, release_many = lock_type.release(lease).script, lock_type.release_many([lease]).script
    used = (release, release_many, lock_type.renew if renewed else None)
    return _TO_CALL_SCRIPTS.union(*[script.commands for script in used if script is not None])


def in_calls(leases: list[Lease], size: int) -> list[list[Lease]]:
    """Return leases of one group, by the calls about ``size`` leases each that are sent for them."""
    return [leases[start : start + size] for start in range(0, len(leases), size)]


def batch_call(script: Script, lock_type: LockType, leases: Sequence[Lease], *first: bytes) -> Command:
    """Return the call of a batched script about ``leases``, whose encoded arguments begin with ``first``."""
    body = b"".join((*first, encoded(leases)))
    return Command(script, 0, len(first) + lock_type.args_per_lease * len(leases), body)
