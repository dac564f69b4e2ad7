"""The calling task: its owner, and its wait for the timer's thread. The counterpart of sync/call.py.

Results travel from the timer's thread to the event loop by ``call_soon_threadsafe``: one call for all that a turn of the
timer's thread completes, and for all that arrive before the event loop runs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.errors import LockUnavailable
from wheel_lock.lease import NO_OWNER, Lease, Owner
from wheel_lock.locks.callers import CallerFuture, Side
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.runtime.notifier import NOTIFIER
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.timer_threads import check_may_wait
from wheel_lock.runtime.watchdog import LOOK_S, Watchdog

logger: logging.Logger = logging.getLogger("wheel_lock")

T = TypeVar("T")

_CHECK_EVERY_S = 1.0  # waiting tasks check at this interval that the timer's thread is alive


class Untaken(Owner):
    """The owner of leases that outlive the event loop, until a task has them: a loop may be closed behind their grant.

    Args:
        loop: The event loop.
        heir: Their owner from then on.
    """

    __slots__ = ("_heir", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, heir: Owner) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)
        self._heir = heir

    @property
    def ended(self) -> bool:
        loop = self._loop()
        return loop is None or loop.is_closed()

    @property
    def heir(self) -> Owner:
        return self._heir

    def is_same(self, other: Owner) -> bool:
        return False


class LoopBridge:
    """The completed futures of one event loop.

    Attributes:
        announced: True if :meth:`deliver` is to be called, once for all futures of a turn.
        arrived: The completed futures. Whatever appends one has ``deliver`` called afterwards.
        expected: The futures whose tasks wait.
        untaken: The owner of leases that any task may use, until a task has them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self.untaken: Owner = Untaken(loop, NO_OWNER)
        self.in_daemon: bool = threading.current_thread().daemon
        self.expected: set[AsyncFuture[Any]] = set()
        self.arrived: deque[AsyncFuture[Any]] = deque()
        self.announced: bool = False  # deliver() is to be called
        self._called = False
        self._check: asyncio.TimerHandle | None = None
        self._watchdogs: dict[HashedWheelTimer, Watchdog] = {}

    def deliver(self) -> None:
        """Have the event loop resume the tasks of all futures that have arrived. From any thread.

        If it is closed, each of them is reported and given up instead.
        """
        self.announced = False
        if not self.arrived:
            return  # an earlier call has served them
        try:
            if not self._called:
                self._called = True
                self.loop.call_soon_threadsafe(self._complete)
                return
        except RuntimeError:
            pass
        except BaseException:
            self._called = False  # the thread is killed here: the next one calls again
            raise
        if self.loop.is_closed():  # an earlier call will never run, either
            arrived = self.arrived
            try:
                while True:
                    arrived.popleft().undeliverable()
            except IndexError:
                pass  # the thread of another timer may take some of them

    @uninterrupted_start
    def _complete(self) -> None:
        self._called = False  # first, so that futures which arrive from here on cause another call
        try:
            arrived = self.arrived
            while arrived:
                arrived[0].resume()
                arrived.popleft()
        except BaseException:
            self.loop.call_soon(self._complete)  # an interruption must not leave a task waiting
            raise

    def check_later(self, after_s: float = _CHECK_EVERY_S) -> None:
        """Schedule a check of the expected futures: the timer's thread may end, or stand still, without completing them."""
        self._check = self.loop.call_later(after_s, self._check_expected)

    @uninterrupted_start
    def _check_expected(self) -> None:
        self._check = None
        self.announced = False  # the timer's thread may have been killed before it called deliver()
        in_doubt = False
        try:
            expected = tuple(self.expected)
            timers = {future.engine.timer for future in expected}
            self._watchdogs = watchdogs = {timer: self._watchdogs.get(timer) or Watchdog(timer) for timer in timers}
            now = time.monotonic()
            in_doubt = True in {watchdog.look(now) for watchdog in watchdogs.values()}  # all of them look
            for future in expected:
                future.check(watchdogs[future.engine.timer])
        finally:
            if self.expected:
                self.check_later(LOOK_S if in_doubt else _CHECK_EVERY_S)


class _Here(threading.local):
    # Weak, so that a closed loop and its tasks can be collected; None stands for no bridge yet.
    bridge: Callable[[], LoopBridge | None] = staticmethod(lambda: None)


_here = _Here()


