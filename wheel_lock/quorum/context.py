"""The contexts of a quorum of independent masters: for threads, and for asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypedDict

from wheel_lock.aio.context import AsyncContext, TaskContext
from wheel_lock.aio.lock import task_callback
from wheel_lock.decorator import Locked
from wheel_lock.errors import WheelLockError
from wheel_lock.locks.base import OnLost
from wheel_lock.locks.callbacks import checked_callback
from wheel_lock.locks.context import BaseContext
from wheel_lock.locks.factory import named_options, terms_of
from wheel_lock.net.clients import AnyClient
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.observe import ContextStats
from wheel_lock.observe.contexts import CONTEXTS
from wheel_lock.options import ContextOptions, LockOptions, name_prefix, seconds
from wheel_lock.quorum.engine import QuorumEngine
from wheel_lock.quorum.locks import QuorumLock, QuorumReentrantLock, QuorumTaskLock, QuorumTaskReentrantLock
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.sync.context import ThreadContext

LEAST_NODES = 3

_NO_FENCES = (
    "fencing is not available on independent masters: each would count for itself, and numbers of different majorities "
    "do not order. Draw the fence where it is checked, or from one server"
)
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


class QuorumOptions(TypedDict, total=False):
    """The parameters of :class:`QuorumContext` except its clients."""

    timer: HashedWheelTimer | None
    node_timeout: float | None
    longest_timeout: float
    trust_new_nodes: bool
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


def _options(context: ContextOptions, given: dict[str, Any]) -> LockOptions:
    options = named_options(context, given)
    if options.fencing:
        raise ValueError(_NO_FENCES)
    return options


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


class QuorumContext(BaseQuorumContext, ThreadContext):
    """Holds locks on a majority of independent masters. Made by :meth:`wheel_lock.LockContext.quorum`.

    Args:
        clients: One client for each master, at least three.
        node_timeout: Seconds that one master may take to answer an acquire; by default a tenth of the lock's timeout.
        longest_timeout: The longest lock timeout, in seconds, of any user of these masters, if that exceeds those of this
            context. Votes of a master do not count for this time after it has restarted.
        trust_new_nodes: Whether a new master counts at once. If False its votes count only after it has been up for as
            long as a restarted one: safe also for a process that starts after a master's restart, but masters that have
            just been set up grant nothing until then.
        timer, batch_size, response_timeout, connect_timeout, close_timeout, release_on_close, max_held, max_waiting,
            declare_keys, track_acquisitions, renewal_slack, prefix, timeout, blocking_timeout, owner, readable_owner,
            label, watch: As for :class:`wheel_lock.LockContext`.

    Raises:
        TypeError: A client is not that of a single server over a socket.
        ValueError: There are too few clients, two of one master, or a setting is out of range.
    """

    def __init__(
        self,
        clients: Sequence[AnyClient],
        *,
        timer: HashedWheelTimer | None = None,
        node_timeout: float | None = None,
        longest_timeout: float = 0.0,
        trust_new_nodes: bool = True,
        batch_size: int = 500,
        response_timeout: float = 5.0,
        connect_timeout: float = 2.0,
        close_timeout: float = 5.0,
        release_on_close: bool = True,
        max_held: int | None = None,
        max_waiting: int | None = None,
        declare_keys: bool = False,
        track_acquisitions: bool = False,
        renewal_slack: float = 1 / 32,
        prefix: str = "",
        timeout: float = 30.0,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        readable_owner: bool = True,
        label: str | None = None,
        watch: bool = False,
    ) -> None:
        clients = list(clients)
        if len(clients) < LEAST_NODES:
            raise ValueError(
                f"a quorum takes {LEAST_NODES} clients or more, of independent masters, not {len(clients)}"
            )
        places = [RedisPyConnector(client).describe() for client in clients]  # type: ignore[arg-type]  # refuses others
        for place in places:
            if places.count(place) > 1:
                raise ValueError(f"each client must be of a master of its own, and {place} is given twice")
        options = ContextOptions(
            batch_size=batch_size,
            response_timeout_s=response_timeout,
            connect_timeout_s=connect_timeout,
            close_timeout_s=close_timeout,
            release_on_close=release_on_close,
            max_held=max_held,
            max_waiting=max_waiting,
            declare_keys=bool(declare_keys),
            track_acquisitions=track_acquisitions,
            renewal_slack=renewal_slack,
            prefix=name_prefix(prefix),
            timeout_s=timeout,
            blocking_timeout_s=blocking_timeout,
            owner=owner,
            readable_owner=bool(readable_owner),
            label=label,
            watch=watch,
        )
        self._engine = QuorumEngine(
            clients,
            options,
            HashedWheelTimer.chosen(timer),
            None if node_timeout is None else seconds("node_timeout", node_timeout, above=0.0),
            seconds("longest_timeout", longest_timeout),
            bool(trust_new_nodes),
        )
        CONTEXTS.add(self._engine)

    def lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        thread_local: bool = True,
    ) -> QuorumLock:
        """Return an exclusive lock, not yet acquired.

        The parameters are those of :meth:`wheel_lock.LockContext.lock`. A waiter polls, every ``retry_every`` seconds (0.05
        by default) on average.

        Raises:
            ValueError: A value is out of range, or ``fencing`` is requested; before any I/O.
        """
        return QuorumLock(self._engine, name, _options(self._engine.options, locals()), checked_callback(on_lost))

    def reentrant_lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
    ) -> QuorumReentrantLock:
        """Return a reentrant lock; see :meth:`lock`. It excludes other locks of that name, reentrant or not."""
        return QuorumReentrantLock(
            self._engine, name, _options(self._engine.options, locals()), checked_callback(on_lost)
        )

    def locked(
        self,
        name: str,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        thread_local: bool = True,
    ) -> Locked:
        """Return a decorator; see :meth:`wheel_lock.LockContext.locked`."""
        terms = terms_of(locals())
        return Locked(
            name,
            lambda filled: self.lock(filled, on_lost=on_lost, **terms),
            lambda filled: self.asyncio.lock(filled, on_lost=on_lost, **terms),
        )

    @property
    def asyncio(self) -> AsyncQuorumContext:
        """This context as asyncio sees it: the same methods, awaitable."""
        return AsyncQuorumContext(self._engine, self)

    def __repr__(self) -> str:
        addresses = ", ".join(engine.connector.describe() for engine in self._engine.engines)
        return f"<QuorumContext {self._engine.quorum} of {addresses};{self._under} {self._state}>"


class AsyncQuorumContext(BaseQuorumContext, TaskContext):
    """A :class:`QuorumContext` as asyncio sees it: ``context.asyncio``."""

    def lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = True,
    ) -> QuorumTaskLock:
        """Return an exclusive lock, not yet acquired; see :meth:`QuorumContext.lock`."""
        options, callback = _options(self._engine.options, locals()), task_callback(on_lost)
        return QuorumTaskLock(self._engine, name, options, callback, cancel_on_lost=cancel_on_lost)

    def reentrant_lock(
        self,
        name: str | bytes,
        timeout: float | None = None,
        *,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        retry_every: float | None = None,
        max_attempts: int | None = None,
        fencing: bool = False,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
    ) -> QuorumTaskReentrantLock:
        """Return a reentrant lock, not yet acquired; see :meth:`QuorumContext.reentrant_lock`."""
        options, callback = _options(self._engine.options, locals()), task_callback(on_lost)
        return QuorumTaskReentrantLock(self._engine, name, options, callback, cancel_on_lost=cancel_on_lost)
