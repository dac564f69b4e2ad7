"""One non-blocking, pipelined connection to a server: requests out, replies in, matched by their order.

It never blocks and knows nothing of locks. On any error - closed, reset, an unexpected or malformed reply - it is dropped
as a whole, and ``on_connection_lost`` is called on every request without a reply.

A request is *on the wire* as soon as its first byte has been sent; from then on it keeps its place in the order of the
replies. Before that it can be removed without a trace.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from itertools import chain, islice
from typing import Protocol

import hiredis

from wheel_lock.net.brief_wait import BriefWait
from wheel_lock.net.connector import Connection
from wheel_lock.protocol.reply_reader import NOTHING, TO_REQUESTS, ReplyReader, as_malformed
from wheel_lock.protocol.resp import MalformedReply, Reply, command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.failures import FailureDomain, contain, guarded
from wheel_lock.runtime.held_calls import receiver, sender
from wheel_lock.runtime.loop import Flusher
from wheel_lock.runtime.timer import HashedWheelTimer

_READ_BYTES = 16_000  # size of each connection's buffer; most replies are shorter
_BYTES_A_TURN = 1 << 20  # limit per turn: a flood of replies must not delay timers
_REPLIES_A_TURN = 1 << 13
_PUSHES_A_TURN = 1 << 8  # limit per turn: the server alone decides on their number, and each may wake a waiter
MOST_QUEUED_BYTES = 1 << 20  # limit for encoded requests that are not sent yet; beyond it callers' requests wait
_JOINED_BYTES = 1 << 16  # limit for small parts that are joined for one write, which is faster than a write each
_LARGE_BYTES = 1 << 12  # larger parts are not copied
_PARTS = 64  # limit of parts per write, well below every system's IOV_MAX
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER with zero time: the connection is reset
_NOTHING = memoryview(b"")  # an empty part of a memoryview would keep the whole of it
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

OnDropped = Callable[["PipelinedConnection", Exception], object]


def reset_at_close(sock: socket.socket) -> None:
    """Have the system discard, when ``sock`` is closed, the bytes that it has not delivered yet.

    After an orderly close it would go on trying to deliver them, so a request could arrive long after the same request,
    and later ones, on the next connection.
    """
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    except OSError:
        pass  # the socket is closed already


class NodeRequest(FailureDomain, Protocol):
    """A command with one reply."""

    @property
    def finished(self) -> bool: ...  # completed or abandoned: no longer to be sent

    @property
    def may_wait(self) -> bool: ...  # for room in a full connection

    @property
    def awaited(self) -> bool: ...  # a reply still matters

    def outlasts_refusal(self, *, first: bool) -> bool: ...  # wait for a server that refuses connections; see Request

    def encode(self, capability: int) -> bytes:
        """Return the bytes for a server of that capability level, or none to send nothing: it has ended just now.

        Called when it is queued at a connection.
        """

    def unsent(self) -> None:
        """Called, before ``on_connection_lost``, if it was encoded and none of its bytes was sent."""

    def on_reply(self, reply: Reply) -> None:
        """Take the reply. Raises MalformedReply, with nothing changed, if the reply is malformed."""

    def on_connection_lost(self, error: Exception) -> None:
        """Called when the connection was lost before the reply."""

    def on_unavailable(self, error: Exception) -> None:
        """Called when it will not be sent (again)."""

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        """Return the request to send where the user lacks rights: itself, or one that checks them first."""


class BareCommand:
    """A command, given as its words, whose reply is ignored or arrives as a push message."""

    finished = may_wait = awaited = False
    above: FailureDomain | None = None

    def __init__(self, *words: bytes) -> None:
        self._bytes = command(*words)

    def outlasts_refusal(self, *, first: bool) -> bool:
        return True

    def encode(self, capability: int) -> bytes:
        return self._bytes

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        return self

    def on_reply(self, reply: Reply) -> None: ...

    def on_connection_lost(self, error: Exception) -> None: ...

    def _ignore(self, *_: object) -> None: ...

    unsent: Callable[..., None] = _ignore
    on_unavailable: Callable[..., None] = _ignore
    crashed: Callable[..., None] = _ignore


class PipelinedConnection(Flusher):
    """A pipelined connection. Timer's thread only.

    Args:
        timer: The timer whose thread and selector it uses.
        connection: The connection, which it owns from now on.
        domain: The failure domain above this one, for failures that concern more than one request.
        on_reply: Called after each batch of replies.
        on_lost: Called once, with this object and the error, when it is dropped, before its requests are notified.

    Attributes:
        most: The largest number of replies per turn.
        open: True until it is closed or dropped.
        when_room: Called once, when all queued requests are on the wire, if not None.
    """

    most = _REPLIES_A_TURN

    def __init__(
        self,
        timer: HashedWheelTimer,
        connection: Connection,
        domain: FailureDomain | None,
        on_reply: Callable[[], object],
        on_lost: OnDropped,
    ) -> None:
        self._timer = timer
        self._domain = domain
        self._connection = connection
        self._sock = connection.sock
        self._capability = connection.capability
        self._on_reply = on_reply
        self._on_lost = on_lost
        parser = hiredis.Reader(replyError=ServerError, protocolError=MalformedReply, notEnoughData=NOTHING)
        self._reader = ReplyReader(parser, TO_REQUESTS)
        self._fresh = False  # a reply was complete since the last feed, in a turn that left replies
        self._unfinished = False  # received replies are left for the next turn
        self._requests: deque[NodeRequest] = deque()  # on the wire, in the order of their replies
        self._out: dict[NodeRequest, bytes] = {}  # none of their bytes is on the wire
        self._out_bytes = 0
        self._rest = _NOTHING  # unsent part of a request that is on the wire
        # The selector does not see data that TLS has buffered. TLS takes one buffer per write, and must get the same buffer
        # again if it could not send all of it.
        self._secure = hasattr(self._sock, "pending")
        self._brief = BriefWait(self._sock, timer.first_wait)
        self._send = sender(self._sock)
        self._receive = receiver(self._sock, _READ_BYTES)
        self._gathers = not self._secure and hasattr(self._sock, "sendmsg")
        self._flush_wanted = False
        self._writing = False
        self.when_room: Callable[[], object] | None = None
        self.open: bool = True
        timer.watch(self._sock, selectors.EVENT_READ, self._ready, domain)

    @property
    def unanswered(self) -> int:
        """The number of requests without a reply."""
        return len(self._requests) + len(self._out)

    @property
    def deserted(self) -> bool:
        """True if no reply is awaited. O(n)."""
        return not any(request.awaited for request in chain(self._requests, self._out))

    def full(self, most: int) -> bool:
        """Return whether the socket blocks, too many bytes are queued, or ``most`` requests are unanswered."""
        return self._writing or self._out_bytes >= MOST_QUEUED_BYTES or len(self._requests) + len(self._out) >= most

    def send(self, request: NodeRequest) -> None:
        """Encode and queue ``request``; all queued requests are written together at the end of this turn."""
        try:
            data = request.encode(self._capability)
        except Exception as error:
            contain(request, request.encode, error)
            return
        if not data:
            return
        self._out[request] = data
        self._out_bytes += len(data)
        if not self._flush_wanted:
            self._flush_wanted = True
            self._timer.flush_later(self)

    def withdraw(self, request: NodeRequest) -> bool:
        """Remove ``request`` if none of its bytes is on the wire; return whether it was removed."""
        data = self._out.pop(request, None)
        if data is None:
            return False
        self._out_bytes -= len(data)
        return True

    def flush(self) -> None:
        """Write as much as the socket takes now, and the rest when the socket is writable again."""
        self._flush_wanted = False
        if not self.open:
            return
        try:
            while self._rest or self._out:
                self._write()
        except _BLOCKED:
            pass
        except OSError as error:
            self.drop(error)
            return
        unsent = bool(self._rest or self._out)
        if self._writing is not unsent:
            self._writing = unsent
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
            self._timer.watch(self._sock, events, self._ready, self._domain)
        if self.when_room is not None and not unsent:
            callback, self.when_room = self.when_room, None
            callback()
        if self._brief.possible and not unsent and self._brief.after_write(self.unanswered, self._timer.now):
            self._timer.read_clock()
            self._read()

    def _write(self) -> None:
        """Write once: the rest of a partly sent request, or else queued requests, with small ones joined."""
        if self._rest:
            self._rest = self._rest[self._sock.send(self._rest) :] or _NOTHING
            return
        out = self._out
        if self._out_bytes <= _JOINED_BYTES:
            data = b"".join(out.values())
        elif self._gathers and len(next(iter(out.values()))) >= _LARGE_BYTES:
            self._begun(self._sock.sendmsg(list(islice(out.values(), _PARTS))))
            return
        else:
            data = b"".join(self._few())
        if self._secure:
            # After an incomplete write it is unknown how much TLS has put on the wire.
            self._begun(len(data))
            self._rest = memoryview(data)
        elif (sent := self._send(data)) == self._out_bytes:
            self._requests.extend(out)
            out.clear()
            self._out_bytes = 0
        else:
            self._begun(sent)

    def _few(self) -> list[bytes]:
        """Return the first queued part, and the following ones that may be joined with it."""
        parts: list[bytes] = []
        total = 0
        for part in self._out.values():
            total += len(part)
            if parts and total > _JOINED_BYTES:
                break
            parts.append(part)
        return parts

    def _begun(self, sent: int) -> None:
        """Move the requests of which the first ``sent`` queued bytes are now on the wire."""
        begun: list[NodeRequest] = []
        for request, data in self._out.items():
            if sent <= 0:
                break
            begun.append(request)
            self._out_bytes -= len(data)
            if sent < len(data):
                self._rest = memoryview(data)[sent:]
            sent -= len(data)
        for request in begun:
            del self._out[request]
        self._requests.extend(begun)

    def _ready(self, events: int) -> None:
        if self.open and events & selectors.EVENT_WRITE:
            self.flush()
        if self.open and events & selectors.EVENT_READ:
            if self._brief.possible:
                self._brief.before_read(self._timer.now)
            self._read()

    def _read(self) -> None:
        left = _BYTES_A_TURN
        while self.open and not self._unfinished:
            try:
                data = self._receive()
            except _BLOCKED:
                return
            except OSError as error:
                self.drop(error)
                return
            if not data:
                self.drop(ConnectionResetError("the server closed the connection"))
                return
            self._answer(data)
            left -= len(data)
            # The selector does not see data that TLS has buffered, so TLS is read until it would block.
            if len(data) < _READ_BYTES and not self._secure:
                return
            if left <= 0:
                if self._secure and self.open and not self._unfinished:
                    self._go_on_later()
                return

    def _go_on_later(self) -> None:
        self._unfinished = True
        self._timer.post(self._go_on, self._domain)

    def _go_on(self) -> None:
        """Handle the replies that the previous turn left, and read what TLS has buffered."""
        self._unfinished = False
        if self.open:
            self._answer(b"")
        if self._secure:
            self._read()

    def _unasked(self, reply: Reply) -> None:
        """Take a reply that comes while no request is on the wire."""
        raise MalformedReply("a reply that nothing was asked for")

    def _answer(self, data: bytes) -> None:
        reader, gets = self._reader, self._reader.gets
        answered, fresh = False, self._fresh
        try:
            for _ in range(self.most):
                try:
                    if data:
                        reader.feed(data)
                        data = b""
                    reply = gets()
                    if reply is NOTHING:
                        if reader.more(fresh):
                            fresh = False
                            continue
                        self._fresh = False
                        break
                except Exception as error:
                    raise as_malformed(error) from error  # the server's bytes cause every exception of a parser
                answered = fresh = True
                if self._requests:
                    # Removed only after it has taken the reply: with a malformed one the request counts as unanswered.
                    self._requests[0].on_reply(reply)
                    self._requests.popleft()
                else:
                    self._unasked(reply)
                if not self.open:
                    return
            else:
                self._fresh = fresh
                self._go_on_later()
        except MalformedReply as error:
            self.drop(error)
            return
        except Exception as error:
            # A bug in this library. Dropped, so that no reply goes to the wrong request; this request's state is unknown.
            request = self._requests.popleft() if self._requests else None
            self.drop(error)
            contain(request or self._domain, self._answer, error)
            return
        if self.open and answered:
            self._on_reply()

    def drop(self, error: Exception) -> None:
        """Close the connection and notify every request without a reply. No effect if not open."""
        if self.open:
            if self._requests or self._rest or self._out:
                reset_at_close(self._sock)
            unsent = list(self._out)
            requests = self.close()
            self._on_lost(self, error)
            for request in unsent:
                guarded(request, request.unsent)
            for request in requests:
                guarded(request, request.on_connection_lost, error)

    @property
    def above(self) -> FailureDomain | None:
        return self._domain

    def crashed(self, error: Exception) -> None:
        """Drop the connection after a failure of the library's own code in a write: any byte may have been sent."""
        self._requests.extend(self._out)
        self._out.clear()
        self.drop(error)

    def close(self) -> list[NodeRequest]:
        """Close the connection and return the requests without a reply, without notifying them. No effect if not open."""
        if not self.open:
            return []
        self.open = False
        self._timer.unwatch(self._sock)
        self._connection.close()
        requests = [*self._requests, *self._out]
        self._let_go()
        return requests

    def _let_go(self) -> None:
        self._requests = deque()
        self._out = {}
        self._out_bytes = 0
        self._rest = _NOTHING
        self.when_room = None

    def after_fork_in_child(self) -> None:
        """In a forked child: release the connection without touching what the parent shares."""
        self.open = False
        self._connection.after_fork_in_child()
        self._let_go()


class PushConnection(PipelinedConnection):
    """A connection with subscriptions, on which the server sends messages without requests."""

    most = _PUSHES_A_TURN
    on_push: Callable[[Reply], object]  # called with each reply and message; set before the first turn

    @property
    def unanswered(self) -> int:
        """Always 0, because replies are not matched with requests."""
        return 0

    def flush(self) -> None:
        """Write as much as the socket takes now, and forget the requests that are on the wire."""
        super().flush()
        self._requests.clear()

    def _unasked(self, reply: Reply) -> None:
        self.on_push(reply)
