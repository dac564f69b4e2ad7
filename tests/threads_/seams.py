"""What waits, for the threads of a run: locks, gates, queues, pollers, time. A thread that would wait gives the turn away."""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import wheel_lock.runtime.greenlets
import wheel_lock.runtime.loop
import wheel_lock.runtime.notifier
import wheel_lock.runtime.sole_thread
import wheel_lock.runtime.timer
import wheel_lock.runtime.watchdog
import wheel_lock.sync.call
from tests.threads_.scheduler import Stage
from wheel_lock.runtime import native

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
    """Watches nothing but its waker."""

    meanings: dict[int, int] = {}

    def __init__(self, stage: Stage, waker: Waker) -> None:
        self._stage = stage
        self._waker = waker
        self.watched: dict[int, Any] = {}

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        if timeout_s != 0.0:
            self._stage.wait(lambda: self._waker.woken, math.inf if timeout_s is None else timeout_s)
        self._waker.woken = False
        return []

    def close(self) -> None: ...


class Clock:
    """The time of a run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def now(self) -> float:
        return self._stage.now

    def sleep_s(self, remaining_s: float) -> float | None:
        return remaining_s

    def attach(self, loop: object) -> None: ...


@contextmanager
def seams(stage: Stage) -> Iterator[None]:
    """Have the real code wait by means of ``stage``, in a ``with``."""
    time = SimpleNamespace(monotonic=lambda: stage.now, time=lambda: stage.now)

    def start_new_thread(body: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        stage.actor(lambda: body(*arguments))

    clocked: tuple[ModuleType, ...] = (
        _package.runtime.loop,
        _package.runtime.timer,
        _package.runtime.notifier,
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in clocked:
            patch.setattr(module, "time", time)
        for where in (_package.runtime.sole_thread, _package.runtime.watchdog, _package.sync.call):
            if hasattr(where, "monotonic"):
                patch.setattr(where, "monotonic", time.monotonic)
        patch.setattr(native, "start_new_thread", start_new_thread)
        patch.setattr(native, "sleep", stage.sleep)
        patch.setattr(native, "SimpleQueue", lambda: Calls(stage))
        patch.setattr(_package.runtime.loop, "new_waker", Waker)
        patch.setattr(_package.runtime.loop, "new_poller", lambda waker: Poller(stage, waker))
        for module in (_package.sync.call, _package.runtime.notifier):
            patch.setattr(module, "new_gate", lambda: Gate(stage))
        yield
