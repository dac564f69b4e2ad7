"""What these tests share: a server of either kind with an onlooker, threads that report back, Ctrl-C on demand."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeVar

import pytest
import redis

from tests.support.proxy import TcpProxy
from tests.support.steady_clock import SteadyClock
from tests.support.waiting import eventually
from wheel_lock import (
    HashedWheelTimer,
    Lock,
    LockContext,
    LockTimeout,
    LockUnavailable,
    LostEvent,
    QuorumContext,
    WheelLockError,
)
from wheel_lock.net.clients import AnyClient
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.testing import ManualClock, settle

T = TypeVar("T")

BOTH = pytest.mark.servers("real", "embedded")
"""For what users ask the embedded server to do; elsewhere tests run on the real one only."""

LONG_S = 10.0
"""A bound that only a bug or a hopelessly busy machine exceeds."""

REFUSED_S = 0.8
"""A limit on a wait for a held lock: the server's answers arrive within it although a process stands still for a while."""


class Clock(ManualClock):
    """A manual clock that waits longer for replies."""

    _silent = False

    def _settle(self) -> None:
        # A server may stand still for a while, and time must not pass meanwhile; but one that is silent is waited for once.
        for loop in self._loops:
            for _ in range(1 if self._silent else 8):
                settle(loop)
                if not loop.busy:
                    break
            self._silent = loop.busy


class Backend:
    """A server, real or embedded. `view` sees what is on it without the library."""

    def __init__(self, name: str, port: int, password: str | None = None) -> None:
        self.name = name
        self.port = port
        self.password = password
        self.view = self.client(protocol=2, socket_timeout=5.0)
        self._cleanup = ExitStack()
        self._cleanup.callback(self.view.close)

    @property
    def is_real(self) -> bool:
        return self.name == "real"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(**{"host": "127.0.0.1", "port": self.port, "password": self.password, **options})

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}/0"

    def context(self, **options: Any) -> LockContext:
        """A context of its own, closed with the test."""
        return self.context_of(self.client(), **options)

    def stepped_context(self, **options: Any) -> tuple[LockContext, Clock]:
        """A context that lives by a clock moved by hand. Keys on the server still expire in real time."""
        clock = Clock()
        return self.context(timer=self.timer(clock), **options), clock

    def timer(self, clock: Clock | SteadyClock | None = None) -> HashedWheelTimer:
        """A timer of its own, stopped with the test."""
        timer = HashedWheelTimer(clock=clock)
        self._cleanup.callback(timer.stop)
        return timer

    def proxy(self) -> TcpProxy:
        """A network that can fail, in front of this server."""
        proxy = TcpProxy(self.port).start()
        self._cleanup.callback(proxy.close)
        return proxy

    def context_through(self, proxy: TcpProxy, **options: Any) -> LockContext:
        return self.context_of(self.client(port=proxy.port), **options)

    def context_of(self, client: AnyClient, **options: Any) -> LockContext:
        context = LockContext(client, **options)
        self._cleanup.callback(context.close)
        return context

    def close(self) -> None:
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return self.name


class Losses:
    """An `on_lost` callback that records its events, and on which thread it is called."""

    def __init__(self) -> None:
        self.events: list[LostEvent] = []
        self.threads: list[str] = []

    def __call__(self, event: LostEvent) -> None:
        self.threads.append(threading.current_thread().name)
        self.events.append(event)

    @property
    def names(self) -> list[str | bytes]:
        return [event.name for event in self.events]

    def delivered(self) -> list[LostEvent]:
        """Its events, once all pending ones have been delivered."""
        assert NOTIFIER.drain(LONG_S)
        events = list(self.events)
        # A loss that came in between is logged, and warned of, on another thread than the one on which the callback runs.
        assert NOTIFIER.drain(LONG_S)
        return events


def refused(acquire: Callable[..., object]) -> bool:
    """Whether an acquire waits without a grant until its time is up, `REFUSED_S` after its begin.

    Where the server is kept from running at that very moment the last attempt is unanswered, so it is asked again.
    """

    def answered() -> list[object]:
        try:
            return [acquire(blocking_timeout=REFUSED_S)]
        except redis.TimeoutError:  # LockTimeout is one
            return []

    (granted,) = eventually(answered, LONG_S)
    return not granted


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the collector from running finalizers, in which Python swallows an interruption."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C as soon as the block has begun and `when` is true; the block is expected to end by it.

    The signal is handled by the main thread, wherever that is at the moment.
    """
    assert threading.current_thread() is threading.main_thread()
    main = threading.get_ident()
    begun, ended = threading.Event(), threading.Event()

    def interrupt() -> None:
        begun.wait()
        eventually(lambda: ended.is_set() or when(), LONG_S)
        if not ended.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    interrupter = threading.Thread(target=interrupt, daemon=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupter.start()
        with without_collection():
            begun.set()
            yield
    except KeyboardInterrupt:
        pass
    else:
        pytest.fail("the block came to its end although it was interrupted")
    finally:
        begun.set()
        ended.set()
        interrupter.join()
        signal.signal(signal.SIGINT, before)


def connected(context: LockContext) -> LockContext:
    """Return the context when it has a connection: its time limit may be shorter than what that takes."""

    def answers() -> bool:
        try:
            context.lock("warm-up").locked()
        except (LockTimeout, LockUnavailable):
            return False
        return True

    eventually(answers)
    return context


def token_of(lock: Lock) -> bytes:
    token = lock.token
    assert token is not None
    return token


def acquirable(context: LockContext | QuorumContext, name: str = "again", **terms: Any) -> bool:
    """Whether a lock is granted, and confirmed, in whatever time there is for that."""
    try:
        with context.lock(name, **terms):
            return True
    except WheelLockError:
        return False


def none_left(backend: Backend, context: LockContext) -> bool:
    """Whether nothing is held, or about to be, here or on the server."""
    return context.stats().held == 0 and backend.view.dbsize() == 0 and context._engine.leases.acquiring == 0


def of(locks: Mapping[Any, T | None]) -> list[T]:
    """The locks of a bulk acquire of which none was refused."""
    found = [lock for lock in locks.values() if lock is not None]
    assert len(found) == len(locks)
    return found
