"""Protocols by which the parts of an engine see each other, so that imports go one way only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from wheel_lock.block import Block
from wheel_lock.engine.future import Future
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Group, Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.connection import NodeRequest
from wheel_lock.net.node import Node
from wheel_lock.observe.stats import Counters
from wheel_lock.options import LockOptions
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.rows import Rows, like
from wheel_lock.runtime.ends import End
from wheel_lock.runtime.failures import FailureDomain

F = TypeVar("F", bound=Future[None])


class Shard(FailureDomain, Protocol):
    """Keeps the leases of one node alive, as requests and the lease table see it; implemented by ``Renewer``.

    Attributes:
        node: The node.
        acquiring_node: The node on its connection for acquires: another connection where replicas confirm grants.
        confirmed_at: When a grant or a renewal was last confirmed, in seconds of the timer's clock; -inf if never.
        confirm_grant: Calls its argument when enough replicas have all grants so far; None if none need have them.
    """

    node: Node
    acquiring_node: Node
    confirmed_at: float
    confirm_grant: Callable[[Callable[[WheelLockError | None], object]], object] | None

    @property
    def nodes(self) -> Sequence[Node]: ...
    def is_needed(self, node: Node) -> bool: ...
    def granted(self, leases: Sequence[Lease], now: float) -> None: ...
    def untrack(self, lease: Lease) -> None: ...
    def take_out(self, lease: Lease) -> None: ...  # of its block
    def watch_overdue(self, leases: Sequence[Lease]) -> None: ...
    def drain(self) -> None: ...
    def needs_none(self, lease: Lease) -> bool: ...
    def lapses_now(self, lease: Lease) -> bool: ...
    def doubt(self, leases: Iterable[Lease] | None) -> None: ...  # check soon; None for all watched
    def clean_up(self, leases: Sequence[Lease], node: Node | None = None) -> None: ...


class LeaseGroup(Group, Protocol):
    """The leases that can share a script call; implemented by ``RenewalGroup``."""

    lock_type: LockType
    timeout_ms: int
    ttl: bytes
    interval_ticks: int
    slack_ticks: int

    @property
    def renewer(self) -> Shard: ...
    def begin(self, leases: Sequence[Lease], sent_at: float) -> None: ...
    def schedule(self, lease: Lease, sent_at: float) -> None: ...
    def live(self, entries: list[Lease | Block]) -> list[Lease | Block]: ...


# Attributes as an engine sees them, by calls in C: each acquire and release makes several.
shard_at: Callable[[Node], Shard] = attrgetter("observer")  # the shard of a node of an engine
group_of: Callable[[Lease | Block | Rows], LeaseGroup] = attrgetter("group")  # that an engine has made


def shared_group(leases: Sequence[Lease]) -> LeaseGroup:
    """Return the group of leases of one call."""
    return group_of(like(leases))


node_of: Callable[[Lease], Node] = attrgetter("group.renewer.node")  # the node that a lease lives on
acquiring_node_of: Callable[[Lease], Node] = attrgetter("group.renewer.acquiring_node")  # for its acquire


class Elsewhere(NamedTuple):
    """A router's decision: send the request to ``shard``, the owner of its key, or if ``asking`` once."""

    shard: Shard
    asking: bool = False


class Later(NamedTuple):
    """A router's decision: send the request again after ``pause_s`` seconds."""

    pause_s: float
    maybe_executed: bool = False


