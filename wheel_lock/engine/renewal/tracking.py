"""Tracking: which held leases are watched, and whether their server reports changes of their keys (CLIENT TRACKING).

The server sends an *invalidation* when a key changes that was read on the connection for renewals. In RESP2 it sends that
to another connection, which is subscribed to one channel: the *feed*. Changes that are made on the connection for renewals
itself are not reported (NOLOOP). Each change, a renewal included, ends the registration of a key, so each renewal is
followed by a read of the same keys. In a cluster all reads register; elsewhere those that are announced do (OPTIN), so a
lock that is released soon after its acquire costs the server nothing.

BCAST, which needs no reads, is no alternative: the names of locks have no common prefix, so each context would be sent the
name of every key that any client of the server writes, the renewals of all other contexts included.

A registration ends when its key changes, by whatever command. So it is no request that registers its keys but the
connection, behind each request about held leases, also behind one that is sent again.

A server may refuse all that, or hang up. Then losses are noticed at renewals, as without tracking.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from wheel_lock.engine.interfaces import LeaseGroup, Router, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.requests.base import Request
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.net.connection import BareCommand, NodeRequest, PipelinedConnection
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node
from wheel_lock.net.pubsub import InvalidationFeed, InvalidationListener
from wheel_lock.protocol.resp import MalformedReply, Reply, error_text, name_arg
from wheel_lock.protocol.server_errors import NOT_NOW, ServerError
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.ends import ANEW, End
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

_MOST_HANG_UPS = 2  # in a row, after which nothing is asked of that server
_REST_S = 600.0  # before a server that has hung up is asked again, on its next connection
_MOST_RESTARTS = 3  # of the feed in a row, because the server does not know its id
_UNKNOWN_ID = "does not exist"  # in the error reply to CLIENT TRACKING about the client to redirect to
_UNREACHABLE = 3  # attempts in a row to connect the feed, after which their failure is logged
_RECONNECT_S = 5.0  # at most, between two attempts to connect the feed
_NOT_NOW_S = 1.0  # before a server that is busy or loading is asked again
_REFUSALS = ("NOPERM", "ERR")  # of a registration; other errors concern this moment, or this key


class WatchedKeys:
    """The latest held lease of each key of a watchable type. Timer's thread only."""

    def __init__(self, table: LeaseTable) -> None:
        self._by_key: dict[bytes, Lease] = {}
        self._held = table.held
        table.unhold = self._unhold

    def clear(self) -> None:
        """Forget all leases."""
        self._by_key.clear()

    def _unhold(self, lease: Lease, default: None) -> None:
        """Forget a lease at once: what it refers to is not to end here later, on the timer's thread."""
        self._held.remove(lease)
        if self._by_key.get(lease.key) is lease:
            del self._by_key[lease.key]

    def add(self, leases: Sequence[Lease]) -> list[Lease]:
        """Add leases; return the held ones whose keys have been granted to them."""
        before = self.find([lease.key for lease in leases])
        self._by_key.update((lease.key, lease) for lease in leases)
        return before

    def find(self, keys: Sequence[bytes]) -> list[Lease]:
        """Return the held leases of these keys."""
        found = [lease for key in keys if (lease := self._by_key.get(key)) is not None]
        return [lease for lease in found if lease.state <= EXTENDING]


class _Command(BareCommand):
    """A command on the connection for renewals: a proxy may hang up at it."""

    def __init__(self, tracking: Tracking, *words: bytes) -> None:
        super().__init__(*words)
        self._tracking = tracking

    def on_connection_lost(self, error: Exception) -> None:
        self._tracking.interrupted(error)


class _TurnOn(_Command):
    """CLIENT TRACKING: what is read behind it is registered if it succeeds.

    Attributes:
        first: True on a new connection, where all leases are renewed behind it anyway.
    """

    def __init__(self, tracking: Tracking, first: bool, *words: bytes) -> None:
        super().__init__(tracking, *words)
        self.first = first

    def on_reply(self, reply: Reply) -> None:
        if reply != b"OK" and not isinstance(reply, ServerError):
            raise MalformedReply(f"{reply!r:.40} is no reply to CLIENT TRACKING")
        self._tracking.answered(self, reply if isinstance(reply, ServerError) else None)