def loop_bridge() -> LoopBridge:
    """Return the bridge of the running event loop."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        _refuse_trio()
        raise
    bridge = _here.bridge()
    if bridge is None or bridge.loop is not loop:
        check_may_wait()
        bridge = LoopBridge(loop)
        _here.bridge = weakref.ref(bridge)
    return bridge


def _refuse_trio() -> None:
    """Raise RuntimeError if the caller is a task of trio, which the event loop of asyncio cannot resume."""
    sniffio = sys.modules.get("sniffio")  # trio imports it
    try:
        library = None if sniffio is None else sniffio.current_async_library()
    except RuntimeError:  # its AsyncLibraryNotFoundError: no library runs here
        return
    if library == "trio":
        raise RuntimeError(
            "context.asyncio is for tasks of asyncio, and this is a task of trio: use a lock for threads in a worker "
            "thread, as in await trio.to_thread.run_sync(work), where work() has the block with context.lock(name)"
        ) from None


class AsyncFuture(CallerFuture[T]):
    """A future that a task awaits.

    Attributes:
        engine: The engine that completes it.
    """

    __slots__ = ("_bridge", "_deaths", "_future", "_give_up", "engine")

    may_be_abandoned = True

    def __init__(self, engine: Engine) -> None:
        # Not through super(): its ``notify`` would be a bound method of this object, which makes a cycle.
        self.done = False
        self.error: Exception | None = None
        self.until: float | None = None
        self.engine: Engine = engine
        self._deaths = engine.deaths
        self._bridge = bridge = loop_bridge()
        self._future: asyncio.Future[None] = bridge.loop.create_future()
        self._give_up: Callable[[], object] | None = None

    def if_undeliverable(self, give_up: Callable[[], object]) -> None:
        self._give_up = give_up

    def _tell(self) -> None:
        if self.error is not None and self.engine.exiting and self._bridge.in_daemon:
            return  # its loop's thread, a daemon, could only print it
        bridge = self._bridge
        bridge.arrived.append(self)
        if not bridge.announced:  # read behind the append: deliver() unsets it before it looks what has arrived
            bridge.announced = True  # first: outside of a turn it is called at once
            self.engine.timer.complete(bridge.deliver)

    @property
    def abandoned(self) -> bool:
        return self._bridge.loop.is_closed()

    def resume(self) -> None:
        """Resume the task. On the event loop; may be called twice."""
        if not self._future.done():
            self._future.set_result(None)

    def undeliverable(self) -> None:
        """Report the result, and have its engine give it up, because the event loop is closed. From any thread."""
        NOTIFIER.post(logger.info, "an event loop was closed before the result of its task arrived")
        give_up = self._give_up  # read once: the task may be forgetting it
        if give_up is not None:
            self.engine.post_if_open(give_up)

    def wait(self) -> Generator[Any, None, None]:
        bridge = self._bridge
        bridge.expected.add(self)
        if bridge._check is None:
            bridge.check_later()
        try:
            yield from self._future
        except BaseException:
            self.engine.interrupted = True
            raise
        finally:
            bridge.expected.discard(self)
        self._give_up = None  # it refers to what has completed this future: a cycle

    def pause(self) -> Generator[Any, None, None]:
        yield  # as asyncio.sleep(0) does

    def check(self, watchdog: Watchdog) -> None:
        """Resume the task if the result is set but was not delivered; fail it if no result is to be expected in its time.

        On the event loop.
        """
        if self.done:
            self.resume()
        elif not self._future.done() and (failure := self.failure(self.engine, self._deaths, watchdog)) is not None:
            self._future.set_exception(LockUnavailable(failure))


class TaskSide(Side):
    """A lock object or a context for tasks."""

    __slots__ = ()

    _future_class = AsyncFuture


@uninterrupted_start
@coroutine
def run(steps: Generator[Any, None, T]) -> Generator[Any, None, T]:
    """Carry out an operation (see locks/operations.py) in the calling task; return an awaitable of its result."""
    return (yield from steps)


class TaskOwner(Owner):
    """A task as the owner of leases. They end with its event loop, not with the task: tasks pass locks on to others.

    Args:
        task: The task.
        outlived: True if the leases outlive the event loop, too.

    Attributes:
        alarms: Called on the timer's thread if the lease in the key is lost; quick, and without exceptions.
        in_blocks: The leases of blocks that have not ended.
    """

    __slots__ = ("_loop", "_outlived", "_task", "alarms", "in_blocks")

    def __init__(self, task: asyncio.Task[Any], *, outlived: bool = False) -> None:
        # Weak, because a held lease keeps its owner, and must not keep a task that has no other reference.
        self._task = weakref.ref(task)
        self._loop = weakref.ref(task.get_loop())
        self._outlived = outlived
        self.holds: dict[Any, Any] | None = None
        self.alarms: dict[Lease, Callable[[], object]] = {}
        self.in_blocks: dict[Lease, None] = {}

    @property
    def ended(self) -> bool:
        if self._outlived:
            return False
        loop = self._loop()
        return loop is None or loop.is_closed()

    @property
    def gone(self) -> bool:
        task = self._task()
        return task is None or task.done()

    def is_same(self, other: Owner) -> bool:
        if not isinstance(other, TaskOwner) or self._outlived or other._outlived:
            return False
        return self._task is other._task  # an object has one plain weak reference

    def releases_alone(self, lease: Lease) -> bool:
        return lease in self.in_blocks  # any other lease may have been passed on to another task

    def lost(self, lease: Lease) -> None:
        alarm = self.alarms.get(lease)
        if alarm is not None:
            alarm()


class TaskItself(TaskOwner):
    """A task as the owner of leases that only it may release: they end with the task."""

    __slots__ = ()

    @property
    def ended(self) -> bool:
        return self.gone or super().ended

    def releases_alone(self, lease: Lease) -> bool:
        return True


_themselves: weakref.WeakKeyDictionary[asyncio.Task[Any], TaskOwner] = weakref.WeakKeyDictionary()
_owners: weakref.WeakKeyDictionary[asyncio.Task[Any], TaskOwner] = weakref.WeakKeyDictionary()
_outside = Owner()  # all callers outside of tasks


def current_task() -> asyncio.Task[Any] | None:
    """Return the current task, or None outside of tasks."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def current_owner() -> Owner:
    """Return the owner that stands for the current task, or for all callers outside of tasks."""
    return _owner_among(_owners, TaskOwner)


def current_task_itself() -> Owner:
    """Return the owner that stands for the current task and ends with it, or for all callers outside of tasks."""
    return _owner_among(_themselves, TaskItself)


def _owner_among(owners: weakref.WeakKeyDictionary[asyncio.Task[Any], TaskOwner], new: type[TaskOwner]) -> Owner:
    task = current_task()
    if task is None:
        return _outside
    owner = owners.get(task)
    if owner is None:
        owner = owners[task] = new(task)
    return owner
