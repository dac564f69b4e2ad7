"""Protocols by which the parts of an engine see each other, so that imports go one way only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from wheel_lock.engine.future import Future
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Group, Lease
from wheel_lock.lock_types.base import LockType
from wheel_lock.net.node import Node
from wheel_lock.observe import ContextStats, Health, HeldLock, NodeHealth
from wheel_lock.observe.contexts import Reading
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Command
from wheel_lock.protocol.server_errors import ServerError
from wheel_lock.runtime.failures import FailureDomain
from wheel_lock.runtime.timer import HashedWheelTimer

F = TypeVar("F", bound=Future[None])
R = TypeVar("R")


class GrantBarrier(Protocol):
    """Holds grants back until enough replicas have them; implemented by ``ReplicationBarrier``."""

    def confirm(self, confirmed: Callable[[WheelLockError | None], object]) -> None: ...


class Shard(FailureDomain, Protocol):
    """Keeps the leases of one node alive, as requests and the lease table see it; implemented by ``Renewer``.

    Attributes:
        node: The node.
        acquiring_node: The node on its connection for acquires: another connection where replicas confirm grants.
        confirmed_at: When a grant or a renewal was last confirmed, in seconds of the timer's clock; -inf if never.
    """

    node: Node
    acquiring_node: Node
    confirmed_at: float

    @property
    def replication(self) -> GrantBarrier | None: ...
    @property
    def nodes(self) -> Sequence[Node]: ...
    def is_needed(self, node: Node) -> bool: ...
    def granted(self, leases: Sequence[Lease], now: float) -> None: ...
    def untrack(self, lease: Lease) -> None: ...
    def watch_overdue(self, leases: Sequence[Lease]) -> None: ...
    def drain(self) -> None: ...
    def needs_none(self, lease: Lease) -> bool: ...
    def doubt(self, leases: Iterable[Lease] | None) -> None: ...  # check soon; None for all watched
    def clean_up(self, leases: Sequence[Lease], node: Node | None = None) -> None: ...


class LeaseGroup(Group, Protocol):
    """The leases that can share a script call; implemented by ``RenewalGroup``."""

    @property
    def lock_type(self) -> LockType: ...
    @property
    def renewer(self) -> Shard: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def ttl(self) -> bytes: ...
    @property
    def interval_ticks(self) -> int: ...
    @property
    def slack_ticks(self) -> int: ...
    def begin(self, leases: Sequence[Lease], sent_at: float) -> None: ...
    def schedule(self, lease: Lease, sent_at: float) -> None: ...
    def live(self, entries: list[Lease]) -> list[Lease]: ...


def shard_at(node: Node) -> Shard:
    """Return the shard of a node: the observer of each node of an engine."""
    return node.observer  # type: ignore[return-value]


def group_of(lease: Lease) -> LeaseGroup:
    """Return the group of a lease that an engine has made. (Each acquire and release does without this call.)"""
    return lease.group  # type: ignore[return-value]


class RoutedRequest(Protocol):
    """A request as a router sees it, which changes nothing of it; implemented by ``Request``."""

    @property
    def sent_asking(self) -> bool: ...
    @property
    def declared(self) -> bool: ...
    @property
    def node(self) -> Node: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def wanted(self) -> bool: ...
    def node_on(self, shard: Shard) -> Node: ...


class Elsewhere(NamedTuple):
    """A router's decision: send the request to ``shard``, the owner of its key, or if ``asking`` once."""

    shard: Shard
    asking: bool = False


class Later(NamedTuple):
    """A router's decision: send the request again after ``pause_s`` seconds."""

    pause_s: float
    maybe_executed: bool = False


class Router(Protocol):
    """The nodes of names, as requests, renewers and the lease table see them; implemented by ``SingleRouter``.

    Every router is a subclass of ``SingleRouter``, because the engine uses more of it than this.

    Attributes:
        shards: The shard of each node.
        stable: True if a name lives on the same node for ever, and its wake-ups are counted there.
        known: True if the nodes of all names are known, as far as they can be.
    """

    stable: bool
    known: bool
    shards: Sequence[Shard]

    @property
    def nodes(self) -> list[Node]: ...  # each once for each of its connections
    def owns_names(self, shard: Shard) -> bool: ...  # True if a name may live there
    def shard_of(self, key: bytes) -> Shard: ...  # from any thread
    def group_of(self, group: LeaseGroup, key: bytes) -> LeaseGroup: ...  # from any thread; ``group`` on the key's node
    def redirection(self, request: RoutedRequest, error: ServerError) -> Elsewhere | Later | None: ...
    def home_of(self, request: RoutedRequest) -> Shard | None: ...  # where its key lives by now; None if it is there
    def refused(self, node: Node, errors: Iterable[ServerError]) -> None: ...  # called when renewals are refused
    def rehome(self, leases: Iterable[Lease]) -> list[Lease]: ...  # move those that live elsewhere, return the others
    def when_known(self, begin: Callable[[], object]) -> None: ...  # call ``begin()``, after a bounded wait for the map

    # These do nothing, unless a router overrides them.

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
    """A caller's wait for a lock, on the timer's thread; implemented by ``Waiter`` and ``QuorumWaiter``."""

    def begin(self) -> None: ...
    def give_up(self) -> None: ...