class _Announcement(_Command):
    """CLIENT CACHING YES: the next command registers the keys that it reads."""

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, ServerError) and reply.code in _REFUSALS:
            self._tracking.refused(reply)


class _Registration(_Command):
    """EXISTS, by which the server registers the keys of ``leases``: one that is deleted afterwards is reported.

    A key that was deleted after the command before it and before this one is not counted in the reply. A lease that has
    been released meanwhile is: its release comes behind this command.
    """

    def __init__(self, tracking: Tracking, leases: Sequence[Lease]) -> None:
        self._tracking = tracking
        self._leases = leases
        names = b"".join([name_arg(lease.lease_args) for lease in leases])
        self._bytes = b"*%d\r\n$6\r\nEXISTS\r\n%b" % (1 + len(leases), names)

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, ServerError):
            if reply.code in _REFUSALS:
                self._tracking.refused(reply)
            else:  # a slot that is being migrated, a server that is busy
                self._tracking.renewer.flow.checks.register_later(self._leases)
        elif type(reply) is not int:
            raise MalformedReply(f"{reply!r:.40} is no number of keys")
        else:
            self._tracking.registered()
            if reply < len(self._leases):
                self._tracking.renewer.doubt(self._leases)


class Tracking(InvalidationListener):
    """Has one node report changes of keys. Timer's thread only, but for ``on`` and ``wanted``.

    Attributes:
        opts_in: True if reads are registered behind CLIENT CACHING YES only.
        feed: The connection on which invalidations arrive.
        on: True if the node reports changes of the keys that are registered.
        wanted: True if the node has been asked to report, or is to be asked.
    """

    def __init__(self, renewer: WatchingRenewer, watched: WatchedKeys) -> None:
        self.renewer = renewer
        self._watched = watched
        self._timer = renewer.timer
        state = renewer.table.state
        connector = renewer.node.connector
        options = replace(state.options, backoff_max_s=max(state.options.backoff_max_s, _RECONNECT_S))
        self.feed: InvalidationFeed = InvalidationFeed(
            self._timer, connector.listener(), options, state.launch, renewer, self
        )
        self.opts_in: bool = not renewer.node.declares
        self._logged = False
        self._reset()

    def end(self, how: End, error: Exception) -> None:
        """End the feed; from a new beginning on the node has been asked nothing."""
        self.feed.end(how, error)
        if how in ANEW:
            self._reset()
        if how is End.FORKED:
            self._watched.clear()

    def _reset(self) -> None:
        self.wanted: bool = False
        self.on: bool = False
        self._asked: _TurnOn | None = None  # in flight
        self._restarts = 0  # in a row
        self._unreachable = 0  # attempts in a row to connect the feed that have failed
        self._feed_since = -math.inf
        self._trouble_since: float | None = None  # of the connection for renewals
        self._hang_ups = 0  # connections in a row that were lost at a command of this
        self._on_trial = True  # no key has been registered on this connection, and its loss has not been counted
        self._rest_until = -math.inf
        self._again: Alarm | None = None

    @property
    def registers(self) -> bool:
        """True if what is read from now on is registered, unless CLIENT TRACKING in flight fails."""
        return self.on or self._asked is not None

    def want(self) -> None:
        """Begin to track unless that has begun. Called for each grant."""
        if not self.registers and self._timer.now >= self._rest_until:
            self.wanted = True
            self.feed.start()

    def node_ready(self, *, new: bool) -> None:
        """Ask again on a new connection for renewals."""
        trouble_since, self._trouble_since = self._trouble_since, None
        if new:
            self._on_trial = True
            self._switch_off()
            if trouble_since is not None and self._feed_since <= trouble_since and self.feed.client_id is not None:
                self.feed.stop()  # its server may be another one: a name may have got another address
            if self._hang_ups < _MOST_HANG_UPS:
                self._rest_until = -math.inf  # a refusal is that of one server, and of the user's rights at that time
            if self.is_interested():
                self.want()
        self._ask(first=new)

    def node_in_trouble(self) -> None:
        """Note that the connection for renewals is suspected or lost, or could not be made."""
        if self._trouble_since is None:
            self._trouble_since = self._timer.now
        if not self.renewer.node.connected:
            self._switch_off()

    def _switch_off(self) -> None:
        self.on, self._asked = False, None

    def _ask(self, *, first: bool) -> None:
        node, client_id = self.renewer.node, self.feed.client_id
        if self.registers or client_id is None or not node.ready:
            return
        if self.feed.server != node.server:
            return  # Sentinels have named another master: the connection to the old one is about to end
        if not node.answers_for_all:
            self._unavailable("a service that routes calls by their keys cannot redirect invalidations")
            return
        words = [b"CLIENT", b"TRACKING", b"ON", b"REDIRECT", b"%d" % client_id, b"NOLOOP"]
        self._asked = _TurnOn(self, first, *words, *([b"OPTIN"] if self.opts_in else []))
        node.send(self._asked)

    def answered(self, command: _TurnOn, error: ServerError | None) -> None:
        """Take the reply to ``command``."""
        if command is not self._asked:
            return  # the feed has been replaced meanwhile
        self._asked = None
        if error is None:
            self.on = True
            self._restarts = self._unreachable = 0
            if not command.first:
                self.renewer.doubt(None)
        elif error.code in NOT_NOW:
            self._timer.cancel(self._again)
            self._again = self._timer.call_at(self._timer.now + _NOT_NOW_S, self._ask_again, self.renewer)
        elif _UNKNOWN_ID in str(error) and self._restarts < _MOST_RESTARTS:
            self._restarts += 1
            self._timer.post(self._restart_feed, self.renewer)
        else:
            self._unavailable(error_text(error))

    def _restart_feed(self) -> None:
        self.feed.stop()
        self.want()

    def _ask_again(self, now: float) -> None:
        self._again = None
        self._ask(first=False)

    def refused(self, error: ServerError) -> None:
        """Handle that the server has refused to register keys with ``error``."""
        if self.on:
            self._unavailable(error_text(error))

    def registered(self) -> None:
        """Note that the server has answered a registration."""
        self._on_trial = False
        self._hang_ups = 0
        if self._logged and self.on:
            self._logged = False
            NOTIFIER.post(logger.info, "%s reports changes of locks again", self._place)

    def interrupted(self, error: Exception) -> None:
        """Count a connection that was lost before the first key was registered: a proxy may hang up at commands."""
        if self._on_trial:
            self._on_trial = False
            self._hung_up(error)

    def _hung_up(self, error: Exception) -> None:
        if isinstance(error, TimeoutError):
            return  # silence, of a server that is paused
        self._hang_ups += 1
        if self._hang_ups >= _MOST_HANG_UPS:
            self._unavailable(f"it hangs up: {error_text(error)}")

    def _unavailable(self, reason: str) -> None:
        """Stop asking, and log it the first time."""
        self._switch_off()
        self._rest_until = self._timer.now + _REST_S
        self._timer.post(self.feed.stop, self.renewer)  # not while its reply is being read
        self._log(reason)

    def _log(self, reason: str) -> None:
        """Log, once until the node reports changes again, that it does not."""
        if not self._logged:
            self._logged = True
            text = "%s does not report changes of locks, so their losses are noticed at renewals: %s"
            NOTIFIER.post(logger.warning, text, self._place, reason)

    @property
    def _place(self) -> str:
        return self.renewer.node.connector.describe()

    # -- the feed ----------------------------------------------------------------------------------------------------

    def is_interested(self) -> bool:
        return self.renewer.is_needed(self.renewer.node)

    def on_subscribed(self, holds: bool) -> None:
        return  # on_ready() and on_ended() say more

    def on_message(self, message: bytes) -> None:
        return  # published by a user

    def on_ready(self) -> None:
        self._feed_since = self._timer.now
        self._switch_off()  # the id of the feed is another one
        self._ask(first=False)

    def on_refused(self, error: ServerError) -> None:
        if error.code in NOT_NOW:
            self._timer.call_at(self._timer.now + _NOT_NOW_S, lambda now: self._restart_feed(), self.renewer)
        else:
            self._unavailable(error_text(error))

    def on_ended(self, error: Exception, was_ready: bool) -> None:
        self._switch_off()
        if not was_ready:
            self._hung_up(error)

    def on_unreachable(self, error: Exception) -> None:
        self._unreachable += 1
        if self._unreachable == _UNREACHABLE and self.renewer.node.ready:
            self._log(error_text(error))

    def on_stopped(self) -> None:
        self._switch_off()
        self.wanted = self._timer.now < self._rest_until  # else it was closed because nothing is held

    def on_invalidated(self, keys: Sequence[bytes] | None) -> None:
        self.renewer.doubt(None if keys is None else self._watched.find(keys))

    @property
    def above(self) -> FailureDomain:
        return self.renewer

    def crashed(self, error: Exception) -> None:
        """Stop tracking: it only marks leases to be checked, so none is in doubt."""
        self._unavailable("an internal error")


