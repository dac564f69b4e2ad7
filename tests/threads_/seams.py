"""What waits: locks, gates, queues, pollers, time. A thread of a run that would wait gives the turn away."""

from __future__ import annotations

import math
import queue
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import wheel_lock.runtime.loop
import wheel_lock.runtime.notifier
import wheel_lock.runtime.sole_thread
import wheel_lock.runtime.watchdog
import wheel_lock.sync.call
from tests.threads_.scheduler import Actor, Stage
from wheel_lock.runtime import native
from wheel_lock.runtime.notifier import NOTIFIER, Notifier
from wheel_lock.runtime.timer import HashedWheelTimer

_package = wheel_lock


class Lock:
    """A reentrant lock."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True) -> bool:
        me = self._stage.current
        self._stage.wait(lambda: self.owner in (None, me))
        self.owner, self._count = me, self._count + 1
        return True

    def release(self) -> None:
        assert self.owner is self._stage.current
        self._count -= 1
        if not self._count:
            self.owner = None


class Gate:
    """A gate, closed at first."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._open = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        opened = self._stage.wait(lambda: self._open, math.inf if timeout < 0 else timeout)
        self._open = False
        return opened

    def release(self) -> None:
        self._open = True


class Calls:
    """A SimpleQueue."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._items: deque[Any] = deque()
        self.put = self._items.append

    def empty(self) -> bool:
        return not self._items

    def get(self, timeout: float) -> Any:
        if not self._stage.wait(lambda: bool(self._items), timeout):
            raise queue.Empty
        return self._items.popleft()


class Waker:
    """Ends the poll of its poller, also the next one."""

    def __init__(self) -> None:
        self.woken = False

    def wake(self) -> None:
        self.woken = True

    def close(self) -> None: ...


class Poller:
    """Watches sockets that say themselves whether they are ``readable``."""

    def __init__(self, stage: Stage, waker: Waker) -> None:
        self._stage = stage
        self._waker = waker
        self.meanings = {1: 1}
        self._socks: dict[int, Any] = {}
        self.watched: dict[int, Any] = {}

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        if timeout_s != 0.0:
            self._stage.wait(
                lambda: self._waker.woken or bool(self._ready()), math.inf if timeout_s is None else timeout_s
            )
        self._waker.woken = False
        return [(sock.fileno(), 1) for sock in self._ready()]

    def _ready(self) -> list[Any]:
        return [sock for sock in self._socks.values() if sock.readable]

    def watch(self, sock: Any, events: int, watch: Any) -> None:
        self._socks[sock.fileno()] = sock
        self.watched[sock.fileno()] = watch

    def unwatch(self, sock: Any) -> None:
        self._socks.pop(sock.fileno(), None)
        self.watched.pop(sock.fileno(), None)

    def close(self) -> None: ...


def timer_on(stage: Stage) -> HashedWheelTimer:
    """Return a timer that is turned by a thread of the run, and seems to have a thread of its own."""
    timer = HashedWheelTimer(clock=Clock(stage), slots=8)
    timer._sole[None] = Thread(stage, timer.turn)
    stage.at_end.append(partial(_end, timer))
    return timer


def _end(timer: HashedWheelTimer) -> None:
    timer.stopped = True
    timer._sole.end()


class Thread:
    """A thread that joins the run when it is started."""

    def __init__(self, stage: Stage, body: Callable[[], object]) -> None:
        self._stage = stage
        self._body = body
        self._actor: Actor | None = None

    @property
    def ident(self) -> int | None:
        return None if self._actor is None else self._actor.ident

    def start(self) -> None:
        self._actor = self._stage.actor(self._body)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done

    def join(self, timeout: float | None = None) -> None:
        self._stage.wait(lambda: not self.is_alive(), math.inf if timeout is None else timeout)


class Clock:
    """The time of a run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def now(self) -> float:
        return self._stage.now

    def sleep_s(self, remaining_s: float) -> float | None:
        return remaining_s

    def attach(self, loop: object) -> None: ...


_NOTIFYING = [
    module
    for name, module in list(sys.modules.items())
    if name.startswith("wheel_lock.") and getattr(module, "NOTIFIER", None) is NOTIFIER
]


@contextmanager
def seams(stage: Stage) -> Iterator[None]:
    """Have the real code wait by means of ``stage``, in a ``with``. Threads that earlier tests left go on as before."""
    runtime, call = _package.runtime, _package.sync.call

    def here(inside: Callable[..., Any], outside: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (inside if stage.is_here() else outside)(*args, **kwargs)

    now = partial(getattr, stage, "now")
    times = SimpleNamespace(monotonic=here(now, time.monotonic), time=here(now, time.time))

    def start(body: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        stage.actor(lambda: body(*arguments))

    with pytest.MonkeyPatch.context() as patch:

        def put(name: str, value: object, *modules: ModuleType) -> None:
            for module in modules:
                patch.setattr(module, name, value)

        def put_call(name: str, inside: Callable[..., Any], *modules: ModuleType) -> None:
            for module in modules:
                patch.setattr(module, name, here(inside, getattr(module, name)))

        put("time", times, runtime.loop, runtime.timer, runtime.notifier, runtime.watchdog)
        put_call("monotonic", now, runtime.sole_thread, call)
        put_call("sleep", stage.sleep, native)
        put_call("start_new_thread", start, native)
        put_call("SimpleQueue", lambda: Calls(stage), native)
        put_call("new_thread", lambda body, name: Thread(stage, body), runtime.loop, runtime.notifier)
        put_call("new_waker", Waker, runtime.loop)
        put_call("new_poller", lambda waker: Poller(stage, waker), runtime.loop)
        put_call("new_gate", lambda: Gate(stage), runtime.notifier, call)
        notifier = Notifier()
        for name in ("post", "post_each", "ensure_started", "drain"):
            setattr(notifier, name, here(getattr(notifier, name), getattr(NOTIFIER, name)))
        put("NOTIFIER", notifier, *_NOTIFYING)
        put("_REPORTS", notifier, runtime.watchdog)
        yield
