"""The contexts of a quorum of independent masters, and their lock objects: for threads, and for asyncio."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NoReturn, TypedDict, Unpack

from wheel_lock.aio import lock as aio_lock
from wheel_lock.aio.context import AsyncContext, TaskContext, TaskFencedTerms, TaskLockTerms
from wheel_lock.decorator import Decorates
from wheel_lock.errors import WheelLockError, quoted
from wheel_lock.lease import Lease
from wheel_lock.lock_types import EXCLUSIVE, FENCED
from wheel_lock.locks.base import BaseLock
from wheel_lock.locks.context import BaseContext, FencedTerms, LockTerms, spelled_out
from wheel_lock.net.clients import AnyClient
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.observe import ContextStats
from wheel_lock.observe.contexts import CONTEXTS
from wheel_lock.options import SETTINGS, ContextOptions
from wheel_lock.quorum.engine import QuorumEngine
from wheel_lock.quorum.lease import QuorumLease
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.sync import lock as sync_lock
from wheel_lock.sync.context import ThreadContext

LEAST_NODES = 3
TYPES = EXCLUSIVE, FENCED  # without and with fences

_NEEDS_ONE_SERVER = "it takes one server that decides for all holders"
_REASONS = {  # more precise ones, for some of the methods of contexts of one server
    "rw_lock": "one server must distinguish readers and writers, and a majority is not the same one twice",
    "fair_lock": "there is no order of arrival among masters that do not know of each other",
    "semaphore": "permits that are counted on several masters cannot be added up",
    "multi_lock": "several names are all granted or none by one script, and no script runs on several masters",
    "acquire_many": "every name would take an election of its own; acquire them one by one",
    "release_many": "release them one by one",
    "force_release": "each master may name another holder; delete the key on all of them",
    "adopt": "a lock of several masters cannot be passed on in one step",
}


class BaseQuorumLock(BaseLock):
    """A lock object whose leases are granted by a majority."""

    __slots__ = ()

    in_bulk = False
    _lease_class = QuorumLease

    def _type_with_caller_token(self) -> NoReturn:
        raise ValueError("a lock of several masters makes its tokens itself, so token must be None")

    def _handoff(self, lease: Lease) -> NoReturn:
        self._refuse("which cannot pass it on in one step: it cannot be handed over")

    def _look(self) -> NoReturn:
        self._refuse("of which each may name another holder: its holder cannot be asked for")

    def _refuse(self, why: str) -> NoReturn:
        raise WheelLockError(f"The lock {quoted(self.name)} lives on several masters, {why}", self.name)


class QuorumLock(BaseQuorumLock, sync_lock.Lock):
    """An exclusive lock that a majority of masters grants, for threads. Made by ``LockContext.quorum(...).lock``.

    ``owned()`` asks the nodes whether a majority of them still has this lock's own tokens.
    """

    __slots__ = ()


class QuorumReentrantLock(BaseQuorumLock, sync_lock.ReentrantLock):
    """The same, for a thread that acquires it again; the process keeps the hold count."""

    __slots__ = ()


class QuorumTaskLock(BaseQuorumLock, aio_lock.Lock):
    """An exclusive lock that a majority of masters grants, for tasks. Made by ``LockContext.quorum(...).asyncio.lock``.

    ``await owned()`` asks the nodes whether a majority of them still has this lock's own tokens.
    """

    __slots__ = ()


class QuorumTaskReentrantLock(BaseQuorumLock, aio_lock.ReentrantLock):
    """The same, for a task that acquires it again."""

    __slots__ = ()


class SharedSettings(TypedDict, total=False):
    """The parameters that :class:`QuorumContext` has in common with :class:`wheel_lock.LockContext`."""

    timer: HashedWheelTimer | None
    batch_size: int
    response_timeout: float
    connect_timeout: float
    close_timeout: float
    release_on_close: bool
    max_held: int | None
    max_waiting: int | None
    declare_keys: bool
    track_acquisitions: bool
    renewal_slack: float
    prefix: str
    timeout: float
    blocking_timeout: float | None
    owner: str | None
    readable_owner: bool
    label: str | None
    watch: bool
    release_on_crash: bool | str | os.PathLike[str] | None
    release_delay: float


class QuorumSettings(SharedSettings, total=False):
    """The parameters of :class:`QuorumContext` except its clients."""

    node_timeout: float | None
    longest_timeout: float
    trust_new_nodes: bool


class BaseQuorumContext(BaseContext):
    """The common base of the two contexts of a quorum."""

    _engine: QuorumEngine

    def node_stats(self) -> dict[str, ContextStats]:
        """Return a frozen snapshot for each node, by its address; its leases are the votes for this context's locks."""
        return {engine.connector.describe(): engine.stats() for engine in self._engine.engines}

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        # Refuse the methods that only a context of one server has. Their names are the same for threads and tasks.
        if name.startswith("_") or not callable(getattr(AsyncContext, name, None)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def refuse(*arguments: object, **keywords: object) -> NoReturn:
            why = _REASONS.get(name, _NEEDS_ONE_SERVER)
            raise WheelLockError(f"{name}() is not available on independent masters: {why}")

        return refuse


class QuorumContext(BaseQuorumContext, Decorates, ThreadContext):
    """Holds locks on a majority of independent masters. Made by :meth:`wheel_lock.LockContext.quorum`.

    Args:
        clients: One client for each master, at least three.
        node_timeout: Seconds that one master may take to answer an acquire; by default a tenth of the lock's timeout.
        longest_timeout: The longest lock timeout, in seconds, of any user of these masters, if that exceeds those of this
            context. Votes of a master do not count for this time after it has restarted.
        trust_new_nodes: Whether a new master counts at once. If False its votes count only after it has been up for as
            long as a restarted one: safe also for a process that starts after a master's restart, but masters that have
            just been set up grant nothing until then.
        settings: As for :class:`wheel_lock.LockContext`.

    Raises:
        TypeError: A client is not that of a single server over a socket.
        ValueError: There are too few clients, two of one master, or a setting is out of range; or ``release_on_crash`` is
            not possible, as for :class:`wheel_lock.LockContext`.
    """

    @spelled_out(QuorumSettings, SETTINGS)
    def __init__(self, clients: Sequence[AnyClient], **settings: Unpack[QuorumSettings]) -> None:
        clients = list(clients)
        if len(clients) < LEAST_NODES:
            raise ValueError(
                f"a quorum takes {LEAST_NODES} clients or more, of independent masters, not {len(clients)}"
            )
        connectors = [RedisPyConnector(client) for client in clients]
        places = [connector.describe() for connector in connectors]
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"each client must be of a master of its own, and {place} is given twice")
        options = ContextOptions.of(settings)
        for connector in connectors:
            options.check_keeper(connector.obstacle)
        self._engine = QuorumEngine(clients, options, HashedWheelTimer.chosen(settings.get("timer")))
        CONTEXTS.add(self._engine)

    @spelled_out(LockTerms)
    def lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[LockTerms]) -> QuorumLock:
        """Return an exclusive lock, not yet acquired.

        The parameters are those of :meth:`wheel_lock.LockContext.lock`. A waiter polls, every ``retry_every`` seconds (0.05
        by default) on average. ``fencing`` costs a second round trip, in which a majority agrees on the fence.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        return self._new(QuorumLock, TYPES, name, timeout, terms)

    @spelled_out(FencedTerms)
    def reentrant_lock(
        self, name: str | bytes, timeout: float | None = None, **terms: Unpack[FencedTerms]
    ) -> QuorumReentrantLock:
        """Return a reentrant lock; see :meth:`lock`. It excludes other locks of that name, reentrant or not."""
        return self._new(QuorumReentrantLock, TYPES, name, timeout, terms)

    @property
    def asyncio(self) -> AsyncQuorumContext:
        """This context as asyncio sees it: the same methods, awaitable."""
        return AsyncQuorumContext(self._engine, self)

    def __repr__(self) -> str:
        addresses = ", ".join(engine.connector.describe() for engine in self._engine.engines)
        return f"<QuorumContext {self._engine.quorum} of {addresses};{self._under} {self._state}>"


class AsyncQuorumContext(BaseQuorumContext, TaskContext):
    """A :class:`QuorumContext` as asyncio sees it: ``context.asyncio``."""

    @spelled_out(TaskLockTerms)
    def lock(self, name: str | bytes, timeout: float | None = None, **terms: Unpack[TaskLockTerms]) -> QuorumTaskLock:
        """Return an exclusive lock, not yet acquired; see :meth:`QuorumContext.lock`."""
        return self._new(QuorumTaskLock, TYPES, name, timeout, terms)

    @spelled_out(TaskFencedTerms)
    def reentrant_lock(
        self, name: str | bytes, timeout: float | None = None, **terms: Unpack[TaskFencedTerms]
    ) -> QuorumTaskReentrantLock:
        """Return a reentrant lock, not yet acquired; see :meth:`QuorumContext.reentrant_lock`."""
        return self._new(QuorumTaskReentrantLock, TYPES, name, timeout, terms)