class OnPath(Wait, Protocol):
    """A lock on the direct path; implemented by ``DirectHold``."""

    @property
    def lease(self) -> Lease: ...
    def acquire(self) -> bool: ...  # on the thread of its caller, like ``release``
    def release(self, new_future: Callable[[], F], done: F) -> F | None: ...
    def finish_release(self, future: Future[None]) -> None: ...


class DirectLocks(Protocol):
    """The direct path of an engine; implemented by ``DirectPath``."""

    # From any thread

    @property
    def claim(self) -> Mapping[Lease, OnPath]: ...
    @property
    def done(self) -> Collection[object]: ...
    def offer(self, wait: Wait, options: LockOptions) -> OnPath | None: ...
    def hold_of(self, lease: Lease, /) -> OnPath | None: ...
    def young(self) -> Sequence[Lease]: ...
    def read(self, look: Callable[[], R]) -> R: ...
    def count_into(self, counters: Counters) -> None: ...

    # On the timer's thread

    def collided(self) -> None: ...
    def forced(self, leases: Iterable[Lease]) -> list[Lease]: ...
    def end(self) -> None: ...
    def after_fork_in_child(self) -> None: ...


class DebugSocket(Protocol):
    """The socket at which a context is shown; implemented by ``locks.debug_socket.DebugServer``."""

    path: str

    def close(self) -> None: ...


class LockEngine(Protocol):
    """An engine as lock objects and contexts see it; implemented by ``Engine`` and ``QuorumEngine``.

    The attributes are documented in :class:`wheel_lock.engine.state.EngineState`, the methods in ``Engine``.
    """

    options: ContextOptions
    timer: HashedWheelTimer
    counters: Counters
    closed: bool
    deaths: int
    exiting: bool
    interrupted: bool
    unawaited: dict[object, None]
    stable: bool
    token_head: bytes
    spans: Any
    direct: DirectLocks | None
    debug_socket: DebugSocket | None

    @property
    def held(self) -> Collection[Lease]: ...
    @property
    def over(self) -> bool: ...

    # From any thread

    def submit(self, work: Callable[[], object]) -> None: ...
    def post_if_open(self, work: Callable[[], object]) -> None: ...
    def post_if_running(self, work: Callable[[], object]) -> None: ...
    def group(self, key: bytes, lock_type: LockType, options: LockOptions) -> Group: ...
    def new_wait(
        self,
        options: LockOptions,
        lease: Lease,
        key: bytes,
        token_given: bool,
        blocking: bool,
        until: float | None,
        future: Future[Sequence[Lease] | None],
    ) -> Wait: ...
    def release_unawaited(self, release: Callable[[Future[Any]], object]) -> None: ...
    def stats(self) -> ContextStats: ...
    @property
    def label(self) -> str: ...
    def node_health(self) -> list[NodeHealth]: ...
    def waits(self) -> list[tuple[str | bytes, int, float]]: ...
    def read_into(self, reading: Reading) -> None: ...
    def overdue_leases(self) -> Collection[Lease]: ...
    def health(self) -> Health: ...
    def held_locks(self) -> list[HeldLock]: ...
    def longest_held(self, most: int) -> list[Lease]: ...

    # On the timer's thread

    def release(self, lease: Lease, future: Future[None]) -> None: ...
    def come_by(self, future: Future[None]) -> None: ...
    def extend(self, lease: Lease, time_ms: int, replace: bool, future: Future[None]) -> None: ...
    def query(self, name: str | bytes, call: Command, read: Callable[[Reply], Any], future: Future[Any]) -> None: ...
    def owned(self, lease: Lease, future: Future[Any]) -> None: ...
    def abandon(self, lease: Lease) -> None: ...
    def lapse_seen(self, lease: Lease) -> None: ...
    def close(self, timeout_s: float, future: Future[None], *, exiting: bool = False) -> None: ...
    def end(self, timeout_s: float, future: Future[None]) -> None: ...
    def retire(self) -> None: ...
