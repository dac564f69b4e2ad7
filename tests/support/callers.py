"""Callers of either API, driven alike: a thread or a task that lives on between calls and owns what it acquires.

A test of both APIs is written once, as plain calls on the objects that `Caller.locks` makes. What a test calls on such an
object runs in the caller's thread or task, and is awaited there where it can be.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tests.support.backend import LONG_S
from tests.support.waiting import eventually
from wheel_lock import LockContext

Order = tuple[Callable[[], Any], "Future[Any]"]
APIS = ["threads", "tasks"]


class Caller:
    """One thread, or one task. Everything but `locks` may be called from any thread.

    Attributes:
        context: Whose locks it uses.
        locks: The context, or its asyncio side; what makes locks for this caller.
    """

    def __init__(self, context: LockContext, makes: Any) -> None:
        self.context = context
        self.locks: Any = Driven(self, makes)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Have something called, and awaited if it can be, by this caller; return at once."""
        raise NotImplementedError

    def do(self, call: Callable[[], Any]) -> Any:
        """Have it called; return what it returns, or raise what it raises."""
        return self.submit(call).result(3 * LONG_S)

    def begin(self, call: Callable[[], Any]) -> Future[Any]:
        """Have it called; return when the caller waits for a lock, or the call has ended."""
        before = self.context.stats().waiting
        future = self.submit(call)
        eventually(lambda: self.context.stats().waiting > before or future.done(), LONG_S, "the caller waits")
        return future

    def cancel(self) -> None:
        """Cancel what it waits for, if it is a task."""
        raise NotImplementedError

    def sees(self, lock: Driven) -> Any:
        """A lock that another caller uses, as this one sees it."""
        return Driven(self, lock._target)

    def end(self) -> None:
        """End the thread or task when it has returned from what it does now, whatever it holds."""
        raise NotImplementedError


class ThreadCaller(Caller):
    def __init__(self, context: LockContext) -> None:
        super().__init__(context, context)
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            call, future = order
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del order, call, future  # it keeps nothing alive between two calls

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._orders.put((call, future))
        return future

    def end(self) -> None:
        self._orders.put(None)


class TaskCaller(Caller):
    """A task of an event loop that runs on a thread of its own."""

    def __init__(self, context: LockContext, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(context, context.asyncio)
        self._loop = loop
        self._orders: asyncio.Queue[Order | None] = asyncio.Queue()
        asyncio.run_coroutine_threadsafe(self._run(), loop)

    async def _run(self) -> None:
        self._task = task = asyncio.current_task()
        assert task is not None
        while (order := await self._orders.get()) is not None:
            call, future = order
            try:
                value = call()
                future.set_result(await value if inspect.isawaitable(value) else value)
            except asyncio.CancelledError as error:
                task.uncancel()
                future.set_exception(error)
            except BaseException as error:
                future.set_exception(error)
            del order, call, future

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._orders.put_nowait, (call, future))
        return future

    def cancel(self) -> None:
        assert self._task is not None
        self._loop.call_soon_threadsafe(self._task.cancel)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._orders.put_nowait, None)


class Method:
    """A method of a driven object. Call it, or `begin` it, which returns when its caller waits for a lock."""

    def __init__(self, caller: Caller, method: Callable[..., Any]) -> None:
        self._caller = caller
        self._method = method

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return _driven(self._caller, self._caller.do(lambda: self._method(*arguments, **options)))

    def begin(self, *arguments: Any, **options: Any) -> Future[Any]:
        return self._caller.begin(lambda: self._method(*arguments, **options))


class Driven:
    """An object of the library as one caller sees it: each attribute is read, and each method runs, in that caller."""

    def __init__(self, caller: Caller, target: Any) -> None:
        self._caller = caller
        self._target = target

    def __getattr__(self, name: str) -> Any:
        value = self._caller.do(lambda: getattr(self._target, name))
        return Method(self._caller, value) if callable(value) else _driven(self._caller, value)

    @property
    def enters(self) -> Method:
        return self._special("enter")

    def __enter__(self) -> Driven:
        self.enters()
        return self

    @property
    def leaves(self) -> Method:
        return self._special("exit")

    def __exit__(self, *exception: object) -> None:
        self.leaves(*exception)

    def _special(self, verb: str) -> Method:
        names = [f"__a{verb}__", f"__{verb}__"]
        return Method(self._caller, getattr(self._target, next(name for name in names if hasattr(self._target, name))))

    def __repr__(self) -> str:
        return repr(self._target)


def _driven(caller: Caller, value: Any) -> Any:
    """A lock, or a pair of locks, as the caller sees it; anything else as it is."""
    if isinstance(value, dict):
        return {key: _driven(caller, each) for key, each in value.items()}
    is_lock = type(value).__module__.startswith("wheel_lock") and (hasattr(value, "release") or hasattr(value, "read"))
    return Driven(caller, value) if is_lock else value


NewCaller = Callable[[LockContext], Caller]


@contextmanager
def callers(api: str) -> Iterator[NewCaller]:
    """What makes callers of one API. With the block they end, or, where they wait for a lock, with their contexts."""
    made: list[Caller] = []
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        running = threading.Thread(target=loop.run_forever, daemon=True)
        if api == "tasks":
            running.start()

        def new(context: LockContext) -> Caller:
            made.append(ThreadCaller(context) if api == "threads" else TaskCaller(context, loop))
            return made[-1]

        try:
            yield new
        finally:
            for caller in made:
                caller.end()
            if running.is_alive():
                loop.call_soon_threadsafe(loop.stop)
                running.join(LONG_S)
