"""A calling task: who it is, and how it waits for the one thread to do its work. What sync/call.py is for threads.

A result travels from the timer's thread to the event loop through ``call_soon_threadsafe``, many at a time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from types import coroutine
from typing import Any, TypeVar

from wheel_lock.engine.interfaces import LockEngine
from wheel_lock.errors import LockUnavailable
from wheel_lock.lease import Lease, Owner
from wheel_lock.locks.callers import CallerOperation, Side
from wheel_lock.runtime.interruptions import uninterrupted_start
from wheel_lock.runtime.notifier import NOTIFIER

logger = logging.getLogger("wheel_lock")

T = TypeVar("T")

_LOOK_AROUND_S = 1.0  # so often waiting tasks make sure that the thread they wait for is still there


class LoopBridge:
    """Completions on their way to one event loop. One wake-up of the loop serves all that come before it runs."""

    __slots__ = ("__weakref__", "_arrived", "_called", "_look", "expected", "in_daemon", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.in_daemon = threading.current_thread().daemon
        self.expected: set[AsyncFuture[Any]] = set()
        self._arrived: deque[asyncio.Future[None]] = deque()
        self._called = False
        self._look: asyncio.TimerHandle | None = None

    def put(self, future: asyncio.Future[None]) -> None:
        """Wake who waits for ``future``. From any thread.

        Raises:
            RuntimeError: The loop is closed.
        """
        self._arrived.append(future)
        if not self._called:
            self._called = True
            self.loop.call_soon_threadsafe(self._hand_out)
        elif self.loop.is_closed():  # and what was called for before will never be handed out
            raise RuntimeError("Event loop is closed")

    @uninterrupted_start
    def _hand_out(self) -> None:
        self._called = False  # first, so that what arrives from here on is sure to be called for
        try:
            arrived = self._arrived
            while arrived:
                if not arrived[0].done():
                    arrived[0].set_result(None)
                arrived.popleft()
        except BaseException:
            self.loop.call_soon(self._hand_out)  # an interruption must not leave a task waiting
            raise

    def look_later(self) -> None:
        """Look after those who wait: a result might never come."""
        if self._look is None:
            self._look = self.loop.call_later(_LOOK_AROUND_S, self._look_around)

    @uninterrupted_start
    def _look_around(self) -> None:
        self._look = None
        try:
            expected = tuple(self.expected)
            for awaiting in expected:
                awaiting.give_up_if_alone()
            for timer in {awaiting.engine.timer for awaiting in expected}:
                timer.wake()  # costs next to nothing, and an interrupted caller may have noted a wake that never came
        finally:
            if self.expected:
                self.look_later()


class _Here(threading.local):
    mailbox: weakref.ref[LoopBridge] | None = None  # weak, so that a closed loop and its tasks can go


_here = _Here()


def _mailbox() -> LoopBridge:
    loop = asyncio.get_running_loop()
    known = _here.mailbox
    mailbox = None if known is None else known()
    if mailbox is None or mailbox.loop is not loop:
        mailbox = LoopBridge(loop)
        _here.mailbox = weakref.ref(mailbox)
    return mailbox


class AsyncFuture(CallerOperation[T]):
    """An operation that a task awaits.

    Args:
        engine: Whose operation.

    Attributes:
        engine: As above.
    """

    __slots__ = ("_deaths", "_future", "_give_up", "_mailbox", "engine")

    def __init__(self, engine: LockEngine) -> None:
        # Not through super(): what it would be told is a method here, because a bound one would make a cycle.
        self._value = None
        self.done = False
        self.error = None
        self.engine = engine
        self._deaths = engine.deaths
        self._mailbox = mailbox = _mailbox()
        self._future: asyncio.Future[None] = mailbox.loop.create_future()
        self._give_up: Callable[[], object] | None = None

    def if_undeliverable(self, give_up: Callable[[], object]) -> None:
        self._give_up = give_up

    def _tell(self) -> None:
        if self.error is not None and self.engine.exiting and self._mailbox.in_daemon:
            return  # its loop's thread, a daemon, could only print it
        try:
            self._mailbox.put(self._future)
        except RuntimeError:
            NOTIFIER.post(logger.info, "an event loop was closed before the result of its task arrived")
            give_up = self._give_up  # read once: the task may be forgetting it
            if give_up is not None:
                give_up()

    def wait(self) -> Generator[Any, None, None]:
        mailbox = self._mailbox
        mailbox.expected.add(self)
        mailbox.look_later()
        try:
            yield from self._future
        except BaseException:
            self.engine.interrupted = True
            raise
        finally:
            mailbox.expected.discard(self)
        self._give_up = None  # it refers to what has completed this, see there

    def pause(self) -> Generator[Any, None, None]:
        yield  # as asyncio.sleep(0) does

    def give_up_if_alone(self) -> None:
        """Wait no more if the thread that was to complete it is not there any more. On the event loop."""
        ended = self.engine.deaths != self._deaths or self.engine.timer.stopped
        if ended and not self.done and not self._future.done():
            self._future.set_exception(LockUnavailable("The thread that keeps the locks ended before it answered"))


class TaskSide(Side):
    """A lock object or a context for tasks."""

    __slots__ = ()

    def _new_operation(self) -> CallerOperation[Any]:
        return AsyncFuture(self._engine)


@uninterrupted_start
@coroutine
def run(steps: Generator[Any, None, T]) -> Generator[Any, None, T]:
    """Carry out an operation (see locks/operations.py) in the calling task; return its result, to be awaited."""
    return (yield from steps)


class TaskOwner(Owner):
    """A task as the owner of leases. They end with its event loop, not with the task: locks are handed on in asyncio.

    Args:
        task: The task.
        outlived: The leases outlive the event loop, too.
    """

    __slots__ = ("_alarms", "_loop", "_outlived", "_task")

    def __init__(self, task: asyncio.Task[Any], *, outlived: bool = False) -> None:
        # Weak, because a held lease keeps its owner, and must not keep what nobody else wants any more.
        self._task = weakref.ref(task)
        self._loop = weakref.ref(task.get_loop())
        self._outlived = outlived
        self.holds = None
        self._alarms: dict[Lease, Callable[[], object]] = {}

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether its event loop is closed."""
        if self._outlived:
            return False
        loop = self._loop()
        return loop is None or loop.is_closed()

    @property
    def gone(self) -> bool:
        """Whether the task has ended, so that it will never ask again."""
        task = self._task()
        return task is None or task.done()

    def lost(self, lease: Lease) -> None:
        alarm = self._alarms.get(lease)
        if alarm is not None:
            alarm()

    def guard(self, lease: Lease, alarm: Callable[[], object]) -> None:
        """Have ``alarm()`` called, on the timer's thread, when ``lease`` is lost; it must be quick and not raise."""
        self._alarms[lease] = alarm

    def guarded(self, lease: Lease) -> bool:
        """Whether something is called when ``lease`` is lost."""
        return lease in self._alarms

    def unguard(self, lease: Lease) -> None:
        """Have nothing called any more."""
        self._alarms.pop(lease, None)


