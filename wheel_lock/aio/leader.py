"""The leader for tasks: it campaigns, and calls back, in tasks of its own. The counterpart of sync/leader.py."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Generator, Iterable
from types import TracebackType
from typing import Any, Self

from wheel_lock.aio.call import TaskSide, current_task, run
from wheel_lock.locks.leader import BaseLeader, BaseLeadership, Callback, Candidate
from wheel_lock.runtime.interruptions import insist, uninterrupted_start


class Leadership(BaseLeadership):
    """One term of a :class:`Leader`.

    Attributes:
        ended: Set when it is over, before ``on_demoted`` is called. An ``asyncio.Event`` of the leader's event loop.
    """

    def __init__(self, lock: Candidate) -> None:
        self.ended: asyncio.Event = asyncio.Event()
        super().__init__(lock, self.ended.set)


class Leader(TaskSide, BaseLeader[Leadership]):
    """A candidate for the leadership of a name. Made by ``context.asyncio.leader``; an asynchronous context manager.

    It is :class:`wheel_lock.Leader` for asyncio. Its callbacks may be coroutine functions, and are called on the event
    loop in which it was started; ``on_elected`` runs in a task that is cancelled when the term ends. Its leadership ends
    with that event loop.
    """

    _leadership_class = Leadership
    _awaits = True

    _elected: asyncio.Task[None] | None = None
    _task: asyncio.Task[None] | None = None

    def start(self) -> Self:
        """Begin to campaign in a task of the running event loop, and return the candidate.

        Raises:
            RuntimeError: It was started, or closed, before; or no event loop runs.
        """
        if self._closing or self._task is not None:
            raise RuntimeError(f"{self!r} campaigns once; make another one")
        loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        try:
            self._task = loop.create_task(self._run(), name=f"leader of {self.name!r:.80}")
            return self
        except BaseException:
            insist(Leader._begin_closing, self)
            raise

    @uninterrupted_start
    async def close(self, timeout: float | None = None) -> None:
        """End the campaign, in the event loop in which it was started; see :meth:`wheel_lock.Leader.close`."""
        limit_s = self._begin_closing(timeout)
        task = self._task
        if task is None or task.done() or self._pid != os.getpid():
            return
        if current_task() not in (task, self._elected):
            await asyncio.wait({task}, timeout=limit_s)
            if not task.done():
                self._release_unawaited()
                task.cancel()

    async def __aenter__(self) -> Self:
        return self if self._task is not None and not self._closing else self.start()

    @uninterrupted_start
    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if exc_type is not GeneratorExit:  # a coroutine that is closed in the middle may not await
                await self.close()
        finally:
            insist(BaseLeader._begin_closing, self)

    async def _run(self) -> None:
        await run(self._campaign())

    def _begin_calling(self, what: str, callback: Callback[Leadership], leadership: Leadership) -> None:
        calling = self._called(what, callback, leadership)
        self._elected = asyncio.get_running_loop().create_task(calling, name=f"{what} of {self.name!r:.80}")

    def _wait_for_elected(self) -> Generator[Any, None, None]:
        task = self._elected
        if task is not None and not task.done():
            task.cancel()
            yield from asyncio.wait({task}).__await__()
        self._elected = None

    def _call(self, what: str, callback: Callback[Leadership], leadership: Leadership) -> Iterable[Any]:
        return self._called(what, callback, leadership).__await__()

    def _sleep(self, pause_s: float) -> Iterable[Any]:
        return asyncio.sleep(pause_s).__await__()

    async def _called(self, what: str, callback: Callback[Leadership], leadership: Leadership) -> None:
        try:
            result = callback(leadership)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as error:
            task = current_task()
            if task is None or task.cancelling():
                raise
            self._report(what, error)  # of another task, which the callback has cancelled and awaited
        except Exception as error:
            self._report(what, error)