class _RegisteringConnection(PipelinedConnection):
    """The connection for renewals: the keys of held leases are registered behind each request about them."""

    def __init__(self, renewer: WatchingRenewer, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._renewer = renewer

    def send(self, request: NodeRequest) -> None:
        super().send(request)
        if isinstance(request, Request):
            self._renewer.register(request.leases)


class WatchingRenewer(Renewer):
    """Keeps the leases of one node alive, and has the server report changes of their keys. Timer's thread only."""

    def __init__(self, table: LeaseTable, router: Router, connector: Connector, watched: WatchedKeys) -> None:
        super().__init__(table, router, connector)
        self._watched = watched
        self.tracking: Tracking = Tracking(self, watched)
        self._parts.append(self.tracking)

    # -- leases ------------------------------------------------------------------------------------------------------

    def granted(self, leases: Sequence[Lease], now: float) -> None:
        super().granted(leases, now)
        if group_of(leases[0]).lock_type.watchable:
            for lease in self._watched.add(leases):
                group_of(lease).renewer.doubt([lease])
            if self.tracking.registers:
                self.flow.checks.settle(leases)
            else:
                self.tracking.want()

    def register(self, leases: Sequence[Lease]) -> None:
        """Register the keys of those ``leases`` that are watched here, behind the command that was sent just now."""
        tracking = self.tracking
        if not (self.flow.checks.registers and tracking.registers and self.node.connected):
            return
        held = [lease for lease in leases if lease.state <= EXTENDING and self._watches(group_of(lease))]
        if not tracking.opts_in:
            for lease in held:  # the keys of one command must be in one hash slot
                self.node.send(_Registration(tracking, [lease]))
        elif held:
            self.node.send(_Announcement(tracking, b"CLIENT", b"CACHING", b"YES"))
            self.node.send(_Registration(tracking, held))

    def _watches(self, group: LeaseGroup) -> bool:
        return group.lock_type.watchable and group.renewer is self

    # -- the node ----------------------------------------------------------------------------------------------------

    @property
    def new_connection(self) -> Callable[..., PipelinedConnection]:
        return partial(_RegisteringConnection, self)

    def ready(self, node: Node, *, new: bool) -> None:
        if node is self.node:
            self.tracking.node_ready(new=new)
        super().ready(node, new=new)
        if node is self.node and new:  # what is held is verified, but for leases whose extension has been sent already
            extending = [lease for lease in self.overdue.snapshot() if lease.state is EXTENDING]
            self.flow.checks.settle([lease for lease in extending if self._watches(group_of(lease))])

    def trouble(self, node: Node) -> None:
        if node is self.node:
            self.tracking.node_in_trouble()
        super().trouble(node)
