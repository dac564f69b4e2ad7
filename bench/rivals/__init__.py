"""What locks can be kept with besides wheel_lock: one class or small program for each, started as workers.

To add one in Python: a module here with a subclass of ``Implementation``, and a line in ``_MODULES``. To add one in another
language: a program that speaks the workers' protocol (``bench/rivals/worker.py`` has its modes), and a line in ``peers()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

from bench.rivals import go, jvm, node
from bench.rivals.implementation import MODES, Implementation
from bench.workers import python

_MODULES = {
    "wheel_lock": "bench.rivals.wheel:WheelLock",
    "redis-py-pipeline": "bench.rivals.redis_py_loop:PipelineLoop",
    "redis-py-lock": "bench.rivals.redis_py_lock:RedisPyLock",
    "redis-py-bare": "bench.rivals.redis_py_lock:BareMinimum",
    "wheel_lock-fair": "bench.rivals.wheel:FairWheelLock",
    "redis-py-loop": "bench.rivals.redis_py_each:ReacquireLoop",
    "redis-py-threads": "bench.rivals.redis_py_each:ThreadEach",
    "python-redis-lock": "bench.rivals.python_redis_lock:PythonRedisLock",
    "pottery": "bench.rivals.pottery_redlock:Pottery",
}


def _load(where: str) -> type[Implementation]:
    module, _, name = where.partition(":")
    implementation: type[Implementation] = getattr(import_module(module), name)
    return implementation


IMPLEMENTATIONS: dict[str, Callable[[], type[Implementation]]] = {
    name: partial(_load, where) for name, where in _MODULES.items()
}
"""Returns the class of an implementation in Python, by name; imported only then."""


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Rival:
    """What a scenario can start.

    Attributes:
        name: What tables and plots call it.
        command: Returns the program and its first arguments, before MODE.
        most_held: The number of locks above which it is not tried.
        cluster: True if it can be used on a cluster.
        missing: Returns what the machine lacks, such as "no JDK", or None.
        build: Makes the program.
        warm_s: How long it works before its rate is measured.
        modes: The modes of a worker in which it is compared.
        options: What a worker that holds locks is given besides their number and timeout.
    """

    name: str
    command: Callable[[], Sequence[str]]
    most_held: int = 1_000_000
    cluster: bool = False
    missing: Callable[[], str | None] = field(default=_nothing)
    build: Callable[[], None] = field(default=_nothing)
    warm_s: float = 1.0
    modes: tuple[str, ...] = MODES
    options: Mapping[str, Any] = field(default_factory=dict)


def in_python() -> list[Rival]:
    """Return all implementations in Python, wheel_lock first."""
    rivals = []
    for key, load in IMPLEMENTATIONS.items():
        try:
            kind = load()
        except ImportError as error:  # not installed, or made for another version of what it needs
            rivals.append(Rival(key, tuple, missing=partial(str, error)))
            continue
        command = partial(python, "bench.rivals.worker", key)
        rivals.append(Rival(kind.name, command, most_held=kind.most_held, cluster=kind.cluster, modes=kind.modes))
    return rivals


def timers() -> list[Rival]:
    """Return what else can hold timers in Python, our wheel first."""
    names = {
        "wheel_lock": "wheel",
        "asyncio, call_later": "asyncio",
        "heapq": "heapq",
        "SortedList": "sortedlist",
        "threading.Timer": "threading",
    }
    return [
        Rival(name, partial(python, "bench.wheel.worker", program), modes=("wheel",)) for name, program in names.items()
    ]


def peers() -> list[Rival]:
    """Return the implementations in other languages."""
    java = partial(Rival, missing=jvm.missing, build=jvm.build, warm_s=10.0)
    in_go = partial(Rival, missing=go.missing, build=go.build)
    return [
        java("Redisson (Java)", partial(jvm.command, "redisson"), most_held=300_000),
        java("Netty, HashedWheelTimer (Java)", partial(jvm.command, "netty-wheel"), modes=("wheel",)),
        in_go("rueidislock (Go)", partial(go.command, "rueidislock"), most_held=300_000),
        in_go("redsync (Go)", partial(go.command, "redsync"), most_held=100_000),
        in_go("bsm/redislock (Go)", partial(go.command, "bsm"), most_held=100_000),
        Rival(
            "node-redlock (Node)",
            partial(node.command, "node-redlock"),
            most_held=100_000,
            missing=node.missing,
            build=node.build,
        ),
    ]
