"""What these tests share: all kinds of locks by name, and what is left of them at the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.backend import Backend, Clock
from wheel_lock import LockContext
from wheel_lock.asyncio import AsyncContext

NAME = "order:42"
NEVER_S = 600.0
"""A fallback that no test lasts for."""


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


def make(face: LockContext | AsyncContext, kind: str, name: str = NAME, **terms: Any) -> Any:
    """A lock of any kind; a "fenced" one of those that have fences."""
    _, fenced, plain = kind.rpartition("fenced ")
    return KINDS[plain](face, name, {"fencing": True, **terms} if fenced else terms)


def deaf(backend: Backend, **options: Any) -> tuple[LockContext, Clock]:
    """A context whose waiters never poll, because its clock stands still: they must be woken."""
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
