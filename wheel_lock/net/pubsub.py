"""The pub/sub subscriptions of one node, on a connection of their own.

Pub/sub is unreliable: messages that are published while there is no connection are lost. So each listener also polls, at
intervals and whenever its subscription has been confirmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol

from wheel_lock.net.connection import BareCommand, OnDropped, PipelinedConnection, PushConnection
from wheel_lock.net.connector import Connection, Connector, Server
from wheel_lock.net.node import Node, NodeObserver
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions
from wheel_lock.protocol.resp import MalformedReply, Reply, error_text
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import ANEW, End
from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer

logger: logging.Logger = logging.getLogger("wheel_lock")

_PING_EVERY_S = 2.0  # interval of PINGs; a half-open connection is noticed after two
_CHANNELS_A_COMMAND = 500
_MAX_REPEATED = 16  # limit of UNSUBSCRIBE commands between two PINGs
_MESSAGES = (b"message", b"smessage")
_MAX_CHANNEL_BYTES = 1024  # longer than the name of any channel that is subscribed to


class Listener(FailureDomain, Protocol):
    """A receiver of the messages of one pub/sub channel."""

    def on_subscribed(self, holds: bool) -> None:
        """Called when the subscription has been confirmed (``holds``), or has ended."""

    def on_message(self, message: bytes) -> None: ...


class PubSub(NodeObserver):
    """The subscriptions of one node, on one connection, which exists as long as there are listeners. Timer's thread only.

    Args:
        timer, connector, options, launch: As for :class:`Node`.
        domain: The failure domain of its work.
        on_moved: Called when channels have moved to another node. With it, sharded pub/sub is used.
    """

    def __init__(
        self,
        timer: HashedWheelTimer,
        connector: Connector,
        options: ContextOptions,
        launch: Callable[[Callable[[], None]], None],
        domain: FailureDomain,
        on_moved: Callable[[], object] | None = None,
    ) -> None:
        self._timer = timer
        self._on_moved = on_moved
        self._subscribes = b"SUBSCRIBE" if on_moved is None else b"SSUBSCRIBE"
        self._unsubscribes = b"UNSUBSCRIBE" if on_moved is None else b"SUNSUBSCRIBE"
        self._per_command = _CHANNELS_A_COMMAND if on_moved is None else 1  # those of one command must be of one slot
        self.domain = domain
        self._node = Node(self, timer, connector, options, Counters(), launch, self._new_pipeline)
        self._reset()

    def _reset(self) -> None:
        self._listeners: dict[bytes, list[Listener]] = {}  # by channel
        self._holding: set[bytes] = set()  # confirmed subscriptions
        self._requested: set[bytes] = set()  # subscriptions that are not confirmed yet
        self._refused: set[bytes] = set()  # channels to subscribe to again after the next PING
        self._unsubscribed_again: set[bytes] = set()  # channels of repeated UNSUBSCRIBE commands since the last PING
        # Channels to subscribe to, or to unsubscribe from, when the connection has room: whichever is needed by then.
        self._put_off: set[bytes] = set()
        self._ping: Alarm | None = None
        self._on_pong: Callable[[], object] = lambda: None
        self._silent = False
        self._paused = False
        self._refusal_logged = False

    @property
    def busy(self) -> bool:
        """True if a subscription, a connection for it, or the reply to a PING is awaited."""
        return bool(self._requested) or self._silent or (bool(self._listeners) and self._node.busy)

    def is_needed(self, node: Node) -> bool:
        return bool(self._listeners) and not self._paused

    def ready(self, node: Node, *, new: bool) -> None:
        self._subscribe(list(self._listeners))

    @property
    def needed(self) -> bool:
        """True if there are listeners."""
        return bool(self._listeners)

    def listen(self, channel: bytes, listener: Listener) -> None:
        """Subscribe to ``channel``; ``listener`` is notified when the subscription is confirmed. Undoes :meth:`pause`."""
        self.resume()
        listeners = self._listeners.setdefault(channel, [])
        listeners.append(listener)
        unsubscribing = len(listeners) == 1 and channel in self._put_off
        if unsubscribing:
            self._put_off.discard(channel)  # an UNSUBSCRIBE that was put off
        if channel in self._holding:
            guarded(listener, listener.on_subscribed, True)
        elif len(listeners) > 1 or unsubscribing:
            pass  # the subscription is in progress
        elif self._node.connected:
            self._subscribe((channel,))
        else:
            self._node.connect()
        if self._ping is None:
            self._set_ping()

    def ignore(self, channel: bytes, listener: Listener) -> None:
        """Remove ``listener`` from ``channel``; unsubscribe if it was the last one."""
        listeners = self._listeners.get(channel, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners and self._listeners.pop(channel, None) is not None:
            if channel in self._put_off:
                self._put_off.discard(channel)  # a SUBSCRIBE that was put off
            else:
                self._unsubscribe(channel)

    def _unsubscribe(self, channel: bytes) -> None:
        if self._node.clogged:
            self._put_it_off((channel,))
            return
        self._requested.discard(channel)
        self._refused.discard(channel)
        self._holding.discard(channel)
        if self._node.connected:
            self._node.send(BareCommand(self._unsubscribes, channel))

    def _put_it_off(self, channels: Iterable[bytes]) -> None:
        self._put_off.update(channels)
        self._node.call_when_room(self._catch_up)

    def _catch_up(self) -> None:
        """Send those of the commands put off that are still needed. Called when the connection has room."""
        put_off, self._put_off = self._put_off, set()
        for channel in put_off.difference(self._listeners):
            self._unsubscribe(channel)
        self._subscribe([channel for channel in put_off if channel in self._listeners])

    def _new_pipeline(
        self,
        timer: HashedWheelTimer,
        connection: Connection,
        domain: FailureDomain | None,
        on_reply: Callable[[], object],
        on_lost: OnDropped,
    ) -> PipelinedConnection:
        # Only a PONG resets the backoff: a server may cut each connection as soon as it has subscribed.
        self._on_pong = on_reply
        pipeline = PushConnection(timer, connection, domain, lambda: None, partial(self._connection_lost, on_lost))
        pipeline.on_push = self._on_push
        return pipeline

    def _connection_lost(self, on_lost: OnDropped, pipeline: PipelinedConnection, error: Exception) -> None:
        on_lost(pipeline, error)
        self._end_subscriptions()

    def _end_subscriptions(self) -> None:
        """Notify the listeners that all subscriptions have ended with their connection."""
        for channels in (self._requested, self._refused, self._holding, self._unsubscribed_again, self._put_off):
            channels.clear()
        self._silent = False
        for listeners in self._listeners.values():
            for listener in listeners:
                guarded(listener, listener.on_subscribed, False)

    def _subscribe(self, channels: Sequence[bytes]) -> None:
        for start in range(0, len(channels), self._per_command):
            if self._node.clogged:
                self._put_it_off(channels[start:])
                break
            some = channels[start : start + self._per_command]
            self._requested.update(some)
            self._node.send(BareCommand(self._subscribes, *some))

    def _on_push(self, reply: Reply) -> None:
        self._silent = False
        if type(reply) is not list or len(reply) < 2 or type(reply[1]) is not bytes:
            if isinstance(reply, ServerError):
                self._on_refused(reply)
            elif reply == b"PONG":  # not a push message if there are no subscriptions, all of which were refused
                self._on_pong()
            else:
                raise MalformedReply(f"{reply!r:.40} is not a push message")
            return
        what, channel = reply[0], reply[1]
        listeners = tuple(self._listeners.get(channel, ()))
        if what in _MESSAGES:  # first, because a waiter's wake-up takes this way
            if len(reply) != 3 or type(reply[2]) is not bytes:
                raise MalformedReply(f"{reply!r:.40} is not a message")
            for listener in listeners:
                guarded(listener, listener.on_message, reply[2])
            if not listeners and channel not in self._put_off and not self._node.clogged:
                self._unsubscribe_again(channel)
        elif what in (b"subscribe", b"ssubscribe"):
            self._requested.discard(channel)
            self._refused.discard(channel)
            if listeners or channel in self._put_off:
                self._holding.add(channel)
            for listener in listeners:
                guarded(listener, listener.on_subscribed, True)
        elif what == b"pong":
            self._on_pong()
        elif what == b"sunsubscribe" and channel in self._holding and self._on_moved is not None:
            self._holding.discard(channel)
            self._refused.add(channel)  # to be subscribed to again, unless its slot has moved
            for listener in listeners:
                guarded(listener, listener.on_subscribed, False)
            self._on_moved()

    def _on_refused(self, error: ServerError) -> None:
        # The error does not name a channel. Channels that are confirmed after all are removed again.
        self._refused |= self._requested
        self._requested.clear()
        if self._on_moved is not None and error.code == "MOVED":
            self._on_moved()
        elif self._refused and not self._refusal_logged:
            self._refusal_logged = True
            text = "the server refuses to send wake-ups, so waiters have to poll: %s"
            node, reason = self._node.connector.describe(), error_text(error)
            fields = log_fields("subscription_refused", reason=reason, node=node)
            NOTIFIER.post(partial(logger.warning, extra=fields), text, reason)

    def _unsubscribe_again(self, channel: bytes) -> None:
        """Unsubscribe from a channel without listeners: the first UNSUBSCRIBE was refused, or the server is hostile.

        The number of these commands is bounded, so that they do not pile up if the server stops reading.
        """
        again = self._unsubscribed_again
        if len(channel) <= _MAX_CHANNEL_BYTES and len(again) < _MAX_REPEATED and channel not in again:
            again.add(channel)
            self._node.send(BareCommand(self._unsubscribes, channel))

    def _set_ping(self) -> None:
        self._ping = self._timer.call_at(self._timer.now + _PING_EVERY_S, self._send_ping, self.domain)

    def _send_ping(self, now: float) -> None:
        self._ping = None
        if not self._listeners:
            return
        self._unsubscribed_again.clear()
        if self._node.connected:
            if self._silent:
                self._node.drop(TimeoutError("the connection for wake-ups has been silent for too long"))
            else:
                self._silent = True
                self._node.send(BareCommand(b"PING"))
                again, self._refused = self._refused, set()
                self._subscribe([channel for channel in again if channel in self._listeners])
        self._set_ping()

    def leave_for(self, masters: Collection[Server], error: Exception) -> None:
        """Subscribe only at the master, which has the addresses ``masters``; drop another connection with ``error``."""
        self._node.leave_for(masters, error)

    def pause(self) -> None:
        """Send no PINGs and do not reconnect until :meth:`resume`."""
        self._timer.cancel(self._ping)
        self._ping = None
        self._silent = False
        self._paused = True

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        if self._paused:
            self._paused = False
            self._node.connect()
            self._set_ping()

    def end(self, how: End, error: Exception) -> None:
        """End the connection; it has no listeners any more, unless it is only RETIRED, and with that paused."""
        if how is End.RETIRED:
            self._end_subscriptions()
            self.pause()
        else:
            if how is not End.FORKED:
                self._timer.cancel(self._ping)
            self._reset()
        # A close that begins is over here: no waiter is left to be woken.
        self._node.end(how if how is End.RETIRED or how in ANEW else End.CLOSED, error)


INVALIDATIONS = b"__redis__:invalidate"
"""The channel on which a server sends invalidations, the keys that have changed, to clients that speak RESP2."""

_UNNEEDED = ConnectionAbortedError("invalidations are not needed")  # never shown: no request there has a caller
_IDLE_PINGS = 15  # a connection that is not needed for so many PINGs in a row is closed


class InvalidationListener(Listener):
    """A receiver of invalidations, and of the client id of the connection on which they arrive."""

    def is_interested(self) -> bool:
        """Return whether the connection is needed now. Without need for half a minute it is closed."""
        raise NotImplementedError

    def on_ready(self) -> None:
        """Called when a connection is subscribed, and its client id is known."""

    def on_refused(self, error: ServerError) -> None:
        """Called when the server refuses the connection's client id, or the subscription."""

    def on_ended(self, error: Exception, was_ready: bool) -> None:
        """Called when a connection has been lost; ``was_ready`` if :meth:`on_ready` had been called for it."""

    def on_unreachable(self, error: Exception) -> None:
        """Called when an attempt to connect has failed; the next one follows after a pause."""

    def on_stopped(self) -> None:
        """Called when the connection has been closed on purpose, or is no longer to be made."""

    def on_invalidated(self, keys: Sequence[bytes] | None) -> None:
        """Called with keys that have changed; None for all keys (a flush)."""


