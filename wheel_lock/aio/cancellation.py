"""The ``async with`` blocks that tasks have entered: the lease of each, and the cancellation of its task on a loss.

Tasks are referenced weakly: a lock or a lease must not keep a task that has no other reference.
"""

from __future__ import annotations

import asyncio
import weakref
from inspect import CO_ASYNC_GENERATOR
from types import FrameType
from typing import Any

from wheel_lock.aio.call import TaskOwner, current_task
from wheel_lock.lease import EXTENDING, Lease


class EnteredBlock:
    """A block that a task has entered. If it is guarded, a loss cancels the task in the way of asyncio.timeout().

    Attributes:
        lease: The lease of the block.
    """

    __slots__ = ("_cancelling", "_code", "_frame_id", "_guarded", "_task", "_tripped", "lease")

    def __init__(self, lease: Lease, frame: FrameType | None) -> None:
        task = asyncio.current_task()
        self._task = None if task is None else weakref.ref(task)
        self._frame_id = id(frame)  # for as long as that frame lives no other has this id
        self._code = None if frame is None else frame.f_code
        self._guarded: TaskOwner | None = None  # the owner with the alarm
        self._cancelling = 0
        self._tripped = False
        self.lease: Lease = lease

    def guard(self, owner: TaskOwner) -> None:
        """Have the task cancelled if the lease, which is that of ``owner``, is lost before :meth:`end`."""
        task = self.task
        assert task is not None
        self._guarded, self._cancelling = owner, task.cancelling()
        owner.alarms[self.lease] = self._alarm

    def _alarm(self) -> None:
        task = self.task
        if task is not None:
            try:
                task.get_loop().call_soon_threadsafe(self._trip)
            except RuntimeError:
                pass  # the loop is closed, and its tasks with it

    def _trip(self) -> None:
        task = self.task
        if self._guarded is not None and not self._tripped and task is not None:
            self._tripped = True
            task.cancel()

    def end(self, exc_type: type[BaseException] | None) -> bool:
        """End the guard, if there is one; return True if ``exc_type`` is its own cancellation and no other."""
        if self._guarded is not None:
            self._guarded.alarms.pop(self.lease, None)
            self._guarded = None
        task = self.task
        if not self._tripped or task is None:
            return False
        ours = task.uncancel() <= self._cancelling and task is current_task()
        return ours and exc_type is asyncio.CancelledError

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task, or None if it has been collected."""
        return None if self._task is None else self._task()

    @property
    def forsaken(self) -> bool:
        """True if the task has ended within the block: another one has to leave it."""
        task = self.task
        return task is None or task.done()

    def entered_by(self, frame: FrameType | None) -> bool:
        """Return whether ``frame`` has entered it. One with its id that has ended, as of an exit stack, has other code."""
        return frame is not None and self._frame_id == id(frame) and self._code is frame.f_code

    @property
    def over(self) -> bool:
        """True if the task was collected within the block, and the lease released. (A loss is raised at its end.)"""
        return self.task is None and self.lease.state > EXTENDING and self.lease.loss is None


def left(blocks: list[EnteredBlock], frame: FrameType | None, *, discarded: bool, by_hand: bool) -> EnteredBlock | None:
    """Return the block that is left: the current task's innermost, else one that another task has entered; or None.

    Another task may go on with a generator, or close it; its block is known by its frame. The task of an exit stack that
    another one closes may have ended.

    Args:
        blocks: The blocks of one lock.
        frame: The frame that leaves the block.
        discarded: True if a coroutine is closed in the middle, perhaps by the garbage collector in any task.
        by_hand: True if the current task has acquired the lock without a block; it may be left by an exit stack.
    """
    task = current_task()
    here = [block for block in blocks if block.entered_by(frame)]
    own = [block for block in blocks if block.task is task]
    forsaken = [block for block in blocks if block.forsaken]
    if discarded:
        own = here or forsaken or own
    elif frame is not None and frame.f_code.co_flags & CO_ASYNC_GENERATOR:
        own = here or own  # the task may be in a block of its own, too
    if not (discarded or own) and by_hand:
        return None
    candidates = own or here or forsaken or blocks
    return candidates[-1] if candidates else None
