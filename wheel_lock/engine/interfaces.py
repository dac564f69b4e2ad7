"""What the parts of an engine know of one another: Protocols, so that imports go one way only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from wheel_lock.engine.kind import Kind
from wheel_lock.engine.node import Node
from wheel_lock.engine.operation import Operation
from wheel_lock.errors import WheelLockError
from wheel_lock.failures import FailureDomain
from wheel_lock.lease import Group, Lease
from wheel_lock.observe import ContextStats, HeldLock
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.timer import HashedWheelTimer


class GrantBarrier(Protocol):
    """Holds grants back until enough replicas have them."""

    def confirm(self, confirmed: Callable[[WheelLockError | None], object]) -> None:
        """Have ``confirmed()`` called with None when enough replicas have what was granted, else with the error."""
        ...


class Shard(FailureDomain, Protocol):
    """What keeps the leases of one node alive: the renewer, as the requests and the lease table see it.

    Attributes:
        node: The node.
        acquiring_node: The node on its connection for acquires: another one where replicas are asked.
    """

    node: Node
    acquiring_node: Node

    @property
    def replicas(self) -> GrantBarrier | None:
        """What confirms that replicas have a grant, if they are asked."""
        ...

    @property
    def nodes(self) -> Sequence[Node]:
        """The node, once for each of its connections."""
        ...

    def is_needed(self, node: Node) -> bool:
        """Return whether leases are held, and some may live here."""
        ...

    def begin(self, leases: Sequence[Lease], sent_at: float) -> None:
        """Put leases of one group, granted together, on the wheel for the first time."""
        ...

    def schedule(self, lease: Lease, sent_at: float) -> None:
        """Put a lease that was confirmed at ``sent_at`` on the wheel."""
        ...

    def untrack(self, lease: Lease) -> None:
        """Remove a lease from the wheel and from the overdue set."""
        ...

    def watch_overdue(self, leases: Sequence[Lease]) -> None:
        """Watch leases until their deadlines."""
        ...

    def drain(self) -> None:
        """Send renewals for overdue leases, as far as the node takes them."""
        ...

    def needs_none(self, lease: Lease) -> bool:
        """Return whether a renewal of the lease would not move its expiry."""
        ...

    def clean_up(self, leases: Sequence[Lease], node: Node | None = None) -> None:
        """Release, owner-checked, leases of one group that are not held any more."""
        ...

    def look_at(self, lease: Lease) -> None:
        """Ask whether the server knows a HELD lease that needs no renewal now."""
        ...

    def server_is_well(self) -> None:
        """Retry refused renewals: the server has just granted a lock."""
        ...


class LeaseGroup(Group, Protocol):
    """Leases of one lock type, timeout and renewal interval on one node: what can share a script call."""

    @property
    def kind(self) -> Kind:
        """The type of lock."""
        ...

    @property
    def renewer(self) -> Shard:
        """What renews the leases."""
        ...

    @property
    def timeout_ms(self) -> int:
        """The time-to-live in milliseconds."""
        ...

    @property
    def ttl(self) -> bytes:
        """The time-to-live as an encoded argument."""
        ...

    @property
    def after(self) -> int:
        """Ticks between two renewals."""
        ...

    def earlier(self) -> int:
        """Return by how many ticks a first renewal comes earlier, where many would come at once."""
        ...


def shard_at(node: Node) -> Shard:
    """Return what keeps the leases of a node alive: the observer of each node of an engine."""
    return node.observer  # type: ignore[return-value]


def terms_of(lease: Lease) -> LeaseGroup:
    """Return the group of a lease that an engine has made."""
    return lease.group  # type: ignore[return-value]


class RoutedRequest(Protocol):
    """A request as a router sees it; see ``Request``."""

    asked: bool
    declared: bool
    finished: bool
    in_full: bool
    node: Node
    sends: int

    @property
    def key(self) -> bytes | None:
        """The name that decides about the node; None where there is none."""
        ...

    @property
    def wanted(self) -> bool:
        """Whether sending the request once more has any use."""
        ...

    def road_to(self, shard: Shard) -> Node:
        """Return the connection on which the request goes to a node."""
        ...

    def moved_to(self, shard: Shard) -> None:
        """Send the request to another node."""
        ...

    def resend(self) -> None:
        """Send the request once more, at once."""
        ...

    def try_later(self, pause_s: float, *, perhaps_done: bool = False) -> bool:
        """Schedule a retry after ``pause_s`` seconds; return False if this type of request is not retried."""
        ...


class Router(Protocol):
    """Which node a name lives on, and what changes that: one server, a master that Sentinels name, or a cluster.

    Attributes:
        stable: A name lives on the same node for ever, and its wake-ups are counted there.
        known: The nodes of all names are known, as far as they can be.
    """

    stable: bool
    known: bool

    @property
    def shards(self) -> Sequence[Shard]:
        """What keeps leases alive, once for each node."""
        ...

    @property
    def nodes(self) -> list[Node]:
        """All nodes, each once for each of its connections."""
        ...

    def owns_names(self, shard: Shard) -> bool:
        """Return whether any name lives on a node."""
        ...

    def shard_of(self, key: bytes) -> Shard:
        """Return what keeps the leases of a name alive. From any thread."""
        ...

    def group_of(self, group: LeaseGroup, key: bytes) -> LeaseGroup:
        """Return the group of the same terms where ``key`` lives. From any thread."""
        ...

    def redirect(self, request: RoutedRequest, error: ServerError) -> bool:
        """Send a request where, or when, it can be carried out, as ``error`` says; return False for any other error."""
        ...

    def resend(self, request: RoutedRequest) -> None:
        """Send a request to the node where its name lives by now."""
        ...

    def refused(self, node: Node, errors: Iterable[ServerError]) -> None:
        """Check where the master is: a node has refused renewals with ``errors``."""
        ...

    def refresh(self) -> None:
        """Fetch the slot map soon, where there is one."""
        ...

    def ready(self) -> None:
        """A node has been connected to."""
        ...

    def queued(self) -> None:
        """A request waits for a connection."""
        ...

    def migrate(self, lease: Lease, shard: Shard) -> None:
        """Have a lease renewed at another node from now on."""
        ...

    def rehome(self, leases: Iterable[Lease]) -> list[Lease]:
        """Have leases renewed where they live; return those that are in the right place."""
        ...

    def assign(self, lease: Lease) -> None:
        """Give a PENDING lease the group of the node where its name lives by now."""
        ...

    def when_known(self, begin: Callable[[], object]) -> None:
        """Have ``begin()`` called when it is known which node owns what, or after a second."""
        ...

    def watch_master(self) -> None:
        """Learn of failovers from now on: something is held or wanted."""
        ...


class LeaseListener(Protocol):
    """What is told of leases that end: the wait queues."""

    def __len__(self) -> int:
        """Return the number of wait queues."""
        ...

    def ended(self, lease: Lease) -> None:
        """A lease of this process has ended; a release, if there is one, has been sent."""
        ...

    def listened(self, lease: Lease, woken: int) -> None:
        """The release of a lease has reached ``woken`` subscribers."""
        ...


class PendingSwap(Protocol):
    """A swap of two leases whose outcome is not known yet."""

    def release(self, operation: Operation[None]) -> None:
        """Release the new lease as soon as the server has confirmed it."""
        ...

    def refused(self, error: Exception) -> None:
        """End the swap: it will never be sent again."""
        ...


class Wait(Protocol):
    """A caller's wait for a lock, on the timer's thread. ``give_up`` undoes what was granted, or may have been."""

    def begin(self) -> None: ...
    def give_up(self) -> None: ...


class LockEngine(Protocol):
    """What lock objects and contexts use of an engine, be it that of one server or that of a quorum.

    See :class:`wheel_lock.engine.state.EngineState` for the attributes, and :class:`wheel_lock.engine.engine.Engine` for
    the methods.
    """

    options: ContextOptions
    timer: HashedWheelTimer
    counters: Counters
    closed: bool
    deaths: int
    exiting: bool
    interrupted: bool
    stable: bool

    @property
    def held(self) -> Collection[Lease]: ...
    @property
    def over(self) -> bool: ...

    # From any thread

    def submit(self, work: Callable[[], object]) -> None: ...
    def post_if_open(self, work: Callable[[], object]) -> None: ...
    def post_if_running(self, work: Callable[[], object]) -> None: ...
    def group(self, key: bytes, kind: Kind, options: LockOptions) -> Group: ...
    def new_wait(
        self,
        options: LockOptions,
        leases: Sequence[Lease],
        token_given: bool,
        blocking: bool,
        until: float | None,
        operation: Operation[Sequence[Lease] | None],
    ) -> Wait: ...
    def release_unawaited(self, release: Callable[[Operation[Any]], object]) -> None: ...
    def stats(self) -> ContextStats: ...
    def held_locks(self) -> list[HeldLock]: ...

    # On the timer's thread

    def release(self, lease: Lease, operation: Operation[None]) -> None: ...
    def come_by(self, operation: Operation[None]) -> None: ...
    def extend(self, lease: Lease, time_ms: int, replace: bool, operation: Operation[None]) -> None: ...
    def query(self, name: str | bytes, call: Call, read: Callable[[Reply], Any], operation: Operation[Any]) -> None: ...
    def abandon(self, lease: Lease) -> None: ...
    def lapse_seen(self, lease: Lease) -> None: ...
    def close(self, timeout_s: float, operation: Operation[None], *, exiting: bool = False) -> None: ...
    def end(self, timeout_s: float, operation: Operation[None]) -> None: ...
    def retire(self) -> None: ...
