"""The renewer of a context with ``watch=True``: keys are registered behind each command, and invalidations are checked.

A registration ends when its key changes, by whatever command. So it is no request that registers its keys but the
connection, behind each request about held leases, also behind one that is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wheel_lock.engine.interfaces import LeaseGroup, Router, group_of
from wheel_lock.engine.leases import LeaseTable
from wheel_lock.engine.renewal.renewer import Renewer
from wheel_lock.engine.renewal.tracking import Tracking, WatchedKeys
from wheel_lock.engine.requests.base import Request
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.net.connection import BareCommand, NodeRequest, PipelinedConnection
from wheel_lock.net.connector import Connector
from wheel_lock.net.node import Node
from wheel_lock.protocol.resp import MalformedReply, Reply, name_arg
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.ends import End

_REFUSALS = ("NOPERM", "ERR")  # other errors concern this moment, or this key


class _Announcement(BareCommand):
    """CLIENT CACHING YES: the next command registers the keys that it reads."""

    def __init__(self, renewer: WatchingRenewer) -> None:
        super().__init__(b"CLIENT", b"CACHING", b"YES")
        self._renewer = renewer

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, ServerError) and reply.code in _REFUSALS:
            self._renewer.tracking.refused(reply)

    def on_connection_lost(self, error: Exception) -> None:
        self._renewer.tracking.interrupted(error)


class _Registration(BareCommand):
    """EXISTS, by which the server registers the keys of ``leases``: one that is deleted afterwards is reported.

    A key that was deleted after the command before it and before this one is not counted in the reply. A lease that has
    been released meanwhile is: its release comes behind this command.
    """

    def __init__(self, renewer: WatchingRenewer, leases: Sequence[Lease]) -> None:
        self._renewer = renewer
        self._leases = leases
        self._bytes = b"*%d\r\n$6\r\nEXISTS\r\n%b" % (
            1 + len(leases),
            b"".join([name_arg(lease.lease_args) for lease in leases]),
        )

    def on_reply(self, reply: Reply) -> None:
        if isinstance(reply, ServerError):
            if reply.code in _REFUSALS:
                self._renewer.tracking.refused(reply)
            else:  # a slot that is being migrated, a server that is busy
                self._renewer.flow.checks.register_later(self._leases)
        elif type(reply) is not int:
            raise MalformedReply(f"{reply!r:.40} is no number of keys")
        else:
            self._renewer.tracking.registered()
            if reply < len(self._leases):
                self._renewer.flow.checks.doubt(self._leases)

    def on_connection_lost(self, error: Exception) -> None:
        self._renewer.tracking.interrupted(error)


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

    tracking: Tracking

    def __init__(self, table: LeaseTable, router: Router, connector: Connector, watched: WatchedKeys) -> None:
        super().__init__(table, router, connector)
        self._watched = watched
        self.tracking = Tracking(self, table, watched)

    def end(self, how: End, error: Exception) -> None:
        super().end(how, error)
        self.tracking.end(how, error)
        if how is End.FORKED:
            self._watched.clear()

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
                self.node.send(_Registration(self, [lease]))
        elif held:
            self.node.send(_Announcement(self))
            self.node.send(_Registration(self, held))

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
