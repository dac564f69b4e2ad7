"""Requests: what the engine sends on behalf of callers, how often it tries, and when it gives up.

A caller's request is sent again on the next connection if its own breaks, until its time is up. Whatever ends an
acquire without a grant that somebody waits for is followed by an owner-checked release, on the same road and so in the
right order: no grant is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from wheel_lock.engine.future import Future
from wheel_lock.engine.interfaces import Shard, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.errors import LockServerError, LockTimeout, LockUnavailable, WheelLockError, internal_error, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.connection import NodeRequest
from wheel_lock.net.node import Node
from wheel_lock.options import LockOptions, lock_name
from wheel_lock.protocol.resp import LONG_TEXT, MalformedReply, Reply, error_text
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.wheel import WheelEntry

_MOMENT_S = 0.05  # what is suspicious so soon goes onto the wheel at once
_LEAST_S = 0.1  # what a try is given however little time its caller has left: a round trip to a healthy server
_LEAST_CONNECTING_S = 0.5  # the same where it has to wait for a connection


class RequestTimeouts:
    """The wheel's group of requests whose time may run out."""

    def due(self, entries: Sequence[Any], now: float) -> None:
        """Tell each request that it is late."""
        for request in entries:
            guarded(request, request.on_timeout, now)

    def domains(self, entries: Sequence[Any]) -> Sequence[FailureDomain]:
        """Return what a failure costs: each request is a domain of its own."""
        return entries


REQUEST_TIMEOUTS = RequestTimeouts()


def least_s(node: Node) -> float:
    """Return how long a try at ``node`` may take in any case, in seconds, however little time its caller has left."""
    return _LEAST_S if node.connected else _LEAST_CONNECTING_S


def no_answer(node: Node, name: str | bytes | None, limit_s: float) -> LockTimeout | LockUnavailable:
    """Return the error for a caller who has waited for so many seconds, and whose node has not answered."""
    if not node.connected:
        return unavailable(node, name, why_unsent(node, limit_s))
    place = node.connector.describe()
    return LockTimeout(f"{place} did not answer within {limit_s:.3g} s (lock {quoted(name)})", name)


def unavailable(node: Node, name: str | bytes | None, cause: Exception) -> LockUnavailable:
    """Return the error for a caller whose request cannot be sent."""
    why = error_text(cause, LONG_TEXT)
    error = LockUnavailable(f"No connection to {node.connector.describe()}: {why} (lock {quoted(name)})", name)
    error.__cause__ = cause
    return error


def why_unsent(node: Node, limit_s: float) -> Exception:
    """Return why nothing could be sent, or nothing was carried out, for so many seconds."""
    why = "refused again and again" if node.connected else "not connected"
    return node.last_error or TimeoutError(f"{why} within {limit_s:.3g} s")


