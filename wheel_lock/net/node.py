"""One server: keeps one connection to it as long as it is needed, and reports to one observer.

A node is *ready* when its connection is open and answers. A connection that is silent for too long is suspected, not
dropped: a second one is tried as a probe, and the one that answers first is used. So a server that was only paused loses
nothing that was in flight, and a server that has vanished is replaced within one attempt to connect.

Requests that may wait (those of callers) are sent while the connection has room. Otherwise they are queued here unencoded,
in the order of their calls, so a server that stops reading or answering costs a bounded amount of memory. All other
requests never wait for room; their number is bounded by that of the leases, and of the acquires that were sent.

A caller's time limit ends its request, not the connection, because it may be shorter than a pause of a healthy server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from wheel_lock.net.capabilities import PLAIN
from wheel_lock.net.connection import NodeRequest, PipelinedConnection
from wheel_lock.net.connector import (
    Connection,
    Connector,
    NothingListens,
    Server,
    as_failure,
    is_fatal,
    is_refused,
    sanitize,
)
from wheel_lock.net.request_queue import Parking
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.scripts import Command, rights_call
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.backoff import Backoff
from wheel_lock.runtime.ends import ANEW, End
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("wheel_lock")

MOST_UNANSWERED = 1 << 14  # limit of requests, beyond which those of callers wait; a healthy server rarely has as many
MOST_SUSPECTED = 1 << 10  # the limit for a suspected connection
_SOON_S = 0.02
_REQUESTS_A_TURN = 1000  # limit of waiting requests that are sent per turn: some 10 ms
_FINISHED: Callable[[NodeRequest], bool] = attrgetter("finished")


class NodeObserver:
    """The owner of a node: decides whether it is needed, and receives its events. Timer's thread only.

    A class that inherits from this one ignores the events for which it defines no method.
    """

    domain: FailureDomain  # of the node's own work

    def is_needed(self, node: Node) -> bool:
        """Return whether to reconnect although no request is queued."""
        raise NotImplementedError

    def queued(self, node: Node) -> None:
        """Called when a request has been queued because there is no connection."""
        return

    def ready(self, node: Node, *, new: bool) -> None:
        """Called when the node has become ready: on a ``new`` connection, or no longer suspected."""
        return

    def trouble(self, node: Node) -> None:
        """Called when the connection was lost, is suspected, or could not be made."""
        return


class TimedRequest(Protocol):
    """A request whose reply is expected soon."""

    @property
    def finished(self) -> bool: ...

    def look_later(self) -> None:
        """Put the request on the wheel for its time limit."""


def taken(arrived: list[T]) -> T | None:
    """Remove and return the connection in the list; None if another thread has removed it. Atomic."""
    try:
        return arrived.pop()
    except IndexError:
        return None


class Node:
    """Sends requests to one server, connecting on demand. Timer's thread only.

    Args:
        observer: The owner.
        timer: The timer on whose thread the node lives.
        connector: Makes the connections.
        options: Time limits and pauses.
        counters: Counts the connections.
        launch: Runs an attempt to connect on a thread that may block. Raises RuntimeError if it cannot.
        pipeline: Makes a pipelined connection of a connection.
        expected_delay_s: The time for which a healthy server may leave requests unanswered on this connection.

    Attributes:
        observer, connector, expected_delay_s: The arguments of these names.
        single_key_mode: True if each script call is about one lease and declares its keys.
        answers_for_all: True if an error reply to one call may hold for all: it is that of a server, and not of one server
            among those to which a service passes calls on by their keys.
        declares: True if script calls about one lease declare their keys.
        batch_size: The number of leases that one call may be about.
        calls_for_a_batch: The number of calls for as many leases as usually share one.
        server: The server of the latest connection; None before the first.
        capability: The capability level of that server.
        missing_rights: The commands of scripts that the user may not call there.
        last_error: Why there is no connection; None while there is one.
        refusal: The latest error because of which requests are repeated on this connection, or None.
        unreachable: True if the latest attempt to connect has failed.
        when_replied: Called once, after the next replies have been handled, if not None.
    """

    def __init__(
        self,
        observer: NodeObserver,
        timer: HashedWheelTimer,
        connector: Connector,
        options: ContextOptions,
        counters: Counters,
        launch: Callable[[Callable[[], None]], None],
        pipeline: Callable[..., PipelinedConnection] = PipelinedConnection,
        expected_delay_s: float = 0.0,
    ) -> None:
        self.observer = observer
        self.connector = connector
        self.expected_delay_s = expected_delay_s
        self.when_replied: Callable[[], object] | None = None
        self._domain = observer.domain
        self._timer = timer
        self._options = options
        self._counters = counters
        self._launch = launch
        self._new_pipeline = pipeline
        self._masters: Collection[Server] = ()  # the servers to connect to; any server, if empty
        self._set_mode(options.declare_keys)
        self._reset()

    def _reset(self) -> None:
        self._pipeline: PipelinedConnection | None = None
        # The engine's own requests wait for a connection; those of callers for a connection, or for room in it.
        self._own: Parking[NodeRequest] = Parking(_FINISHED)
        self._waiting: Parking[NodeRequest] = Parking(_FINISHED)
        self._most = MOST_UNANSWERED
        self._expected: list[TimedRequest] = []
        self._look: Alarm | None = None
        self._suspected = False
        self._heard = False  # a reply has arrived on this connection
        self._connecting = False
        self._closed = False
        self._retry: Alarm | None = None
        self._backoff = self._new_backoff()
        self.server: Server | None = None
        self.capability: int = PLAIN
        self.missing_rights: frozenset[str] = frozenset()
        self.last_error: Exception | None = None
        self.refusal: ServerError | None = None
        self.unreachable: bool = False
        self._failures = 0  # attempts to connect that have failed in a row

    def _new_backoff(self) -> Backoff:
        return Backoff(self._options.backoff_first_s, self._options.backoff_max_s)

    def _set_mode(self, single_key: bool) -> None:
        self.single_key_mode = single_key
        self.answers_for_all: bool = not single_key
        self.declares: bool = single_key or self.connector.in_cluster
        most = self._options.batch_size
        self.batch_size: int
        self.calls_for_a_batch: int
        self.batch_size, self.calls_for_a_batch = (1, most) if single_key else (most, 1)

    def most_leases(self, most: int) -> int:
        """Return how many leases one call may be about of which there are ``most`` where no keys need be declared."""
        return 1 if self.single_key_mode else most

    def rights_call(self) -> Command:
        """Return the call that finds the commands of scripts which the user may not call."""
        return rights_call(keyed=self.single_key_mode)

    def note_keys_required(self, error: ServerError, declared: bool) -> bool:
        """Switch to single-key mode if ``error`` says that keys must be declared.

        Args:
            error: The error reply to a call.
            declared: True if that call had declared its keys, or was not a script call.

        Returns:
            Whether to repeat the call with its keys declared: also if the reply to another call has switched already.
        """
        if declared or not error.wants_keys:
            return False
        if not self.single_key_mode:
            self._set_mode(True)
            self._log(logger.info, "keys_required", "%s wants keys to be declared: %s", error)
        return True

    def _log(self, log: Callable[..., object], event: str, text: str, error: Exception) -> None:
        """Log ``text``, in which the node and ``error`` are filled in."""
        node, reason = self.connector.describe(), error_text(error)
        NOTIFIER.post(partial(log, extra=log_fields(event, reason=reason, node=node)), text, node, reason)

    @property
    def ready(self) -> bool:
        """True if there is a connection, and it is not suspected."""
        return self._pipeline is not None and not self._suspected

    @property
    def pipeline(self) -> object:
        """The identity of the connection, for comparison; None if there is none."""
        return self._pipeline

    @property
    def connected(self) -> bool:
        """True if there is a connection, suspected or not."""
        return self._pipeline is not None

    @property
    def busy(self) -> bool:
        """True if a request waits for a reply or for a connection, or an attempt to connect is running."""
        return self._connecting or self._has_queued or self.awaits_replies

    @property
    def begins(self) -> bool:
        """True if the first attempt to connect is under way, and something waits for it that is about held leases."""
        return self._connecting and bool(self._own) and self.last_error is None

    @property
    def _has_queued(self) -> bool:
        return bool(self._own or self._waiting)

    @property
    def crowded(self) -> bool:
        """True if requests of callers wait for room in a connection."""
        return self._pipeline is not None and bool(self._waiting)

    @property
    def in_trouble(self) -> bool:
        """True if the node is needed and its server does not answer or cannot be connected to."""
        return self._suspected or (
            self._pipeline is None and self.last_error is not None and self.observer.is_needed(self)
        )

    @property
    def awaits_replies(self) -> bool:
        """True if there is a connection with unanswered requests on it."""
        return self._pipeline is not None and self._pipeline.unanswered > 0

    def send(self, request: NodeRequest) -> None:
        """Send ``request`` now if there is a connection with room; otherwise queue it, in the order of the calls."""
        pipeline = self._pipeline
        if pipeline is None:
            (self._waiting if request.may_wait else self._own).append(request)
            self.connect()
            self.observer.queued(self)
        elif request.may_wait and (pipeline.full(self._most) or (len(self._waiting) and self._waiting)):
            self._waiting.append(request)
            pipeline.when_room = self._send_waiting_later
        else:
            pipeline.send(request.ahead(self.missing_rights) if self.missing_rights else request)  # as _put()

    @property
    def clogged(self) -> bool:
        """True if there is a connection without room."""
        return self._pipeline is not None and self._pipeline.full(self._most)

    def call_when_room(self, callback: Callable[[], object]) -> None:
        """Have ``callback()`` called, in another turn, when a clogged connection may have room again."""
        if self._pipeline is not None:
            self._pipeline.when_room = lambda: self._timer.post(callback, self._domain)

    def withdraw(self, request: NodeRequest) -> bool:
        """Remove ``request`` from the connection if none of its bytes is on the wire; return whether it was removed."""
        return self._pipeline is not None and self._pipeline.withdraw(request)

    @property
    def last_own(self) -> NodeRequest | None:
        """The last of the engine's own requests that wait for a connection, or None."""
        return self._own[-1] if self._own else None

    def _send_waiting_later(self) -> None:
        self._timer.post(self._send_waiting, self._domain)

    def _send_waiting(self) -> None:
        """Send requests that wait for room, as far as there is room, and a bounded number per turn."""
        pipeline = self._pipeline
        left = _REQUESTS_A_TURN
        while left and pipeline is not None and pipeline is self._pipeline and self._waiting:
            if pipeline.full(self._most):
                break
            self._put(pipeline, self._waiting.popleft())
            left -= 1
        if self._waiting and self._pipeline is not None:
            self._pipeline.when_room = self._send_waiting_later

    def _put(self, pipeline: PipelinedConnection, request: NodeRequest) -> None:
        pipeline.send(request.ahead(self.missing_rights) if self.missing_rights else request)

    def expect(self, request: TimedRequest) -> None:
        """Call ``request.look_later()`` in 20 to 40 ms if it is not finished by then. Most are, and never use the wheel."""
        expected = self._expected
        if not expected and (self._look is None or self._look not in self._timer.wheel):
            self._look = self._timer.call_at(self._timer.now + _SOON_S, self._look_at_expected, self._domain)
        expected.append(request)

    def _look_at_expected(self, now: float) -> None:
        expected, self._expected = self._expected, []
        for request in expected:
            if not request.finished:
                request.look_later()

    def connect(self) -> None:
        """Begin to connect unless the node is ready or closed, or an attempt is running or scheduled."""
        if self._connecting or self._closed or self._retry is not None or self.ready:
            return
        self._connecting = True
        try:
            self._launch(partial(self._attempt, self._backoff))
        except RuntimeError as error:  # no thread can be started
            self._failed(error, self._backoff)

    def suspect(self) -> None:
        """Suspect the connection until its next reply, and try a second one."""
        if self._pipeline is not None and not self._suspected:
            self._suspected = True
            self._most = MOST_SUSPECTED
            self.observer.trouble(self)
            if self._heard:
                self.connect()
            else:
                self._retry_if_needed()  # a server that accepts connections and never answers is probed with pauses

    def _attempt(self, backoff: Backoff) -> None:
        """Connect, and post the result to the timer's thread. On a helper thread.

        A reset and a close replace ``backoff``, so that a late result from before them is recognised.
        """
        try:
            connection = self.connector.connect(self._options.connect_timeout_s)
        except BaseException as error:
            failure = as_failure(error)  # of any class: without a result the node would never try again
            sanitize(failure)
            self._timer.post(lambda: self._failed(failure, backoff), self._domain)
        else:
            if self._closed or self._timer.stopped:
                connection.close()  # the message below might never be read
            else:
                arrived = [connection]  # emptied by the thread that uses or closes the connection
                self._timer.post(lambda: self._arrived(arrived, backoff), self._domain)
                if self._timer.stopped and (left := taken(arrived)) is not None:
                    left.close()  # it may have been posted behind the last turn

    def _arrived(self, arrived: list[Connection], backoff: Backoff) -> None:
        if (connection := taken(arrived)) is None:
            return
        if backoff is not self._backoff or self.ready:
            connection.close()  # too late: the suspected connection has answered first, or the node was closed or reset
            if backoff is self._backoff:
                self._connecting = False
            return
        if self._masters and connection.server not in self._masters:
            connection.close()  # another server has become the master meanwhile
            self._failed(ConnectionAbortedError("that server is no longer the master"), backoff)
            return
        self._connecting = False
        self._suspected = False
        self._most = MOST_UNANSWERED
        self._heard = False
        self.last_error = self.refusal = None
        self.unreachable = False
        self._failures = 0
        self._counters.connects += 1
        self.server = connection.server
        self.capability = connection.capability
        self._set_mode(self._options.declare_keys or connection.keyed)  # an earlier connection may have found otherwise
        self.missing_rights = connection.missing_rights
        old = self._pipeline
        self._pipeline = pipeline = self._new_pipeline(self._timer, connection, self._domain, self._replied, self._lost)
        if old is not None:
            old.drop(TimeoutError("silent for too long; another connection has taken over"))
        for request in self._own.take_all():
            self._put(pipeline, request)
        self.observer.ready(self, new=True)
        self._send_waiting()

    def _failed(self, error: Exception, backoff: Backoff) -> None:
        if backoff is not self._backoff:
            return
        self._connecting = False
        self.last_error = error
        self.unreachable = True
        self._failures += 1
        self.observer.trouble(self)
        self._log(logger.debug, "connect_failed", "cannot connect to %s: %s", error)
        if self._pipeline is None and is_fatal(error):
            self._refuse(self.take_waiting(), error)
        elif self._pipeline is None and self._failures > 1 and self._is_hopeless(error):
            self.refuse_impatient(error)
        elif (pipeline := self._pipeline) is not None and self._suspected:
            # While the node is needed the first reply on the old connection is the quickest sign of life. Then it is
            # dropped only if very many requests are unanswered on it.
            kept = self.observer.is_needed(self) and pipeline.unanswered <= 2 * MOST_SUSPECTED
            if not kept and pipeline.deserted:
                pipeline.drop(error)
        self._retry_if_needed()

    def _refuse(self, requests: Iterable[NodeRequest], error: Exception) -> None:
        for request in requests:
            guarded(request, request.on_unavailable, error)

    def _is_hopeless(self, error: Exception) -> bool:
        """Return whether nothing listens, and no other server may take over, as after a failover."""
        may_move = self.connector.discovers or self.connector.in_cluster
        return isinstance(error, NothingListens) or (is_refused(error) and not may_move)

    def refuse_impatient(self, error: Exception) -> None:
        """Refuse the requests that do not wait for a server that refuses connections, unless there is a connection.

        One that was there is probably being restarted. One that was never there has probably another address.
        """
        if self._pipeline is not None:
            return
        for request in self._waiting.take_all():
            if request.outlasts_refusal(first=self.server is None):
                self._waiting.append(request)
            else:
                guarded(request, request.on_unavailable, error)

    def _retry_if_needed(self) -> None:
        self._own.throw_out()
        self._waiting.throw_out()
        if not self._closed and (self._has_queued or self._suspected or self.observer.is_needed(self)):
            self._set_retry()

    def _set_retry(self) -> None:
        if self._retry is None:
            self._retry = self._timer.call_at(self._timer.now + self._backoff.pause(), self._try_now, self._domain)

    def _try_now(self, now: float) -> None:
        self._retry = None
        if self._has_queued or self._suspected or self.observer.is_needed(self):
            self.connect()

    def _replied(self) -> None:
        self._backoff.reset()
        self._heard = True
        if self.when_replied is not None:
            callback, self.when_replied = self.when_replied, None
            callback()
        if self._suspected:
            self._suspected = False
            self._most = MOST_UNANSWERED
            self.observer.ready(self, new=False)
        if len(self._waiting):
            self._send_waiting()

    def _lost(self, pipeline: PipelinedConnection, error: Exception) -> None:
        if pipeline is not self._pipeline:
            return  # replaced on purpose
        self._pipeline = None
        self._suspected = False
        self.last_error = error
        if not self._closed:
            self.observer.trouble(self)
            self._log(logger.debug, "connection_lost", "lost the connection to %s: %s", error)
            self._set_retry()  # a pause even before the first attempt: a server may hang up right after each accept

    def take_waiting(self) -> list[NodeRequest]:
        """Remove and return the requests that wait for a connection, or for room in it."""
        return [*self._own.take_all(), *self._waiting.take_all()]

    def drop(self, error: Exception) -> None:
        """Drop the connection because of ``error``; another one is made if it is needed."""
        if self._pipeline is not None:
            self._pipeline.drop(error)

    def leave_for(self, masters: Collection[Server], error: Exception) -> None:
        """Use only the master, which has the addresses ``masters``; drop a connection to another server with ``error``."""
        self._masters = masters
        if self.server not in masters:
            self.drop(error)

    def demoted(self, error: Exception, request: NodeRequest | None = None) -> bool:
        """Leave a server that is not the master, or no longer, if the connector can find out which one is.

        Args:
            error: The error reply that says so.
            request: The refused request, which is sent to the new master.

        Returns:
            Whether the server is left.
        """
        if self.connector.discovers:
            pipeline = self._pipeline
            # After the reply that is being read: a connection cannot be dropped in the middle of it.
            self._timer.post(lambda: self._leave(pipeline, error, request), self._domain)
        return self.connector.discovers

    def _leave(self, pipeline: PipelinedConnection | None, error: Exception, request: NodeRequest | None) -> None:
        if pipeline is not None and pipeline is self._pipeline:
            pipeline.drop(error)
        if request is not None and not request.finished:
            self.send(request)

    def end(self, how: End, error: Exception) -> None:
        """End the connection; unanswered and queued requests are refused with ``error``.

        Before the end of a close there is no effect, and requests that are queued keep a node from being RETIRED.
        """
        if how is End.FORKED:  # what the parent shares is not touched
            if self._pipeline is not None:
                self._pipeline.after_fork_in_child()
            self._reset()
        elif how is End.RETIRED and not self._has_queued:
            pipeline, self._pipeline, self._suspected = self._pipeline, None, False
            self._refuse([] if pipeline is None else pipeline.close(), error)
        elif how is End.CLOSED or how in ANEW:
            unanswered = [] if self._pipeline is None else self._pipeline.close()
            requests = [*unanswered, *self.take_waiting()]
            closed, expected, server = self._closed or how is End.CLOSED, self._expected, self.server
            self._timer.cancel(self._retry)
            self._reset()
            self._closed, self.server = closed, server  # a server that was there is waited for
            self._refuse(requests, error)
            for timed in expected:  # some wait for something else than a reply: their time limits still apply
                if not timed.finished:
                    timed.look_later()
