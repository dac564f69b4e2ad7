"""The ends of a process that release its locks: that of the interpreter, that of a child of multiprocessing, and a signal.

No other end does: ``os._exit``, SIGKILL and a crash leave the locks to expire.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType

from wheel_lock.engine.engine import ENGINES, Engine
from wheel_lock.engine.future import Exit
from wheel_lock.errors import WheelLockError
from wheel_lock.runtime import child_processes
from wheel_lock.runtime.weak_registry import WeakRegistry
from wheel_lock.sync.call import SyncFuture

_NAMES = ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
ENDING = tuple(signal.Signals[name] for name in _NAMES if name in signal.Signals.__members__)
"""Those signals of this system that others may send, and of which the default action is the end of the process."""

_EXIT_TIMEOUT_S = 0.8  # a process that holds locks ends within a second

BEFORE: list[Callable[[], object]] = []
"""Called before any lock is released."""

_by_signal: dict[int, WeakRegistry[Engine]] = {}  # the engines that a signal ends


@atexit.register
def at_exit() -> None:
    """Release the held locks, within one time limit for all contexts; those that are not released by then expire."""
    _release(ENGINES, Exit.INTERPRETER, _EXIT_TIMEOUT_S)


child_processes.at_end(at_exit)


def _release(engines: Iterable[Engine], end: Exit, limit_s: float | None) -> None:
    """Close ``engines``, each within ``limit_s`` seconds, or its own ``close_timeout``."""
    for call in BEFORE:
        call()
    closing: list[SyncFuture[None]] = []
    engines = list(engines)
    for engine in engines:
        engine.exiting = end
    for engine in engines:
        timer = engine.timer
        if timer.threaded and (engine.held_count or timer.running) and not timer.stopped:
            within_s = engine.options.close_timeout_s if limit_s is None else limit_s
            ended: SyncFuture[None] = SyncFuture(engine)
            ended.limit(engine, within_s)
            timer.post(partial(engine.exit, within_s, ended), engine)
            closing.append(ended)
    for ended in closing:
        try:
            ended.wait()
            ended.result()
        except WheelLockError:
            pass  # no caller is left


def close_on_signals(engine: Engine, numbers: Iterable[int]) -> tuple[signal.Signals, ...]:
    """Have signals end ``engine`` before they end the process; see :meth:`wheel_lock.LockContext.close_on_signals`."""
    wanted = [_checked(number) for number in numbers] or [signal.SIGTERM]
    if threading.current_thread() is not threading.main_thread():
        raise ValueError(
            "close_on_signals: call it in the main thread, because Python sets handlers of signals only there"
        )
    taken = []
    for number in wanted:
        handler = signal.getsignal(number)
        if handler in (signal.SIG_DFL, _end):
            _by_signal.setdefault(number, WeakRegistry()).add(engine)  # first: the signal may come at once
            signal.signal(number, _end)
            taken.append(number)
    return tuple(taken)


def _checked(number: int) -> signal.Signals:
    if number not in ENDING:
        names = ", ".join(each.name for each in ENDING)
        raise ValueError(f"close_on_signals: {number!r} is not one of {names}")
    return signal.Signals(number)


def _end(number: int, frame: FrameType | None) -> None:
    """End the engines of a signal, and then the process, as the signal would have done; meanwhile the main thread waits."""
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    try:
        _release(_by_signal[number], Exit.SIGNAL, None)
    finally:
        signal.raise_signal(number)
        os._exit(128 + number)  # the kernel ignores the default action of a signal for the first process of a container
