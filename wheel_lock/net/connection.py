"""One non-blocking, pipelined connection to a node. Bytes out, replies in, each reply to the request it belongs to.

It never waits, and it knows nothing of locks. When anything is wrong with it - closed, reset, a reply that nobody asked
for or that makes no sense - it is dropped as a whole, and every request without a reply is told that it has none.

A request is *on the wire* from its first byte on: from then on it keeps its place in the order of the replies. Before
that it can be removed without a trace.
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

from wheel_lock.net.connector import Connection
from wheel_lock.protocol.reply_reader import NOTHING, TO_REQUESTS, ReplyReader, as_malformed
from wheel_lock.protocol.resp import MalformedReply, Reply, command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.failures import FailureDomain, contain, guarded
from wheel_lock.runtime.timer import HashedWheelTimer

READ_BYTES = 1 << 18
_BYTES_A_TURN = 1 << 20  # so that a flood of replies does not delay timers
_REPLIES_A_TURN = 1 << 13
_PUSHES_A_TURN = 1 << 8  # the server alone decides how many come, and each may wake a waiter
MOST_QUEUED_BYTES = 1 << 20  # encoded and not on the wire; beyond it callers' requests wait
_JOINED_BYTES = 1 << 16  # of small parts that are joined for one write, which is faster than a write each
_LARGE_BYTES = 1 << 12  # parts from this size on are not copied
_PARTS = 64  # of one write: well below every system's IOV_MAX
_AT_ONCE = struct.pack("ii", 1, 0)  # linger for no time: the connection is reset
_BLOCKED = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class NodeRequest(FailureDomain, Protocol):
    """Something that is sent and waits for one reply; it may have to wait for a connection first."""

    @property
    def finished(self) -> bool: ...

    @property
    def may_wait(self) -> bool: ...

    @property
    def awaited(self) -> bool: ...

    def unsent(self) -> None: ...

    def encode(self, capability: int) -> bytes: ...

    def on_reply(self, reply: Reply) -> None: ...

    def on_connection_lost(self, error: Exception) -> None: ...

    def on_unavailable(self, error: Exception) -> None: ...

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest: ...


class BareCommand:
    """A command whose reply is of no interest, or comes as a push.

    Args:
        words: Its name and arguments.
    """

    finished = False
    may_wait = False
    awaited = False
    above = None

    def __init__(self, *words: bytes) -> None:
        self._bytes = command(*words)

    def encode(self, capability: int) -> bytes:
        """Return the command as it is sent."""
        return self._bytes

    def unsent(self) -> None: ...

    def on_reply(self, reply: Reply) -> None: ...

    def on_connection_lost(self, error: Exception) -> None: ...

    def on_unavailable(self, error: Exception) -> None: ...

    def crashed(self, error: Exception) -> None: ...

    def ahead(self, missing_rights: frozenset[str]) -> NodeRequest:
        """Return the command itself: it needs no rights of scripts."""
        return self


class PipelinedConnection:
    """A pipelined connection. Timer's thread only.

    Attributes:
        most: Maximum number of replies per turn.

    Args:
        timer: Whose thread and selector it uses.
        connection: What it now owns.
        domain: What a failure costs that concerns more than one request.
        on_reply: Called after each batch of replies.
        on_lost: Called once, with the error, when it has been dropped; the requests are told right after.
    """

    most = _REPLIES_A_TURN

    def __init__(
        self,
        timer: HashedWheelTimer,
        connection: Connection,
        domain: FailureDomain | None,
        on_reply: Callable[[], object],
        on_lost: Callable[[PipelinedConnection, Exception], object],
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
        self._unfinished = False  # received replies are left for a later turn
        self._requests: deque[NodeRequest] = deque()  # on the wire, in the order of their replies
        self._out: dict[NodeRequest, bytes] = {}  # none of their bytes is on the wire
        self._out_bytes = 0
        self._rest = memoryview(b"")  # unsent part of a request that is on the wire
        # TLS hides buffered data from the selector. It is written one buffer at a time, and must get the same buffer again
        # if it could not send all of it.
        self._secure = hasattr(self._sock, "pending")
        self._gathers = not self._secure and hasattr(self._sock, "sendmsg")
        self._flush_wanted = False
        self._writing = False
        # Called once, when all queued requests are on the wire.
        self.when_room: Callable[[], object] | None = None
        self.open = True
        timer.watch(self._sock, selectors.EVENT_READ, self._ready, domain)

    @property
    def unanswered(self) -> int:
        """How many requests wait for their reply."""
        return len(self._requests) + len(self._out)

    @property
    def deserted(self) -> bool:
        """Whether none of the replies is awaited. O(n)."""
        return not any(request.awaited for request in chain(self._requests, self._out))

    def full(self, most: int) -> bool:
        """Whether requests that may wait should: the socket is blocked, much is queued, or ``most`` are unanswered."""
        return self._writing or self._out_bytes >= MOST_QUEUED_BYTES or len(self._requests) + len(self._out) >= most

    def send(self, request: NodeRequest) -> None:
        """Queue ``request``; it is written, together with all others, at the end of this turn."""
        try:
            data = request.encode(self._capability)
        except Exception as error:
            contain(request, request.encode, error)
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
        """Write as much as the socket takes now; the rest when it can take more."""
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

    def _write(self) -> None:
        """Write once: the rest of a request in progress, else queued requests, the small ones joined."""
        if self._rest:
            self._rest = self._rest[self._sock.send(self._rest) :]
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
            # TLS does not say how much of an incomplete write is on the wire.
            self._begun(len(data))
            self._rest = memoryview(data)
        elif (sent := self._sock.send(data)) == self._out_bytes:
            self._requests.extend(out)
            out.clear()
            self._out_bytes = 0
        else:
            self._begun(sent)

    def _few(self) -> list[bytes]:
        """Return the first queued parts: one, or as many as may be joined."""
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
            self._read()

    def _read(self) -> None:
        left = _BYTES_A_TURN
        while self.open and not self._unfinished:
            try:
                data = self._sock.recv(READ_BYTES)
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
            # TLS hides what it has buffered from the selector, so it must be read until it blocks.
            if len(data) < READ_BYTES and not self._secure:
                return
            if left <= 0:
                if self._secure and self.open and not self._unfinished:
                    self._go_on_later()
                return

    def _go_on_later(self) -> None:
        self._unfinished = True
        self._timer.post(self._go_on, self._domain)

    def _go_on(self) -> None:
        """In the next turn: handle replies that were left, and read what the selector does not see."""
        self._unfinished = False
        if self.open:
            self._answer(b"")
        if self._secure:
            self._read()

    def _take(self, reply: Reply) -> None:
        if not self._requests:
            raise MalformedReply("a reply that nothing was asked for")
        # It stays first in line until it has taken the reply: if that makes no sense it counts as unanswered.
        self._requests[0].on_reply(reply)
        self._requests.popleft()

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
                    # Every exception of a parser is caused by the server's bytes.
                    raise as_malformed(error) from error
                answered = fresh = True
                self._take(reply)
                if not self.open:
                    return
            else:
                self._fresh = fresh
                self._go_on_later()
        except MalformedReply as error:
            self.drop(error)
            return
        except Exception as error:
            # A bug of ours: no reply may go to the wrong request, and this one's request is in doubt.
            request = self._requests.popleft() if self._requests else None
            self.drop(error)
            contain(request or self._domain, self._take, error)
            return
        if self.open and answered:
            self._on_reply()

    def drop(self, error: Exception) -> None:
        """Close it; every request without a reply is told ``error``. Harmless when dropped already."""
        if self.open:
            if self._requests or self._rest or self._out:
                self._reset()
            unsent = list(self._out)
            requests = self.close()
            self._on_lost(self, error)
            for request in unsent:
                guarded(request, request.unsent)
            for request in requests:
                guarded(request, request.on_connection_lost, error)

    @property
    def above(self) -> FailureDomain | None:
        """What the connection belongs to."""
        return self._domain

    def crashed(self, error: Exception) -> None:
        """Drop it: the library's own code has failed in the middle of a write, of which anything may be on the wire."""
        self._requests.extend(self._out)
        self._out.clear()
        self.drop(error)

    def _reset(self) -> None:
        """Have the system forget what it has not delivered yet.

        It would go on trying after an orderly close, and what was meant to come first could arrive long after the same
        request, and others, on the next connection.
        """
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        except OSError:
            pass  # it is gone already

    def close(self) -> list[NodeRequest]:
        """Close it, and return the requests without a reply; nobody is told. Harmless when closed already."""
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
        self._rest = memoryview(b"")
        self.when_room = None

    def after_fork_in_child(self) -> None:
        """In a forked child: let go of it without touching what the parent shares."""
        self.open = False
        self._connection.after_fork_in_child()
        self._let_go()


class PushConnection(PipelinedConnection):
    """A connection on which the server speaks when it likes: one that has subscribed to something.

    Args:
        on_push: Called with each thing that the server says.
        timer, connection, domain, on_reply, on_lost: As for the class above.
    """

    most = _PUSHES_A_TURN

    def __init__(
        self,
        on_push: Callable[[Reply], object],
        timer: HashedWheelTimer,
        connection: Connection,
        domain: FailureDomain | None,
        on_reply: Callable[[], object],
        on_lost: Callable[[PipelinedConnection, Exception], object],
    ) -> None:
        super().__init__(timer, connection, domain, on_reply, on_lost)
        self._on_push = on_push

    @property
    def unanswered(self) -> int:
        """Always 0: every message of the server goes to ``on_push``."""
        return 0

    def flush(self) -> None:
        """Write as much as the socket takes now; no request waits for a reply."""
        super().flush()
        self._requests.clear()

    def _take(self, reply: Reply) -> None:
        self._on_push(reply)
