"""One node as the engine sees it: a channel while there is one, and the effort to get one while there is not.

A node is *ready* when its channel is open and answers. A channel that has been silent for too long is suspected, not
dropped: a second connection is tried as a probe, and whichever speaks first is used. So a server that merely paused
loses nothing that was in flight, and one that vanished is left within one attempt.

Requests of callers go to the channel while that has room, and wait here otherwise, in the order of the calls and not yet
encoded: so a server that stops reading or answering costs a bounded amount. Requests about held leases, and those of the
engine itself, never wait for room: their number is bounded by that of the leases.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import TYPE_CHECKING

from wheel_lock.alarms import Alarm
from wheel_lock.engine.channel import Channel, NodeRequest
from wheel_lock.engine.connect import PLAIN, Connection, Connector, Server, as_failure, is_fatal, make_fit
from wheel_lock.engine.parking import Parking
from wheel_lock.failures import FailureDomain, guarded
from wheel_lock.greenlets import start_soon
from wheel_lock.notifier import NOTIFIER
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import error_text
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.timer import HashedWheelTimer

if TYPE_CHECKING:
    from wheel_lock.engine.replicas import Replicas
    from wheel_lock.engine.requests import CallerRequest

logger = logging.getLogger("wheel_lock")


MOST_UNANSWERED = 1 << 14  # requests; beyond it those of callers wait; a healthy server rarely has as many
MOST_SUSPECTED = 1 << 10  # the same for a suspected channel
_SOON_S = 0.02
_IN_A_TURN = 1000  # requests that are sent in one turn after a wait for room: some 10 ms
# The system's generator: it has no state that a fork, or a snapshot of the machine, would copy to several processes.
JITTER = random.SystemRandom()
_FINISHED: Callable[[NodeRequest], bool] = attrgetter("finished")


class Backoff:
    """Pauses that double, with jitter, up to a limit."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._next_s = first_s

    def pause(self) -> float:
        """Return the next pause in seconds: a quarter more or less, so that many clients do not return at once."""
        pause_s = self._next_s
        self._next_s = min(pause_s * 2, self._most_s)
        return pause_s * JITTER.uniform(0.75, 1.25)

    def reset(self) -> None:
        """Begin with the shortest pause again."""
        self._next_s = self._first_s


def _taken(arrived: list[Connection]) -> Connection | None:
    """Take out what is in the list, unless another thread has. One step of the interpreter decides."""
    try:
        return arrived.pop()
    except IndexError:
        return None


def start_helper_thread(attempt: Callable[[], None]) -> None:
    """Run one attempt to connect on a short-lived daemon thread. Does not wait until that runs.

    Raises:
        RuntimeError: The system has no thread for us.
    """
    start_soon(attempt, "wheel-lock-connect")