class InvalidationFeed(PubSub):
    """The connection to which a server redirects the invalidations of another one (CLIENT TRACKING). Timer's thread only.

    Not the connection for wake-ups: that exists only while callers wait, and a proxy that hangs up at CLIENT ID would cost
    the wake-ups, too.

    Args:
        timer, connector, options, launch, domain: As for :class:`PubSub`.
        listener: The receiver.

    Attributes:
        client_id: The server's id of the subscribed connection; None without one.
    """

    def __init__(
        self,
        timer: HashedWheelTimer,
        connector: Connector,
        options: ContextOptions,
        launch: Callable[[Callable[[], None]], None],
        domain: FailureDomain,
        listener: InvalidationListener,
    ) -> None:
        self._listener = listener
        super().__init__(timer, connector, options, launch, domain)

    def _reset(self) -> None:
        super()._reset()
        self.client_id: int | None = None
        self._id_awaited = False
        self._idle_pings = 0
        self._known: int | None = None  # the id, before the subscription is confirmed

    @property
    def server(self) -> Server | None:
        """The server of the latest connection; None before the first."""
        return self._node.server

    def start(self) -> None:
        """Connect and subscribe, unless that has been done or is in progress."""
        self._idle_pings = 0
        if not self._listeners:
            self.listen(INVALIDATIONS, self._listener)
        else:
            self._node.connect()

    def stop(self) -> None:
        """Close the connection until the next :meth:`start`."""
        self._timer.cancel(self._ping)
        self._node.end(End.RETIRED, _UNNEEDED)
        self._reset()
        guarded(self._listener, self._listener.on_stopped)

    def end(self, how: End, error: Exception) -> None:
        if how is End.RETIRED:
            self.stop()
        else:
            super().end(how, error)
            if how not in ANEW:
                guarded(self._listener, self._listener.on_stopped)

    def trouble(self, node: Node) -> None:
        if node.unreachable and node.last_error is not None and self._listeners:
            guarded(self._listener, self._listener.on_unreachable, node.last_error)

    def is_needed(self, node: Node) -> bool:
        return super().is_needed(node) and self._listener.is_interested()

    def ready(self, node: Node, *, new: bool) -> None:
        if not self._listeners:
            node.end(End.RETIRED, _UNNEEDED)  # stopped while it was being connected
            return
        if new:
            # Before SUBSCRIBE, behind which RESP2 allows nothing but subscriptions and PING.
            self._id_awaited = True
            node.send(BareCommand(b"CLIENT", b"ID"))
        super().ready(node, new=new)

    def _connection_lost(self, on_lost: OnDropped, pipeline: PipelinedConnection, error: Exception) -> None:
        was_ready = self.client_id is not None
        self.client_id = self._known = None
        super()._connection_lost(on_lost, pipeline, error)
        if self._listeners:
            guarded(self._listener, self._listener.on_ended, error, was_ready)

    def _on_push(self, reply: Reply) -> None:
        if self._id_awaited:
            self._id_awaited = False
            if isinstance(reply, ServerError):
                guarded(self._listener, self._listener.on_refused, reply)
                return
            if type(reply) is not int:
                raise MalformedReply(f"{reply!r:.40} is not a client id")
            self._known = reply
        elif type(reply) is list and len(reply) == 3 and reply[:2] == [b"message", INVALIDATIONS]:
            self._silent = False
            self._take(reply[2])
        elif isinstance(reply, ServerError):  # to SUBSCRIBE: PING is not refused
            guarded(self._listener, self._listener.on_refused, reply)
        else:
            super()._on_push(reply)
            if self.client_id is None and self._known is not None and INVALIDATIONS in self._holding:
                self.client_id = self._known
                guarded(self._listener, self._listener.on_ready)

    def _take(self, keys: Reply) -> None:
        if keys is None:
            guarded(self._listener, self._listener.on_invalidated, None)
        elif type(keys) is list:
            if not all(type(key) is bytes for key in keys):
                raise MalformedReply(f"{keys!r:.40} is not a list of keys")
            guarded(self._listener, self._listener.on_invalidated, keys)
        # Anything else is not from the server: it was published by a user.

    def _send_ping(self, now: float) -> None:
        self._idle_pings = 0 if self._listener.is_interested() else self._idle_pings + 1
        if self._idle_pings > _IDLE_PINGS:
            self._ping = None
            self.stop()
        else:
            super()._send_ping(now)