class TaskItself(TaskOwner):
    """A task as the owner of leases that nobody else may release: they end with the task."""

    __slots__ = ()

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether the task has ended, or its event loop is closed, so that it never will."""
        return self.gone or super().ended


AnyTaskOwner = TypeVar("AnyTaskOwner", bound=TaskOwner)

_themselves: weakref.WeakKeyDictionary[asyncio.Task[Any], TaskItself] = weakref.WeakKeyDictionary()
_owners: weakref.WeakKeyDictionary[asyncio.Task[Any], TaskOwner] = weakref.WeakKeyDictionary()
_outside = Owner()  # whoever looks from outside of any task


def current_task() -> asyncio.Task[Any] | None:
    """Return the current task; None outside of any, and of any event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def current_owner() -> Owner:
    """Return the owner that stands for the current task, or for all who are no task."""
    return _owner_among(_owners, TaskOwner)


def current_task_itself() -> Owner:
    """Return the owner that stands for the current task and ends with it, or for all who are no task."""
    return _owner_among(_themselves, TaskItself)


def _owner_among(owners: weakref.WeakKeyDictionary[asyncio.Task[Any], AnyTaskOwner], new: type[AnyTaskOwner]) -> Owner:
    task = current_task()
    if task is None:
        return _outside
    owner = owners.get(task)
    if owner is None:
        owner = owners[task] = new(task)
    return owner