class Node:
    """Sends requests to one server, connecting when there is need. Timer's thread only.

    Args:
        timer: Whose thread it lives on.
        connector: What makes its connections.
        options: Time limits and pauses.
        counters: Where connections are counted.
        launch: Runs an attempt to connect somewhere it may block.
        channel: Makes a channel of a connection.
    """

    def __init__(
        self,
        timer: HashedWheelTimer,
        connector: Connector,
        options: ContextOptions,
        counters: Counters,
        launch: Callable[[Callable[[], None]], None] = start_helper_thread,
        channel: Callable[..., Channel] = Channel,
    ) -> None:
        self.connector = connector
        self._timer = timer
        self._options = options
        self._counters = counters
        self._launch = launch
        self._new_channel = channel
        # Set by those it belongs to: what a failure in its work costs.
        self.domain: FailureDomain | None = None
        # Set by the renewer: told when the node becomes ready, and asked whether leases need it.
        self.on_ready: Callable[[], object] = lambda: None
        self.is_needed: Callable[[], bool] = lambda: False
        # Set by the renewer: called, before the node becomes ready, whenever a connection has been made.
        self.on_connected: Callable[[], object] = lambda: None
        # Set by those who ask the replicas of what is acquired on this channel, if they are to be asked.
        self.replicas: Replicas | None = None
        # Set by the renewer, too: told when it cannot be reached.
        self.on_trouble: Callable[[], object] = lambda: None
        # Set by a cluster: the node redirects calls that declare their keys.
        self.may_redirect = False
        # Set by a cluster: called when a request has to wait for a connection.
        self.on_waiting: Callable[[], object] = lambda: None
        self.one_by_one = options.declare_keys  # each call is about one lease, and declares its keys
        self.held_up_s = 0.0  # for how long a healthy server may leave anything unanswered here
        # Set by the engine while it closes: told whenever replies have been read.
        self.on_replied: Callable[[], object] = lambda: None
        self._masters: Collection[Server] = ()  # where connections may lead; anywhere, if empty
        self._reset()

    def _reset(self) -> None:
        self._channel: Channel | None = None
        # The engine's own requests wait for a connection; those of callers for a connection, or for room in it.
        self._own: Parking[NodeRequest] = Parking(_FINISHED)
        self._waiting: Parking[NodeRequest] = Parking(_FINISHED)
        self._most = MOST_UNANSWERED
        self._expected: list[CallerRequest] = []
        self._look: Alarm | None = None
        self._suspected = False
        self._heard = False  # whether the channel has answered anything
        self._connecting = False
        self._closed = False
        self._retry: Alarm | None = None
        self._backoff = Backoff(self._options.backoff_first_s, self._options.backoff_max_s)
        self.server: Server | None = None  # which one it was connected to last
        self.level = PLAIN  # what that knows
        self.missing_rights: frozenset[str] = frozenset()  # commands of scripts that its user may not call
        self.last_error: Exception | None = None

    @property
    def declares(self) -> bool:
        """Whether calls about one lease declare their keys."""
        return self.one_by_one or self.may_redirect

    @property
    def batch_size(self) -> int:
        """How many leases a call may be about."""
        return 1 if self.one_by_one else self._options.batch_size

    @property
    def calls_for_a_batch(self) -> int:
        """How many calls it takes for as many leases as usually share one."""
        return self._options.batch_size if self.one_by_one else 1

    def learns(self, error: ServerError, declared: bool) -> bool:
        """Whether an error tells that calls without declared keys are refused here; they are not sent any more then.

        Several may be under way by then: what the first one tells is true of the others, too.

        Args:
            error: What was said to a call.
            declared: Whether that had declared its keys, or was none of a script.
        """
        if declared or not error.wants_keys:
            return False
        if not self.one_by_one:
            self.one_by_one = True
            NOTIFIER.post(logger.info, "%s wants keys to be declared: %s", self.connector.describe(), error_text(error))
        return True

    @property
    def ready(self) -> bool:
        """Whether there is a channel that is not suspected of being dead."""
        return self._channel is not None and not self._suspected

    @property
    def channel(self) -> object:
        """Which connection it has, to be compared; None for none."""
        return self._channel

    @property
    def connected(self) -> bool:
        """Whether there is a channel, ready or not."""
        return self._channel is not None

    @property
    def busy(self) -> bool:
        """Whether something waits for a reply or for a connection."""
        return self._connecting or self._awaited or self.awaits_replies

    @property
    def _awaited(self) -> bool:
        """Whether requests wait for a connection, or for room in it."""
        return bool(self._own or self._waiting)

    @property
    def crowded(self) -> bool:
        """Whether requests of callers wait for room in a connection."""
        return self._channel is not None and bool(self._waiting)

    @property
    def in_trouble(self) -> bool:
        """Whether it is needed and cannot be talked to."""
        return self._suspected or (self._channel is None and self.last_error is not None and self.is_needed())

    @property
    def awaits_replies(self) -> bool:
        """Whether there is a connection with something unanswered on it."""
        return self._channel is not None and self._channel.unanswered > 0

    def send(self, request: NodeRequest) -> None:
        """Send ``request`` now if there is a channel with room, else as soon as there is, in the order of the calls."""
        channel = self._channel
        if channel is None:
            (self._waiting if request.may_wait else self._own).append(request)
            self.connect()
            self.on_waiting()
        elif request.may_wait and (channel.full(self._most) or (len(self._waiting) and self._waiting)):
            self._waiting.append(request)
            channel.when_room = self._let_in_later
        else:
            self._put(channel, request)

    @property
    def clogged(self) -> bool:
        """Whether there is a connection without room."""
        return self._channel is not None and self._channel.full(self._most)

    def tell_room(self, told: Callable[[], object]) -> None:
        """Have ``told()`` called, in another turn, when a clogged connection may have room again."""
        if self._channel is not None:
            self._channel.when_room = lambda: self._timer.post(told, self.domain)

    def withdraw(self, request: NodeRequest) -> bool:
        """Remove ``request`` from the channel if none of its bytes is on the wire; return whether it was removed."""
        return self._channel is not None and self._channel.withdraw(request)

    @property
    def last_own(self) -> NodeRequest | None:
        """The last of the engine's own requests that wait for a connection."""
        return self._own[-1] if self._own else None

    def _let_in_later(self) -> None:
        self._timer.post(self._let_in, self.domain)

    def _let_in(self) -> None:
        """Send requests that wait for room, as far as there is room, and a bounded number per turn."""
        channel = self._channel
        left = _IN_A_TURN
        while left and channel is not None and channel is self._channel and self._waiting:
            if channel.full(self._most):
                break
            self._put(channel, self._waiting.popleft())
            left -= 1
        if self._waiting and self._channel is not None:
            self._channel.when_room = self._let_in_later

    def _put(self, channel: Channel, request: NodeRequest) -> None:
        channel.send(request.ahead(self.missing_rights) if self.missing_rights else request)

    def expect(self, request: CallerRequest) -> None:
        """Have ``request`` put on the wheel if it is not answered soon. Nearly all are, and so never cost a place there."""
        if self._look is None or self._look not in self._timer.wheel:
            self._look = self._timer.call_at(self._timer.now + _SOON_S, self._look_at_expected, self.domain)
        self._expected.append(request)

    def _look_at_expected(self, now: float) -> None:
        expected, self._expected = self._expected, []
        for request in expected:
            if not request.finished:
                request.look_later()

    def connect(self) -> None:
        """Begin to connect, unless an attempt is under way, waits for its time, or is not called for."""
        if self._connecting or self._closed or self._retry is not None or self.ready:
            return
        self._connecting = True
        try:
            self._launch(self._attempt)
        except RuntimeError as error:  # no thread can be started
            self._failed(error, self._backoff)

    def suspect(self) -> None:
        """Something has been unanswered for too long: try a second connection. The first reply clears this."""
        if self._channel is not None and not self._suspected:
            self._suspected = True
            self._most = MOST_SUSPECTED
            self.on_trouble()
            if self._heard:
                self.connect()
            else:
                self._try_later()  # a server that takes connections and answers nothing: do not knock in a tight loop

    def _attempt(self) -> None:
        """On the helper thread: nothing but connecting, and a message to the timer's thread."""
        reset_seen = self._backoff  # replaced by a reset, so a late result of another life is recognised
        try:
            connection = self.connector.connect(self._options.connect_timeout_s)
        except BaseException as error:
            failure = as_failure(error)  # of whatever kind: an attempt without an end would be the last
            make_fit(failure)
            self._timer.post(lambda: self._failed(failure, reset_seen), self.domain)
        else:
            if self._closed or self._timer.stopped:
                connection.close()  # nobody may be left to read the message below
            else:
                arrived = [connection]  # emptied by whoever sees to it
                self._timer.post(lambda: self._arrived(arrived, reset_seen), self.domain)
                if self._timer.stopped and (left := _taken(arrived)) is not None:
                    left.close()  # it may have been posted behind the last turn

    def _arrived(self, arrived: list[Connection], life: Backoff) -> None:
        connection = _taken(arrived)
        if connection is not None:
            self._connected(connection, life)

    def _connected(self, connection: Connection, life: Backoff) -> None:
        if life is not self._backoff or self._closed or self.ready:
            connection.close()  # too late: the suspected channel has spoken first, or nobody wants it any more
            if life is self._backoff:
                self._connecting = False
            return
        if self._masters and connection.server not in self._masters:
            connection.close()  # while it was being made another server has become the master
            self._failed(ConnectionAbortedError("that server is not the master any more"), life)
            return
        self._connecting = False
        self._suspected = False
        self._most = MOST_UNANSWERED
        self._heard = False
        self.last_error = None
        self._counters.connects += 1
        self.server = connection.server
        self.level = connection.level
        # An earlier connection may have found otherwise.
        self.one_by_one = self._options.declare_keys or connection.keyed
        self.missing_rights = connection.missing_rights
        old = self._channel
        self._channel = channel = self._new_channel(self._timer, connection, self.domain, self._replied, self._lost)
        if old is not None:
            old.drop(TimeoutError("silent for too long; another connection has taken over"))
        for request in self._own.take_all():
            self._put(channel, request)
        self.on_connected()
        self.on_ready()
        self._let_in()

    def _failed(self, error: Exception, life: Backoff) -> None:
        if life is not self._backoff:
            return
        self._connecting = False
        self.last_error = error
        self.on_trouble()
        NOTIFIER.post(logger.debug, "cannot connect to %s: %s", self.connector.describe(), error_text(error))
        if self._channel is None and is_fatal(error):
            self._refuse_all(error)
        elif self._suspected and self._useless:
            self.drop(error)
        self._try_later()

    @property
    def _useless(self) -> bool:
        """Whether no reply of a silent channel is awaited. O(n).

        While leases are held the first reply on the old connection is the quickest sign of life, so then the channel is
        given up only if very much is unanswered on it.
        """
        channel = self._channel
        if channel is None or (self.is_needed() and channel.unanswered <= 2 * MOST_SUSPECTED):
            return False
        return channel.deserted

    def _refuse_all(self, error: Exception) -> None:
        for request in self.take_waiting():
            guarded(request, request.refused, error)

    def _try_later(self) -> None:
        self._drop_finished()
        if self._closed or self._retry is not None or not (self._awaited or self._suspected or self.is_needed()):
            return
        self._retry = self._timer.call_at(self._timer.now + self._backoff.pause(), self._try_now, self.domain)

    def _try_now(self, now: float) -> None:
        self._retry = None
        self._drop_finished()
        if self._awaited or self._suspected or self.is_needed():
            self.connect()

    def _drop_finished(self) -> None:
        self._own.throw_out()
        self._waiting.throw_out()

    def _replied(self) -> None:
        self._backoff.reset()
        self._heard = True
        self.on_replied()
        if self._suspected:
            self._suspected = False
            self._most = MOST_UNANSWERED
            self.on_ready()
        if len(self._waiting):
            self._let_in()

    def _lost(self, channel: Channel, error: Exception) -> None:
        if channel is not self._channel:
            return  # replaced on purpose
        self._channel = None
        self._suspected = False
        self.last_error = error
        if not self._closed:
            self.on_trouble()
            NOTIFIER.post(logger.debug, "lost the connection to %s: %s", self.connector.describe(), error_text(error))
        # A server that accepts and hangs up at once must not be asked in a tight loop, so even the first try waits.
        if not self._closed and self._retry is None:
            self._retry = self._timer.call_at(self._timer.now + self._backoff.pause(), self._try_now, self.domain)

    def close(self, error: Exception) -> None:
        """Drop the channel; whatever waits is refused with ``error``, and nothing is sent any more."""
        self._closed = True
        self._timer.cancel(self._retry)
        self._retry = None
        if self._channel is not None:
            unanswered = self._channel.close()
            self._channel = None
            for request in unanswered:
                guarded(request, request.refused, error)
        self._refuse_all(error)

    def take_waiting(self) -> list[NodeRequest]:
        """Remove and return the requests that wait for a connection, or for room in it."""
        return [*self._own.take_all(), *self._waiting.take_all()]

    def drop(self, error: Exception) -> None:
        """Give the connection up, and get another where there is need."""
        if self._channel is not None:
            self._channel.drop(error)

    def leave_for(self, masters: Collection[Server], error: Exception) -> None:
        """Use no other server than the master, which goes by these addresses."""
        self._masters = masters
        if self._channel is not None and self.server not in masters:
            self._channel.drop(error)

    def demoted(self, error: Exception, request: NodeRequest | None = None) -> None:
        """The server says that it is no master (any more): find out which one is, where that can be found out.

        Args:
            error: What it said.
            request: What it has refused; it is sent to the new master.
        """
        if self.connector.discovers:
            channel = self._channel
            # After the reply that is being read: a channel cannot be dropped in the middle of it.
            self._timer.post(lambda: self._leave(channel, error, request), self.domain)

    def _leave(self, channel: Channel | None, error: Exception, request: NodeRequest | None) -> None:
        if channel is not None and channel is self._channel:
            channel.drop(error)
        if request is not None and not request.finished:
            self.send(request)

    def retire(self) -> None:
        """Hang up; the next request connects again."""
        if self._channel is not None and not self._awaited:
            requests = self._channel.close()
            self._channel = None
            for request in requests:
                guarded(request, request.refused, ConnectionAbortedError("nothing is held any more"))

    def restart(self, error: Exception) -> None:
        """Begin anew after the timer's thread has died: its alarms and its selector are gone."""
        requests: list[NodeRequest] = []
        if self._channel is not None:
            requests.extend(self._channel.close())
        requests.extend(self.take_waiting())
        closed, expected = self._closed, self._expected
        self._timer.cancel(self._retry)
        self._reset()
        self._closed = closed
        for request in requests:
            guarded(request, request.refused, error)
        for request in expected:  # some wait for something else than the channel: their time goes on running
            if not request.finished:
                request.look_later()

    def forget(self) -> None:
        """In a forked child: no socket and no request of the parent's is ours."""
        if self._channel is not None:
            self._channel.forget()
        self._reset()
