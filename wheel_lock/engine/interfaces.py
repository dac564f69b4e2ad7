"""What the parts of an engine, and its users, know of one another: Protocols, so that imports go one way only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from wheel_lock.engine.kind import Kind
from wheel_lock.engine.operation import Operation
from wheel_lock.lease import Group, Lease
from wheel_lock.observe import ContextStats, HeldLock
from wheel_lock.observe.stats import Counters
from wheel_lock.options import ContextOptions, LockOptions
from wheel_lock.protocol.resp import Reply
from wheel_lock.protocol.scripts import Call
from wheel_lock.timer import HashedWheelTimer


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

    @property
    def held(self) -> Collection[Lease]: ...
    @property
    def over(self) -> bool: ...
    @property
    def cluster(self) -> object: ...

    # From any thread

    def submit(self, work: Callable[[], object]) -> None: ...
    def tell(self, work: Callable[[], object]) -> None: ...
    def tell_if_running(self, work: Callable[[], object]) -> None: ...
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