class Request(WheelEntry):
    """One command that waits for one reply; on the wheel it waits for its time limit.

    Attributes:
        asked: It has gone to a node that does not own its slot yet, because the owner has said so.
        declared: As it was last sent, it declared its keys, or was no call of a script.
        finished: Nobody waits for its reply any more.
        in_full: Its script is sent as text because the server did not know its SHA-1.
        sends: How often it has been sent.
        sent_at: When it was last about to be sent, in seconds of the timer's clock.
    """

    __slots__ = (
        "attempts",
        "declared",
        "finished",
        "group",
        "node",
        "sent_asking",
        "sent_at",
        "table",
        "timer",
        "use_eval",
    )

    def __init__(self, table: LeaseTable, node: Node) -> None:
        self.tick = -1
        self.group = REQUEST_TIMEOUTS
        self.table = table
        self.timer = timer = table.timer
        self.node = node
        self.sent_asking = False
        self.declared = False
        self.finished = False
        self.use_eval = False
        self.attempts = 0
        self.sent_at = timer.now

    def call(self) -> Command:
        """Return the command."""
        raise NotImplementedError

    def encode(self, capability: int) -> bytes:
        """Return the bytes to send, noting the time before they exist."""
        self.sent_at = self.timer.now
        call = self.call()
        if self.node.declares:
            call = call.declared()  # then a node of a cluster that does not own it says who does
        self.declared = call.keys > 0 or call.script is None
        self.attempts += 1
        return call.encode(capability, self.use_eval)

    def on_reply(self, reply: Reply) -> None:
        """Take the reply. Raises MalformedReply, before anything has changed, if it makes no sense."""
        if isinstance(reply, ServerError):
            if not self.use_eval and reply.code == "NOSCRIPT":
                self.use_eval = True
                self.resend()
            else:
                self.error_reply(reply)
        else:
            self.value_reply(reply)

    @property
    def wanted(self) -> bool:
        """Whether there is any use in sending it once more."""
        return not self.finished

    def resend(self) -> None:
        """Send it once more, at once."""
        if not self.finished:
            self.node.send(self)

    @property
    def may_wait(self) -> bool:
        """Whether it waits for room in a full connection. False for requests about held leases."""
        return False

    @property
    def awaited(self) -> bool:
        """Whether its reply is awaited."""
        return not self.finished

    def unsent(self) -> None:
        """It was queued at a channel, and none of its bytes has been sent."""
        self.attempts -= 1

    @property
    def leases(self) -> Sequence[Lease]:
        """The leases that it is about."""
        return ()

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        """What is sent where the user may not call some commands: itself, or what looks for the rights ahead of it."""
        return self

    @property
    def key(self) -> bytes | None:
        """The name that decides about its node; None where there is none."""
        return self.leases[0].key if self.leases else None

    def redirect_to(self, shard: Shard) -> None:
        """Send the request to another node, where the leases that it is about live by now."""
        for lease in self.leases:
            self.table.router.migrate(lease, shard)
        self.sent_asking = False
        self.node = self.node_on(shard)
        self.resend()

    def node_on(self, shard: Shard) -> Node:
        """Return the connection on which the request goes to a node."""
        return shard.node

    def retry_after(self, pause_s: float, *, maybe_executed: bool = False) -> bool:
        """Send it again after a pause, if that is its way; its last try was not carried out, or not ``perhaps_done``."""
        return False

    @property
    def above(self) -> FailureDomain:
        """The engine."""
        return self.table.state

    def crashed(self, error: Exception) -> None:
        """End it and the leases that it is about: the library's own code has failed in the middle of it."""
        self.finished = True
        self.timer.wheel.cancel(self)
        for lease in self.leases:
            self.table.give_up([lease])

    def value_reply(self, reply: Reply) -> None:
        """Take a reply that is no error."""
        raise NotImplementedError

    def error_reply(self, error: ServerError) -> None:
        """Take an error reply."""
        raise NotImplementedError

    def on_connection_lost(self, error: Exception) -> None:
        """Its connection has gone without a reply."""
        raise NotImplementedError

    def on_unavailable(self, error: Exception) -> None:
        """It will never be sent (again)."""
        raise NotImplementedError

    def on_timeout(self, now: float) -> None:
        """Its time is up."""
        raise NotImplementedError


