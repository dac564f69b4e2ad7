"""The target of faults: contexts on one wheel, and locks that are held together.

Whatever the fault, what Held asserts must be true of the locks that it hits, and what SharedWheel asserts in the end of
all the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis

from tests.faults.support import LATE_S, FineStandstills, now
from tests.support.backend import Losses
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, Lock, LockContext, LossReason, LostEvent
from wheel_lock.runtime.notifier import NOTIFIER

LONG_S = 10.0  # only a bug or a hopelessly busy machine takes longer


class Held:
    """Locks that were acquired at one time, and all losses that were reported."""

    def __init__(
        self,
        standstills: FineStandstills,
        context: LockContext,
        names: Iterable[str | bytes],
        timeout: float,
        *,
        fencing: bool = False,
        **options: Any,
    ) -> None:
        self._standstills = standstills
        self.timeout = timeout
        self.losses = Losses()
        self.locks: dict[str | bytes, Lock] = {}
        if fencing:
            for name in names:
                lock = context.lock(name, timeout, fencing=True, on_lost=self.losses, **options)
                assert lock.acquire(blocking=False)
                self.locks[name] = lock
        else:
            for name, granted in context.acquire_many(names, timeout, on_lost=self.losses, **options).items():
                assert granted is not None
                self.locks[name] = granted
        self.tokens = {name: lock.token for name, lock in self.locks.items()}

    @property
    def lock(self) -> Lock:
        """The only one."""
        (lock,) = self.locks.values()
        return lock

    def held(self) -> list[str | bytes]:
        return [name for name, lock in self.locks.items() if lock.is_held]

    def await_renewal(self) -> None:
        """Return when each has been renewed once more."""
        before = {lock: lock.renewals for lock in self.locks.values()}
        eventually(lambda: all(lock.renewals > count for lock, count in before.items()), LONG_S, "all are renewed")

    def reported(self) -> list[LostEvent]:
        """The losses, once all pending reports have been delivered."""
        assert NOTIFIER.drain(LONG_S)
        return self.losses.events

    def await_loss(self) -> None:
        """Return when all have been reported as lost."""
        eventually(lambda: set(self.locks) <= set(self.losses.names), LONG_S, "the losses are reported")

    def assert_all_held(self) -> None:
        assert self.reported() == []
        assert len(self.held()) == len(self.locks)
        assert [lock.lost for lock in self.locks.values() if lock.lost is not None] == []

    def assert_lost(self, reason: LossReason) -> None:
        """All were lost for this reason, and reported once and by V."""
        gone = set(self.locks)
        reported = self.reported()
        assert sorted(map(repr, self.losses.names)) == sorted(map(repr, gone))
        late_s = LATE_S + 1e-4 * len(gone)  # a busy machine needs its time for very many
        reasons = {event.reason for event in reported if not (reason is LossReason.NOT_CONFIRMED and _too_late(event))}
        assert reasons <= {reason}
        assert [event for event in reported if self._lateness_s(event) > late_s] == []
        assert self.held() == []
        assert {name: self.locks[name].lost for name in gone} == {event.name: event.reason for event in reported}

    def _lateness_s(self, event: LostEvent) -> float:
        """How long after V it was reported, less the time in which the process could not run."""
        late_s = event.at - event.deadline
        return late_s if late_s <= 0.0 else late_s - self._standstills.stood_s(event.deadline, event.at)


def _too_late(event: LostEvent) -> bool:
    """Whether the server has said that the key is gone before a thread that was kept from running could say so."""
    return event.reason is LossReason.KEY_GONE and event.at > event.deadline


class SharedWheel:
    """Contexts that live on one wheel and end with the test, beside one that no fault may touch.

    Args:
        quiet: A server on which a bystander's lock is held throughout.
    """

    def __init__(self, quiet: RedisServer) -> None:
        self._to_close = ExitStack()
        self.standstills = self._to_close.enter_context(FineStandstills())
        self._timer = HashedWheelTimer()
        self._to_close.callback(self._timer.stop)
        self._held: list[Held] = []  # kept until the contexts are closed: a lock that is collected is abandoned
        self._bystander = self.hold(self.context(quiet), ["bystander"], timeout=3.0, renew_every=0.2)
        self._began_at = now()

    def context(self, where: RedisServer | TcpProxy | redis.Redis, **options: Any) -> LockContext:
        """A context on the common wheel."""
        client = where if isinstance(where, redis.Redis) else redis.Redis(host="127.0.0.1", port=where.port)
        context = LockContext(client, timer=options.pop("timer", self._timer), **options)
        self._to_close.callback(context.close, 0.5)
        return context

    def hold(self, context: LockContext, names: Iterable[str | bytes], timeout: float, **options: Any) -> Held:
        """Acquire these locks."""
        held = Held(self.standstills, context, names, timeout, **options)
        self._held.append(held)
        return held

    def proxy(self, server: RedisServer) -> TcpProxy:
        return self._to_close.enter_context(TcpProxy(server.port))

    def assert_alive(self, context: LockContext) -> None:
        """The wheel turns, and all is well again with this context's server: L1 included."""
        lock = context.lock("alive", timeout=2.0, renew_every=0.05, blocking_timeout=LONG_S)

        def acquired() -> bool:
            try:
                return lock.acquire()
            except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
                return False

        eventually(acquired, LONG_S, "a lock can be acquired again")
        eventually(lambda: lock.renewals, LONG_S, "it is renewed")
        lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self._timer.deaths == 0
                self._bystander.assert_all_held()
                if now() - self._began_at > 0.5:
                    eventually(lambda: self._bystander.lock.renewals, LONG_S, "the bystander is renewed")
                    self._bystander.assert_all_held()
        finally:
            self._to_close.close()
