"""Where a fault strikes: contexts on one wheel, locks that are held together, and those who look on.

Whatever the fault, what Held and Onlooker assert must be true of the locks that it hits, and what SharedWheel asserts in
the end of all the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import redis

from tests.faults.meddling_proxy import MeddlingProxy
from tests.faults.support import LATE_S, Losses, Pulse, now
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import HashedWheelTimer, Lock, LockContext, LossReason, LostEvent
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.testing import ManualClock

LONG_S = 10.0  # only a bug or a hopelessly busy machine takes longer


class Held:
    """Locks that were acquired at one time, and all that was told about them."""

    def __init__(
        self,
        pulse: Pulse,
        context: LockContext,
        names: Iterable[str | bytes],
        timeout: float,
        *,
        fencing: bool = False,
        **options: Any,
    ) -> None:
        self._pulse = pulse
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

    def __getitem__(self, name: str | bytes) -> Lock:
        return self.locks[name]

    def believed(self) -> list[str | bytes]:
        return [name for name, lock in self.locks.items() if lock.is_held]

    def renewals(self) -> int:
        """The least number of renewals of one of them."""
        return min(lock.renewals for lock in self.locks.values())

    def await_renewal(self, *names: str | bytes, timeout_s: float = LONG_S) -> None:
        """Return when each of these, or of all, has been renewed once more."""
        before = {name: self.locks[name].renewals for name in names or self.locks}
        eventually(
            lambda: all(self.locks[name].renewals > count for name, count in before.items()),
            timeout_s,
            f"{len(before)} locks are renewed",
        )

    def told(self) -> list[LostEvent]:
        """What has been told once everything that was on its way has arrived."""
        assert NOTIFIER.drain(LONG_S)
        return self.losses.events

    def await_loss(self, *names: str | bytes, timeout_s: float = LONG_S) -> None:
        """Return when these, or all, have been told of as lost."""
        wanted = set(names or self.locks)
        eventually(lambda: wanted <= set(self.losses.names), timeout_s, f"{len(wanted)} losses are told")

    def assert_all_held(self) -> None:
        assert self.told() == []
        assert len(self.believed()) == len(self.locks)
        assert [lock.lost for lock in self.locks.values() if lock.lost is not None] == []

    def assert_lost(self, reason: LossReason, *names: str | bytes, late_s: float | None = None) -> None:
        """These, or all, were lost for this reason and told of once and by V; the others are held as before.

        How late it may be is given where the clock is moved by hand.
        """
        gone = set(names or self.locks)
        told = self.told()
        assert sorted(map(repr, self.losses.names)) == sorted(map(repr, gone))
        if late_s is None:
            late_s = LATE_S + 1e-4 * len(gone)  # a busy machine needs its time for very many
        reasons = {event.reason for event in told if not (reason is LossReason.NOT_CONFIRMED and _too_late(event))}
        assert reasons <= {reason}
        assert [event for event in told if self._lateness_s(event) > late_s] == []
        assert set(self.believed()) == set(self.locks) - gone
        assert {name: self.locks[name].lost for name in gone} == {event.name: event.reason for event in told}

    def _lateness_s(self, event: LostEvent) -> float:
        """How long after V it was told, but for the time in which nobody could run."""
        late_s = event.at - event.deadline
        return late_s if late_s <= 0.0 else late_s - self._pulse.stood_s(event.deadline, event.at)


def _too_late(event: LostEvent) -> bool:
    """Whether the server has said that the key is gone before a thread that was kept from running could say so."""
    return event.reason is LossReason.KEY_GONE and event.at > event.deadline


class Onlooker:
    """Compares, while it is open, what holders believe with what the server says: rules S1 and S2, and the end at V.

    Args:
        held: Whose beliefs.
        view: A way to the server that the fault does not hit. It may be silent for a while.
    """

    def __init__(self, held: Held, view: redis.Redis) -> None:
        self._held = held
        self._view = view
        self._violations: list[str] = []
        self._believed_until: dict[str | bytes, float] = {}
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, args=(look,)) for look in (self._believe, self._compare)]
        self.comparisons = 0
        self.longest_remaining_s = 0.0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if kind is None:
            assert self._violations == []
            assert self.comparisons > 0
            deadlines = {event.name: event.deadline for event in self._held.told()}
            late = {name: V - self._believed_until.get(name, V) for name, V in deadlines.items()}
            assert {name: slack for name, slack in late.items() if slack < 0} == {}

    def _repeat(self, look: Any) -> None:
        while not self._over.is_set():
            for name, lock in self._held.locks.items():
                look(name, lock)
            time.sleep(0.002)

    def _believe(self, name: str | bytes, lock: Lock) -> None:
        asked_at = now()  # before the look: what was believed then was believed at this moment
        if lock.is_held:
            self._believed_until[name] = asked_at
            self.longest_remaining_s = max(self.longest_remaining_s, lock.remaining())

    def _compare(self, name: str | bytes, lock: Lock) -> None:
        try:
            value = self._view.get(name)
            held = lock.is_held  # after the server's answer: what it denied before must not be believed now
            before = self._view.pttl(name)
            looked_at = now()
            remaining_ms = lock.remaining() * 1000
            after = self._view.pttl(name)
            took_ms = (now() - looked_at) * 1000  # by so much less than at the look the server may say
        except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
            return
        self.comparisons += 1
        if held and value != self._held.tokens[name]:
            self._violations.append(f"{name!r} is believed to be held, and the server says {value!r}")
        if remaining_ms > max(before, after + took_ms, 0):
            self._violations.append(f"{name!r} is believed for {remaining_ms} ms more, by the server {before}, {after}")


class SharedWheel:
    """Contexts that live on one wheel and end with the test, beside one that no fault may touch.

    Args:
        quiet: A server on which a bystander's lock is held throughout.
    """

    def __init__(self, quiet: RedisServer) -> None:
        self._to_close = ExitStack()
        self.pulse = self._to_close.enter_context(Pulse())
        self._timer = HashedWheelTimer()
        self._to_close.callback(self._timer.stop)
        self._held: list[Held] = []  # kept until the contexts are closed: a lock that is collected is abandoned
        self._bystander = self.hold(self.context(quiet), ["bystander"], timeout=3.0, renew_every=0.2)
        self._began_at = now()

    def context(self, where: RedisServer | MeddlingProxy | redis.Redis, **options: Any) -> LockContext:
        """A context on the common wheel."""
        client = where if isinstance(where, redis.Redis) else redis.Redis(host="127.0.0.1", port=where.port)
        context = LockContext(client, timer=options.pop("timer", self._timer), **options)
        self._to_close.callback(context.close, 0.5)
        return context

    def stepped_context(self, where: RedisServer | MeddlingProxy, **options: Any) -> tuple[LockContext, ManualClock]:
        """A context on a wheel of its own, whose clock is moved by hand."""
        clock = ManualClock()
        timer = HashedWheelTimer(clock=clock)
        context = self.context(where, timer=timer, **options)
        self._to_close.callback(timer.stop)  # before the context is closed, which would wait for the clock to move
        return context, clock

    def hold(self, context: LockContext, names: Iterable[str | bytes], timeout: float, **options: Any) -> Held:
        """Acquire these locks."""
        held = Held(self.pulse, context, names, timeout, **options)
        self._held.append(held)
        return held

    def proxy(self, server: RedisServer) -> MeddlingProxy:
        return self._to_close.enter_context(MeddlingProxy(server.port))

    def assert_alive(self, context: LockContext) -> None:
        """The wheel turns, and all is well again with this context's server: L1 included."""
        lock = context.lock("alive", timeout=2.0, renew_every=0.05, blocking_timeout=LONG_S)
        eventually(lambda: _acquired(lock), LONG_S, "a lock can be acquired again")
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


def _acquired(lock: Lock) -> bool:
    try:
        return lock.acquire()
    except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
        return False


STRANGER = b"somebody else"


def take_over(view: redis.Redis, name: str, lock: Lock) -> None:
    """Acquire the name for somebody else as soon as the server lets us, and for ever."""
    eventually(lambda: view.set(name, STRANGER, nx=True), LONG_S, f"{name} can be acquired by somebody else")
    assert not lock.is_held


def assert_stranger_untouched(view: redis.Redis, name: str) -> None:
    """What somebody else has is theirs still, and its time-to-live has not been touched."""
    assert view.get(name) == STRANGER
    assert view.pttl(name) == -1
