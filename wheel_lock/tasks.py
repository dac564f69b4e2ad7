"""A calling task: who it is, and how it waits for the one thread to do its work. What caller.py is for threads.

A result travels from the timer's thread to the event loop through ``call_soon_threadsafe``, many at a time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from wheel_lock.engine.engine import Engine
from wheel_lock.engine.operation import Operation
from wheel_lock.lease import Lease, Owner

logger = logging.getLogger("wheel_lock")

T = TypeVar("T")


class _Mailbox:
    """Completions on their way to one event loop. One wake-up of the loop serves all that come before it runs."""

    __slots__ = ("_arrived", "_called", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._arrived: deque[asyncio.Future[None]] = deque()
        self._called = False

    def put(self, future: asyncio.Future[None]) -> None:
        """Wake who waits for ``future``. From any thread.

        Raises:
            RuntimeError: The loop is closed.
        """
        self._arrived.append(future)
        if not self._called:
            self._called = True
            self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._called = False  # first, so that what arrives from here on is sure to be called for
        arrived = self._arrived
        while arrived:
            future = arrived.popleft()
            if not future.done():
                future.set_result(None)


class _Here(threading.local):
    mailbox: _Mailbox | None = None


_here = _Here()


def _mailbox() -> _Mailbox:
    loop = asyncio.get_running_loop()
    mailbox = _here.mailbox
    if mailbox is None or mailbox.loop is not loop:
        mailbox = _here.mailbox = _Mailbox(loop)
    return mailbox


class Awaiting(Operation[T]):
    """An operation that a task awaits.

    Attributes:
        undeliverable: Called, on the timer's thread, when the result comes and the event loop is closed.
    """

    __slots__ = ("_future", "_mailbox", "undeliverable")

    def __init__(self) -> None:
        # Not through super(): what it would be told is a method here, because a bound one would make a cycle.
        self._value = None
        self.done = False
        self.error = None
        self._mailbox = mailbox = _mailbox()
        self._future: asyncio.Future[None] = mailbox.loop.create_future()
        self.undeliverable: Callable[[], object] | None = None

    def _tell(self) -> None:
        try:
            self._mailbox.put(self._future)
        except RuntimeError:
            logger.info("an event loop was closed before the result of its task arrived")
            if self.undeliverable is not None:
                self.undeliverable()

    def __await__(self) -> Generator[Any, None, T]:
        """Wait, and return the result or raise its exception."""
        yield from self._future
        return self.result()


async def wait_for(engine: Engine, begin: Callable[[Operation[T]], Callable[[], object]]) -> T:
    """Have work done on the timer's thread and wait for its result; see ``wheel_lock.caller.wait_for``."""
    awaiting: Awaiting[T] = Awaiting()
    engine.submit(begin(awaiting))
    return await awaiting


class TaskOwner(Owner):
    """A task as the owner of leases. They end with its event loop, not with the task: locks are handed on in asyncio.

    Args:
        task: The task.
        outlived: The leases outlive the event loop, too.
    """

    __slots__ = ("_guards", "_loop", "_outlived", "_task")

    def __init__(self, task: asyncio.Task[Any], *, outlived: bool = False) -> None:
        self._task = weakref.ref(task)
        self._loop = task.get_loop()
        self._outlived = outlived
        self._guards: dict[Lease, Guard] = {}

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether its event loop is closed."""
        return not self._outlived and self._loop.is_closed()

    @property
    def gone(self) -> bool:
        """Whether the task has ended, so that it will never ask again."""
        task = self._task()
        return task is None or task.done()

    def lost(self, lease: Lease) -> None:
        guard = self._guards.get(lease)
        if guard is not None:
            try:
                self._loop.call_soon_threadsafe(guard.trip)
            except RuntimeError:
                pass  # the loop is closed, and its tasks with it

    def guard(self, lease: Lease) -> Guard:
        """Return what cancels the current task when ``lease`` is lost, armed."""
        task = asyncio.current_task()
        assert task is not None
        guard = self._guards[lease] = Guard(task)
        return guard

    def unguard(self, lease: Lease) -> Guard | None:
        """Return the guard of ``lease``, disarmed, if it has one."""
        return self._guards.pop(lease, None)


class Guard:
    """Cancels a task when a lease is lost, in the way of asyncio.timeout()."""

    __slots__ = ("_cancelling", "_open", "task", "tripped")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.tripped = False
        self._open = True
        self._cancelling = task.cancelling()

    def trip(self) -> None:
        """The lease is lost. On the event loop."""
        if self._open and not self.tripped:
            self.tripped = True
            self.task.cancel()

    def close(self, exc_type: type[BaseException] | None) -> bool:
        """The block is left; return whether ``exc_type`` is our own cancellation and nobody else's."""
        self._open = False
        return self.tripped and self.task.uncancel() <= self._cancelling and exc_type is asyncio.CancelledError


_owners: weakref.WeakKeyDictionary[asyncio.Task[Any], TaskOwner] = weakref.WeakKeyDictionary()
_outside = Owner()  # whoever looks from outside of any task


def current_owner() -> Owner:
    """Return the owner that stands for the current task, or for all who are no task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        return _outside
    owner = _owners.get(task)
    if owner is None:
        owner = _owners[task] = TaskOwner(task)
    return owner
