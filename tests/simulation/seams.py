"""What the real code is given in place of the system: time, chance, threads and locks. All replacements are here."""

from __future__ import annotations

import builtins
import logging
import threading
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, MutableSet
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import wheel_lock.aio.call
import wheel_lock.aio.lock
import wheel_lock.engine.loss_events
import wheel_lock.engine.renewal.flow
import wheel_lock.engine.renewal.retries
import wheel_lock.engine.requests.adopt
import wheel_lock.engine.requests.bulk
import wheel_lock.engine.requests.bulk_operations
import wheel_lock.engine.topology.cluster
import wheel_lock.engine.waiting.registry
import wheel_lock.locks.base
import wheel_lock.locks.handoff
import wheel_lock.net.cluster
import wheel_lock.net.pubsub
import wheel_lock.net.sentinel
import wheel_lock.protocol.keys
import wheel_lock.quorum.engine
import wheel_lock.redis_lock.lock
import wheel_lock.runtime.loop
import wheel_lock.runtime.timer
import wheel_lock.runtime.tokens
import wheel_lock.runtime.watchdog
import wheel_lock.sync.call
import wheel_lock.sync.leader
import wheel_lock.sync.lock
from tests.simulation import dialogues, direct, keepers, topologies
from tests.simulation.network import Poller
from tests.simulation.parents import Waker
from tests.simulation.processes import Answers, Gate, Master, Thread, current_thread
from wheel_lock.net.connector import RedisPyConnector
from wheel_lock.runtime import backoff, tokens
from wheel_lock.runtime.notifier import Notifier

if TYPE_CHECKING:
    from tests.simulation.world import World

_T = TypeVar("_T")

_EPOCH_S = 1_700_000_000.0
_package = wheel_lock


class OrderedSet(MutableSet[_T]):
    """A set in the order of additions: that of a ``set`` depends on addresses, and on the seed of hashes."""

    def __init__(self, items: Iterable[_T] = ()) -> None:
        self._items: dict[_T, None] = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[_T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: _T) -> None:
        self._items[value] = None

    def discard(self, value: _T) -> None:
        self._items.pop(value, None)

    def update(self, items: Iterable[_T]) -> None:
        self._items.update(dict.fromkeys(items))

    def difference(self, others: Container[_T]) -> list[_T]:
        return [item for item in self._items if item not in others]


class _Time:
    """Stands for the module ``time``. Each process has a wall clock of its own, which may be set."""

    def __init__(self, world: World) -> None:
        self._scheduler = world.scheduler
        self._world = world

    def monotonic(self) -> float:
        return self._scheduler.now

    def time(self) -> float:
        return _EPOCH_S + self._scheduler.now + self._world.process.wall_ahead_s[-1][1]


class _Failures(logging.Handler):
    """Every failure of the library's own code breaks a rule."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.over:
            return
        error = record.exc_info[1] if record.exc_info else None
        self._world.rules.broken("internal failure", f"{record.getMessage()} {error!r}", error)


_WITH_SETS: tuple[ModuleType, ...] = (
    _package.net.pubsub,
    _package.engine.requests.bulk,
    _package.engine.requests.bulk_operations,
    _package.engine.renewal.flow,
    _package.engine.renewal.retries,
    _package.engine.waiting.registry,
    _package.engine.topology.cluster,
    _package.quorum.engine,
    _package.aio.call,
)
_WITH_SLOTS: tuple[ModuleType, ...] = (_package.protocol.keys, _package.net.cluster, _package.engine.topology.cluster)


def replacements(world: World) -> list[tuple[Any, str, Any]]:
    """Return objects, names of their attributes, and what stands for those during a simulation."""
    time, secrets = _Time(world), world.tape.secrets

    def draw() -> list[bytes]:
        data = secrets.randbytes(16 * 8)
        return [data[start : start + 16] for start in range(0, len(data), 16)]

    def post(notifier: Notifier, call: Callable[..., object], *arguments: object) -> None:
        world.process.notify(notifier.run, call, *arguments)

    def post_each(notifier: Notifier, tasks: Any) -> None:
        for task in tasks:
            post(notifier, task.task, task)

    threads = SimpleNamespace(
        Thread=partial(Thread, world), Event=threading.Event, current_thread=partial(current_thread, world)
    )
    modules: list[ModuleType] = [
        _package.runtime.loop,
        _package.runtime.timer,
        _package.runtime.watchdog,
        _package.engine.loss_events,
        _package.engine.requests.adopt,
        _package.locks.base,
        _package.locks.handoff,
        _package.aio.call,
        _package.net.cluster,
        _package.net.sentinel,
    ]
    return [
        *((module, "time", time) for module in modules),
        *((module, "set", OrderedSet) for module in _WITH_SETS),
        (_package.runtime.loop, "new_waker", Waker),
        (_package.runtime.loop, "new_poller", lambda waker: Poller()),
        (Notifier, "post", post),
        (Notifier, "post_each", post_each),
        (Notifier, "ensure_started", lambda notifier: None),
        (
            backoff.JITTER,
            "uniform",
            lambda low, high: low + (high - low) * world.tape.stream("jitter").draw().up_to(1.0),
        ),
        (tokens, "_draw", draw),
        (tokens, "_drawn", []),
        (tokens, "time_ns", lambda: 0),
        (_package.quorum.engine, "NodeEngine", Master),
        (_package.sync.call, "monotonic", time.monotonic),
        *((module, "SLOTS", topologies.SLOTS) for module in _WITH_SLOTS),
        *((RedisPyConnector, name, method) for name, method in dialogues.replacements(world).items()),
        (_package.net.sentinel, "start_helper_thread", lambda body: world.process.launch(body)),
        (_package.net.sentinel, "SimpleQueue", lambda: Answers(world)),
        (_package.sync.call, "new_gate", lambda: Gate(world)),
        (_package.sync.call, "_here", None),
        (_package.aio.call, "_here", None),
        # An owner with a hold refers to its engine, and here that refers to all tasks: no world would ever be collected.
        (_package.aio.call, "_owners", WeakKeyDictionary()),
        (_package.aio.call, "_themselves", WeakKeyDictionary()),
        (_package.sync.lock, "threading", SimpleNamespace(get_ident=lambda: world.caller.number)),  # type: ignore[union-attr]
        (_package.aio.lock, "id", world.number_of),
        (_package.engine.renewal.retries, "id", world.number_of),
        (_package.redis_lock.lock, "id", world.number_of),
        (_package.redis_lock.lock, "LockContext", SimpleNamespace(shared=lambda client: client.context)),
        (_package.sync.leader, "threading", threads),
        (_package.sync.leader, "time", SimpleNamespace(sleep=lambda seconds: world.process.sleep(seconds))),
        *direct.replacements(world),
        *keepers.replacements(),
        *world.settings.constants,
        (_package.block, "_LEAST", world.settings.least_block),
    ]


_MISSING = object()


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Have the real code live in ``world``, in a ``with``."""
    before = []
    logger, failures = logging.getLogger("wheel_lock"), _Failures(world)
    level, propagates = logger.level, logger.propagate
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    logger.addHandler(failures)
    try:
        for owner, name, value in replacements(world):
            assert hasattr(owner, name) or hasattr(builtins, name), f"{owner} has no {name}: to set it does nothing"
            before.append((owner, name, vars(owner).get(name, _MISSING)))
            setattr(owner, name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        for owner, name, value in reversed(before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        logger.removeHandler(failures)
        logger.setLevel(level)
        logger.propagate = propagates
