"""The ``async with`` blocks that tasks are in: which lease each was entered with, and who is cancelled if it is lost.

Of tasks there are only weak references here: a lock or a lease must not keep a task that nobody else wants any more.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from wheel_lock.aio.call import TaskOwner, current_task
from wheel_lock.lease import EXTENDING, Lease


class CancelOnLoss:
    """Cancels the current task when a lease is lost, in the way of asyncio.timeout().

    Attributes:
        lease: The lease.
        tripped: Whether it has cancelled the task.
    """

    __slots__ = ("_cancelling", "_open", "_owner", "_task", "lease", "tripped")

    def __init__(self, lease: Lease, owner: TaskOwner) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.lease = lease
        self.tripped = False
        self._owner = owner
        self._task = weakref.ref(task)
        self._open = True
        self._cancelling = task.cancelling()
        owner.guard(lease, self._alarm)

    def _alarm(self) -> None:
        task = self._task()
        if task is not None:
            try:
                task.get_loop().call_soon_threadsafe(self._trip)
            except RuntimeError:
                pass  # the loop is closed, and its tasks with it

    def _trip(self) -> None:
        task = self._task()
        if self._open and not self.tripped and task is not None:
            self.tripped = True
            task.cancel()

    def close(self, exc_type: type[BaseException] | None) -> bool:
        """The block is left; return whether ``exc_type`` is our own cancellation and nobody else's."""
        self._open = False
        self._owner.unguard(self.lease)
        task = self._task()
        if not self.tripped or task is None:
            return False
        ours = task.uncancel() <= self._cancelling and task is current_task()
        return ours and exc_type is asyncio.CancelledError


class EnteredBlock:
    """A block that a task is in.

    Attributes:
        lease: What was acquired for it.
        guard: What cancels the task when that is lost, or None.
    """

    __slots__ = ("_task", "guard", "lease")

    def __init__(self, lease: Lease, guard: CancelOnLoss | None) -> None:
        task = asyncio.current_task()
        self._task = None if task is None else weakref.ref(task)
        self.lease = lease
        self.guard = guard

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task, or None where it is gone."""
        return None if self._task is None else self._task()

    @property
    def over(self) -> bool:
        """Whether it was never left, and nothing is left of its lease either."""
        return self.task is None and self.lease.state > EXTENDING


def enter(blocks: list[EnteredBlock], lease: Lease, guard: CancelOnLoss | None) -> None:
    """Note that the current task has entered a block, among those of the same lock."""
    for over in [block for block in blocks if block.over]:
        blocks.remove(over)
    blocks.append(EnteredBlock(lease, guard))


def left(blocks: list[EnteredBlock], *, thrown_away: bool, by_hand: bool) -> EnteredBlock | None:
    """Return the block that is left: the current task's innermost, else one that another task has entered.

    Args:
        blocks: Those of one lock.
        thrown_away: A coroutine is closed in the middle, perhaps by the garbage collector, wherever that runs.
        by_hand: The current task has acquired the lock without a block, and lets go of it by an exit stack, say.

    Returns:
        None where it is none of them.
    """
    task = current_task()
    own = [block for block in blocks if block.task is task]
    if thrown_away:
        own = [block for block in blocks if block.task is None] or own
    elif not own and by_hand:
        return None
    candidates = own or blocks
    if not candidates:
        return None
    return candidates[-1]
