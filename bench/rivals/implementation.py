"""The one interface of all implementations in Python, behind which the benchmarks meet them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

Lost = Callable[[str, str], object]
"""Called with a lock's name and the reason when its user hears that it is lost."""


MODES = ("hold", "pairs", "handover", "crowd")


class Lock(Protocol):
    """What all lock objects have."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


class AsyncLock(Protocol):
    async def acquire(self) -> Any: ...
    async def release(self) -> Any: ...


class Implementation(ABC):
    """One way to keep locks in Redis, used as its documentation recommends.

    Args:
        url: Of the server.
        timeout_s: The time-to-live of locks in seconds; each is renewed every third of it.
        cluster: True if the server is a node of a cluster. Only those that can be used on one have this argument.

    Attributes:
        name: What tables and plots call it.
        most_held: The number of locks above which it is not tried, because of what each of them costs.
        cluster: True if it can be used on a cluster.
        modes: The modes of a worker in which it is compared.
    """

    name: ClassVar[str]
    modes: ClassVar[tuple[str, ...]] = MODES
    most_held: ClassVar[int] = 1_000_000
    cluster: ClassVar[bool] = False

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self.timeout_s = timeout_s

    @abstractmethod
    def lock(self, name: str) -> Lock:
        """Return a new lock object whose acquire() waits, with whatever renewal comes with it."""

    def hold(self, names: Sequence[str], lost: Lost) -> None:
        """Acquire the names, which are free, in the fastest way there is, and keep them; return when all are held."""
        raise NotImplementedError("no renewal")

    def let_go(self) -> None:
        """Release what :meth:`hold` holds, and stop renewing it."""
        raise NotImplementedError("no renewal")

    def renewed(self) -> int | None:
        """Return the number of renewals so far; None if it is not known."""
        return None

    def renew(self, lock: Any) -> None:
        """Have a lock that is held last for timeout_s from now."""
        raise NotImplementedError("no renewal by hand")

    def is_mine(self, lock: Any) -> bool:
        """Return whether a lock is held, by the check that its documentation recommends."""
        raise NotImplementedError("no check of the owner")

    def async_lock(self, name: str) -> AsyncLock:
        """Return a new lock object for asyncio."""
        raise NotImplementedError("no tasks")

    def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Close connections and end threads."""