class Router:
    """The nodes of names, as requests, renewers and the lease table see them: here one node, on which all names live.

    Every router is a subclass of ``SingleRouter``, because the engine uses more of it than this.

    Attributes:
        shards: The shard of each node.
        keeps_groups: True if a name lives on the same node for ever, so that its leases always have the same group.
        known: True if the nodes of all names are known, as far as they can be.
    """

    keeps_groups: bool = True
    known: bool = True
    shards: Sequence[Shard]

    @property
    def nodes(self) -> list[Node]:  # each once for each of its connections
        return [node for shard in self.shards for node in shard.nodes]

    def owns_names(self, shard: Shard) -> bool:  # True if a name may live there
        return True

    def shard_of(self, key: bytes) -> Shard:  # from any thread
        return self.shards[0]

    def group_of(self, group: LeaseGroup, key: bytes) -> LeaseGroup:  # from any thread; ``group`` on the key's node
        return group

    def redirection(self, request: NodeRequest, error: ServerError) -> Elsewhere | Later | None:
        return None

    def home_of(self, request: NodeRequest) -> Shard | None:  # where its key lives by now; None if it is there
        return None

    def refused(self, node: Node, errors: Iterable[ServerError]) -> None:  # called when renewals are refused
        demoted = next((error for error in errors if error.code == "READONLY"), None)
        if demoted is not None:
            node.demoted(demoted)

    def rehome(self, leases: Iterable[Lease]) -> list[Lease]:  # move those that live elsewhere, return the others
        return list(leases)

    def when_known(self, begin: Callable[[], object]) -> None:  # call ``begin()``, after a bounded wait for the map
        begin()

    def refresh(self) -> None:  # fetch the slot map, soon
        return

    def ready(self) -> None:  # called when a node is connected
        return

    def queued(self) -> None:  # called when a request waits for a connection
        return

    def migrate(self, lease: Lease, shard: Shard) -> None:  # have ``shard`` renew the lease
        return

    def assign(self, lease: Lease) -> None:  # give a PENDING lease a group on its node
        return

    def by_shard(self, leases: Iterable[Lease]) -> Iterable[tuple[Shard, Iterable[Lease]]]:  # after ``assign`` of each
        return [(self.shards[0], leases)]

    def rivals(self, woken: int, own: bool) -> int:  # listeners of other processes among those that a release has woken
        return woken - own

    def watch_master(self) -> None:  # called when a lease is held or wanted: notice failovers from now on
        return


class LeaseListener(Protocol):
    """The wait queues as the lease table sees them; implemented by ``WaitQueueRegistry``."""

    @property
    def queues(self) -> Mapping[bytes, object]: ...
    def __len__(self) -> int: ...
    def release(self, lease: Lease, send: Callable[[bool], object]) -> None: ...  # call ``send(quiet)``, then ``ended``
    def ended(self, lease: Lease) -> None: ...  # a release has been sent, if there is one
    def listened(self, lease: Lease, woken: int) -> None: ...  # the number of subscribers that a release has woken


class PendingSwap(Protocol):
    """A swap of two leases whose outcome is not known yet; implemented by ``Swap``."""

    def release(self, future: Future[None]) -> None: ...
    def on_unavailable(self, error: Exception) -> None: ...


class Wait(Protocol):
    """A caller's wait for a lock, on the timer's thread; implemented by ``Waiter``."""

    __slots__ = ()

    def begin(self) -> None: ...
    def give_up(self) -> None: ...


class OnPath(Wait, Protocol):
    """A lock on the direct path; implemented by ``DirectHold``. Its caller's thread calls ``acquire`` and ``release``."""

    @property
    def lease(self) -> Lease: ...
    def acquire(self) -> bool: ...
    def release(self, new_future: Callable[[], F], done: F) -> F | None: ...
    def finish_release(self, future: Future[None]) -> None: ...


class DirectLocks:
    """The direct path as the rest of the engine sees it: here that of an engine without one, on which nothing ever is.

    Attributes:
        exists: False. Asked by an acquire, which should not pay for a call that does nothing.
        claim: What is on the path, by lease.
    """

    exists: ClassVar[bool] = False
    claim: Mapping[Lease, OnPath] = MappingProxyType({})

    # From any thread

    def offer(self, wait: Wait, options: LockOptions) -> OnPath | None:
        """Return a hold for ``wait`` if the path may be used for it now, else None. Claims nothing."""
        return None

    def young(self) -> list[Lease]:
        """Return the held lease that is on the path, and not in the table, if there is one."""
        return []

    def counted(self, counters: Counters) -> Counters:
        """Return ``counters`` with the grants and releases on the path. (A lock that was taken over was granted here.)"""
        return counters

    # On the timer's thread

    def collided(self) -> None:
        """Have the path unused for a while, and take over what is held on it: something else was submitted."""

    def forced(self, leases: Iterable[Lease]) -> list[Lease]:
        """Note that the keys of ``leases`` were removed by force; return those that are not on the path."""
        return list(leases)

    def give_up(self) -> None:
        """Give up what is on the path for callers that never go on: a signal ends the process."""

    def end(self, how: End, error: Exception) -> None:
        """Close the connection, and take over what is held; in a forked child it is the parent's, as the connection is."""


NO_DIRECT_LOCKS = DirectLocks()