class CallerRequest(Request):
    """A request that a caller waits for, with a time limit that includes reconnecting.

    Args:
        table: The leases of the engine.
        node: Where it is sent.
        name: The lock's name, for errors.
        limit_s: How long it may take.
    """

    __slots__ = ("limit_s", "name", "suspicion_s", "until")

    def __init__(self, table: LeaseTable, node: Node, name: str | bytes | None, limit_s: float) -> None:
        # Not through super(): there are two of these in every acquire and release.
        self.tick = -1
        self.group = REQUEST_TIMEOUTS
        self.table = table
        self.timer = timer = table.timer
        self.node = node
        self.sent_asking = False
        self.declared = False
        self.finished = False
        self.use_eval = False
        self.attempts = 0
        self.sent_at = timer.now
        self.name = name
        self.limit_s = limit_s
        self.suspicion_s = limit_s / 5  # silence for so long makes the connection suspect
        self.until = 0.0

    def start(self) -> None:
        """Send it and let its time run."""
        timer = self.timer
        self.limit_s += self.node.expected_delay_s
        self.suspicion_s += self.node.expected_delay_s
        self.until = timer.now + self.limit_s
        if self.suspicion_s > _MOMENT_S:
            self.node.expect(self)
        else:
            self.look_later()
        self.node.send(self)

    def look_later(self) -> None:
        """Be told by the wheel when it has been unanswered for suspiciously long."""
        timer = self.timer
        timer.wheel.schedule(self, timer.scale.floor(self.until - self.limit_s + min(self.suspicion_s, self.limit_s)))

    @property
    def executions(self) -> int:
        """How often the server may have carried it out: a call that it had no script for does not count."""
        return self.attempts - self.use_eval

    def finish(self) -> None:
        """Nobody waits any more."""
        self.finished = True
        if self.tick >= 0:
            self.timer.wheel.cancel(self)

    def withdraw(self) -> None:
        """Its caller is giving up: remove it from the channel if none of its bytes has been sent."""
        if self.may_wait and self.node.withdraw(self):
            self.unsent()

    def failed(self, error: WheelLockError) -> None:
        """Tell the caller."""
        raise NotImplementedError

    def crashed(self, error: Exception) -> None:
        self.finish()
        super().crashed(error)
        self.failed(internal_error(error, self.name))

    def error_reply(self, error: ServerError) -> None:
        """The server's error is the caller's, unless another server is to be asked."""
        if self.goes_elsewhere(error):
            return
        if self.node.note_keys_required(error, self.declared):
            self.attempts -= 1  # it was not carried out
            if not self.finished:
                self.on_single_key_mode()
        elif not self.finished:
            script = self.call().script
            missing = script.commands & self.node.missing_rights if script and error.code == "NOPERM" else frozenset()
            self.finish()
            self.failed(refused_by_server(error, self.name, missing))

    @property
    def needs(self) -> frozenset[str]:
        """The commands that the user must be allowed to call if it is to make any sense; see rights.py."""
        return frozenset()

    def forbidden(self, commands: Iterable[str]) -> None:
        """The user may not call commands that are needed: nothing is sent."""
        if not self.finished:
            self.finish()
            self.attempts += bool(self.attempts)  # what became of earlier ones is not known, and this counts as refused
            error = ServerError("NOPERM a lock of this kind could not be renewed, or not be released")
            self.failed(refused_by_server(error, self.name, commands))

    def goes_elsewhere(self, error: ServerError) -> bool:
        """Send it where, or when, it can be carried out if an error tells that; return whether it does."""
        if self.table.router.redirect(self, error):
            return True
        moves = self.goes_to_another_master(error)
        if moves:
            self.attempts -= 1  # it was not carried out
            self.node.demoted(error, self)
        return moves

    def goes_to_another_master(self, error: ServerError) -> bool:
        """Whether it has been refused by a server that is no master any more, and will be sent to the one that is."""
        return error.code == "READONLY" and self.node.connector.discovers

    def on_single_key_mode(self) -> None:
        """Its node wants one lease a call, with its keys declared."""
        self.resend()

    def retry_after(self, pause_s: float, *, maybe_executed: bool = False) -> bool:
        self.attempts -= not maybe_executed
        self.timer.call_at(self.timer.now + pause_s, lambda now: self.table.router.resend(self), self)
        return True

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent again although an earlier try may have been carried out."""
        return True

    def on_connection_lost(self, error: Exception) -> None:
        """Try again on the next connection, as long as somebody waits."""
        if not self.repeatable:
            self.on_unavailable(error)
        elif not self.finished:
            self.node.send(self)

    def on_unavailable(self, error: Exception) -> None:
        """Give up: there will be no connection."""
        if not self.finished:
            self.finish()
            self.failed(unavailable(self.node, self.name, error))

    def on_timeout(self, now: float) -> None:
        """Give up: the time is up."""
        if self.finished:
            return
        if self.timer.scale.floor(self.until) > self.timer.wheel.now:
            if self.attempts or self.node.crowded:
                self.node.suspect()
            self.timer.wheel.schedule(self, self.timer.scale.floor(self.until))
            return
        if not (self.node.connected and (self.attempts or self.node.crowded)):
            self.on_unavailable(why_unsent(self.node, self.limit_s))
            return
        self.withdraw()
        self.finish()
        # A shorter time says nothing about the connection, unless very much is unanswered there.
        if self.limit_s >= self.suspicion_s or self.node.crowded:
            self.node.suspect()
        self.failed(no_answer(self.node, self.name, self.limit_s))


class Query(CallerRequest):
    """A plain read."""

    __slots__ = ("_call", "_future", "_read")

    @property
    def may_wait(self) -> bool:
        return not self.sent_asking

    def __init__(
        self,
        table: LeaseTable,
        node: Node,
        name: str | bytes,
        limit_s: float,
        call: Command,
        read: Callable[[Reply], Any],
        future: Future[Any],
    ) -> None:
        super().__init__(table, node, name, limit_s)
        self._call = call
        self._read = read
        self._future = future

    def call(self) -> Command:
        return self._call

    def value_reply(self, reply: Reply) -> None:
        value = self._read(reply)
        self.finish()
        self._future.set_result(value)

    def error_reply(self, error: ServerError) -> None:
        if not self.finished and error.code == "WRONGTYPE":
            try:
                self.value_reply(None)  # what was asked for is not there: something else is
                return
            except MalformedReply:
                pass  # and nothing can be concluded from that
        super().error_reply(error)

    @property
    def key(self) -> bytes | None:
        return None if self.name is None else lock_name(self.name)

    def failed(self, error: WheelLockError) -> None:
        self._future.set_exception(error)


def start_query(
    table: LeaseTable, name: str | bytes, call: Command, read: Callable[[Reply], Any], future: Future[Any]
) -> None:
    """Ask the server something about a name; the operation completes with what ``read`` makes of the reply."""
    node = table.router.shard_of(lock_name(name)).node
    Query(table, node, name, table.state.options.response_timeout_s, call, read, future).start()


def hold_limit_error(name: str | bytes | None, options: LockOptions, took_s: float) -> LockTimeout | None:
    """Return what to raise where a grant took ``took_s`` seconds, longer than its hold limit; None where it has none."""
    limit_s = options.max_hold_s
    if limit_s is None or limit_s >= options.timeout_s:
        return None
    took = f"The grant of the lock {quoted(name)} arrived after {took_s:.3f} s"
    return LockTimeout(f"{took}, and it may be held for {limit_s:g} s only (max_hold)", name)


def refused_by_server(
    error: ServerError, name: str | bytes | None, missing: Iterable[str] = frozenset()
) -> LockServerError:
    """Return the exception that tells a caller of the server's error, and of commands that the user may not call."""
    names = ", ".join(sorted(missing)).upper()
    lacks = f"; the user may not call {names}" if names else ""
    return LockServerError(f"{error_text(error)}{lacks} (lock {quoted(name)})", name, code=error.code)


def batch_call(script: Any, lock_type: LockType, leases: Sequence[Lease], *first: bytes) -> Command:
    """Return the call of a batched script about ``leases``, whose encoded arguments begin with ``first``."""
    body = b"".join((*first, *[lease.lease_args for lease in leases]))
    return Command(script, 0, len(first) + lock_type.args_per_lease * len(leases), body)


def node_of(lease: Lease) -> Node:
    """The node that a lease lives on."""
    return group_of(lease).renewer.node


def acquiring_node_of(lease: Lease) -> Node:
    """The node that a lease will live on, on the channel for acquires."""
    return group_of(lease).renewer.acquiring_node
