"""What these tests share: threads that live on between calls, and all kinds of locks by name."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from tests.redis.support import LONG_S, Backend, Background, Clock
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.asyncio import AsyncContext
from wheel_lock.testing import settle

T = TypeVar("T")

NAME = "order:42"
OTHER = "order:43"
NEVER_S = 600.0
"""A fallback that nobody lives to see."""


class Elsewhere(ThreadPoolExecutor):
    """A thread that does what it is told, one call after the other, and lives on: what it holds it goes on holding."""

    def __init__(self) -> None:
        super().__init__(max_workers=1)

    def __exit__(self, *exception: object) -> None:
        self.shutdown(wait=False)  # what still waits for a lock ends with its context

    def do(self, call: Callable[[], T]) -> T:
        """Call there; return what that returns, or raise what it raises."""
        return self.submit(call).result(LONG_S)

    def begin(self, context: LockContext, call: Callable[[], T]) -> Future[T]:
        """Call there, and return when the call waits for a lock of `context`, or has returned."""
        before = context.stats().waiting
        future = self.submit(call)
        eventually(lambda: context.stats().waiting > before or future.done(), LONG_S, "it waits")
        return future


NewThread = Callable[[], Elsewhere]


def waited_in_vain(context: LockContext, clock: Clock, wait_s: float, call: Callable[[], T]) -> T:
    """Have a call wait for a lock, for so long by the clock of its context; return what it returns, or raise that."""
    before = context.stats().waiting
    waiter = Background(call)
    eventually(lambda: context.stats().waiting > before or waiter.done, LONG_S, "it waits")
    settle(context.timer)
    eventually(lambda: not context.timer.busy, LONG_S, "it has been refused")
    assert not waiter.done
    clock.advance(wait_s)
    return waiter.result()


KINDS: dict[str, Callable[[Any, str, dict[str, Any]], Any]] = {
    "exclusive": lambda face, name, terms: face.lock(name, **terms),
    "reentrant": lambda face, name, terms: face.reentrant_lock(name, **terms),
    "read": lambda face, name, terms: face.rw_lock(name, **terms).read(),
    "write": lambda face, name, terms: face.rw_lock(name, **terms).write(),
    "fair": lambda face, name, terms: face.fair_lock(name, **terms),
    "semaphore": lambda face, name, terms: face.semaphore(name, 1, **terms),
    "multi": lambda face, name, terms: face.multi_lock([f"{name}:a", name, f"{name}:b"], **terms),
}
"""What makes a lock of each kind, for threads or for tasks as the context is."""

EXCLUDING = [
    ("reentrant", "reentrant"),
    ("reentrant", "exclusive"),
    ("write", "write"),
    ("write", "read"),
    ("read", "write"),
    ("fair", "fair"),
    ("semaphore", "semaphore"),
    ("multi", "multi"),
    ("multi", "exclusive"),
    ("exclusive", "multi"),
]
"""Which kind of holder keeps which kind of waiter out."""

WAKING = [pair for pair in EXCLUDING if pair != ("reentrant", "exclusive")]  # which have channels of their own
"""And wakes it."""


def make(face: LockContext | AsyncContext, kind: str, name: str = NAME, **terms: Any) -> Any:
    """A lock of any kind."""
    return KINDS[kind](face, name, terms)


def deaf(backend: Backend, **options: Any) -> tuple[LockContext, Clock]:
    """A context whose waiters never look by themselves, because its clock stands still: they must be woken."""
    return backend.stepped_context(fallback_interval=NEVER_S, **options)


def listening(backend: Backend) -> int:
    """How many connections listen for wake-ups of whatever kind."""
    channels = [channel for channel in backend.view.pubsub_channels() if b"wake" in channel or b"redisson" in channel]
    return sum(count for _, count in backend.view.pubsub_numsub(*channels))


def zmembers(backend: Backend, key: str = NAME) -> list[bytes]:
    """The members of a sorted set, in the order of their scores."""
    found: Any = backend.view.zrange(key, 0, -1)
    return list(found)


def traces(backend: Backend, name: str = NAME) -> list[bytes]:
    """The keys that are there for a lock of any kind: itself and its companions, fences left out."""
    keys: Any = backend.view.keys()
    return sorted(key for key in keys if name.encode() in key and not key.startswith(b"wheel_lock:fence:"))
