"""Locks that are lost on demand, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio

from tests.support.backend import Backend, Clock
from wheel_lock import LockContext
from wheel_lock.asyncio import Lock

TIMEOUT_S = 30.0


class LockLoser:
    """Locks that are lost on demand, on a clock that is moved by hand."""

    def __init__(self, real: Backend) -> None:
        self.real = real
        self.context: LockContext
        self.clock: Clock
        self.context, self.clock = real.stepped_context()

    def lock(self, name: str = "order:42", *, thread_local: bool = True) -> Lock:
        return self.context.asyncio.lock(name, TIMEOUT_S, cancel_on_lost=True, thread_local=thread_local)

    def delete(self, *names: str) -> None:
        """Delete their keys, and have them renewed, so that this is noticed. The event loop has not run meanwhile."""
        self.real.view.delete(*names or ["order:42"])
        self.clock.advance(TIMEOUT_S / 2)


def cancelling() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def undisturbed() -> None:
    """Nothing that is still on its way cancels this task."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert cancelling() == 0
