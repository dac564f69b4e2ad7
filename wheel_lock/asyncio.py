"""The face for asyncio: the same locks on the same engine and the same thread; a task waits where a thread would block.

Any number of event loops, in any number of threads, share one context. Nothing here keeps a second account of
anything: a face only waits for completions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from wheel_lock.blocks import Block, Guard, enter, leave
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.handover import Handoff, undo_export
from wheel_lock.engine.operation import Operation
from wheel_lock.errors import LockLost, LockNotAcquired, LocksLost, LossReason, WheelLockError, quoted
from wheel_lock.handle import (
    LockHandle,
    OnLost,
    adopted_options,
    checked_callback,
    handed_over_kind,
    read_count,
    read_text,
)
from wheel_lock.lease import EXTENDING, Lease, Owner
from wheel_lock.locks import EXCLUSIVE, FENCED
from wheel_lock.many import ManyLocks, Name, leases_to_release
from wheel_lock.observe import ContextStats, HeldLock
from wheel_lock.observe.events import LostEvent
from wheel_lock.options import LockTerms, lock_name, lock_options, seconds
from wheel_lock.protocol.resp import Reply
from wheel_lock.tasks import Awaiting, TaskOwner, current_owner, wait_for
from wheel_lock.timer import HashedWheelTimer

logger = logging.getLogger("wheel_lock")


class Lock(LockHandle):
    """One lock, for asyncio. Made by ``context.asyncio.lock``; an asynchronous context manager.

    It means what :class:`wheel_lock.Lock` means, with ``await``. A task that acquires it holds it; tasks that share one
    object contend like strangers, and any task may release what another has acquired. A lease ends with the event loop
    that acquired it, unless ``thread_local=False``.
    """

    __slots__ = ("_blocks", "_cancel_on_lost")

    def __init__(self, *arguments: Any, cancel_on_lost: bool = False) -> None:
        super().__init__(*arguments)
        self._cancel_on_lost = cancel_on_lost
        self._blocks: list[Block] | None = None  # most locks in bulk are never used in one

    def _caller(self) -> Owner:
        return current_owner()

    def _new_owner(self) -> Owner:
        task = asyncio.current_task()
        if self._cancel_on_lost and task is not None and not self._options.thread_local:
            return TaskOwner(task, outlived=True)
        return super()._new_owner()

    def _told(self) -> OnLost | None:
        if self._on_lost is None:
            return None
        return partial(_tell_in_loop, weakref.ref(asyncio.get_running_loop()), self._on_lost)

    def _seen(self) -> Lease | None:
        return self._lease if self._others is None else super()._seen()

    def _at_hand(self) -> Lease | None:
        return self._seen()

    def _chosen(self, verb: str) -> Lease | None:
        return self._seen()  # any task may release what another has acquired

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """Acquire the lock; see :meth:`wheel_lock.Lock.acquire`. A task that is cancelled meanwhile leaves no grant."""
        engine = self._engine
        awaiting: Awaiting[Lease | None] = Awaiting(engine)
        acquisition = self._acquisition(blocking, blocking_timeout, token, awaiting)
        awaiting.undeliverable = acquisition.give_up
        try:
            engine.submit(acquisition.begin)
            lease = await awaiting
            if lease is not None:
                self._take(lease)
            return lease is not None
        except BaseException:
            engine.tell(acquisition.give_up)
            raise

    async def release(self) -> None:
        """Release the lock; see :meth:`wheel_lock.Lock.release`. A cancelled task's release is carried out all the same."""
        await self._release(self._to_change("release"))

    def _release(self, lease: Lease) -> Awaiting[None]:
        awaiting: Awaiting[None] = Awaiting(self._engine)
        self._engine.submit(partial(self._engine.release, lease, awaiting))
        return awaiting

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> bool:
        """Change the time-to-live once; see :meth:`wheel_lock.Lock.extend`."""
        time_ms = max(1, round(seconds("additional_time", additional_time, above=0.0) * 1000))
        lease, engine = self._to_change("extend"), self._engine
        await wait_for(engine, lambda operation: lambda: engine.extend(lease, time_ms, bool(replace_ttl), operation))
        return True

    async def reacquire(self) -> bool:
        """Set the time-to-live back to the timeout, now."""
        return await self.extend(self._options.timeout_s, replace_ttl=True)

    async def export(self) -> str:
        """Let go of the lock for somebody else to adopt; see :meth:`wheel_lock.Lock.export`.

        A task that is cancelled meanwhile has no text to pass on, so the lock is released.
        """
        lease, engine = self._to_change("export"), self._engine
        handoff = self._handoff(lease)
        awaiting: Awaiting[None] = Awaiting(engine)
        undo = partial(undo_export, engine, lease, awaiting)
        awaiting.undeliverable = undo
        try:
            engine.submit(partial(engine.export, lease, awaiting))
            await awaiting
            return handoff.to_text()
        except BaseException:
            engine.tell(undo)
            raise

    async def _adopt(self, handoff: Handoff) -> None:
        engine = self._engine
        awaiting: Awaiting[bool] = Awaiting(engine)
        request = self._adoption(handoff, awaiting)
        awaiting.undeliverable = request.give_up
        try:
            engine.submit(request.begin)
            if not await awaiting:
                raise LockNotAcquired(f"The lock {quoted(self.name)} was adopted too late", self.name)
            self._take_adopted(request.lease)
        except BaseException:
            engine.tell(request.give_up)
            raise

    async def locked(self) -> bool:
        """Ask the server whether anybody holds the lock."""
        return await self._ask(b"EXISTS", lambda reply: read_count(reply) > 0)

    async def owned(self) -> bool:
        """Ask the server whether this lock's own token is stored there."""
        lease = self._seen()
        if lease is None or not lease.group.alive:
            return False
        return await self._ask(b"GET", lambda reply: read_text(reply) == lease.token)

    async def _ask(self, verb: bytes, read: Callable[[Reply], bool]) -> bool:
        engine, call = self._engine, self._question(verb)

        def begin(operation: Operation[Any]) -> Callable[[], object]:
            return lambda: engine.query(self.name, call, read, operation)

        return bool(await wait_for(engine, begin))

    async def __aenter__(self) -> Self:
        if not (self._enters_adopted() or await self.acquire()):
            raise LockNotAcquired(f"The lock {quoted(self.name)} could not be acquired in time", self.name)
        lease = self._lease
        assert lease is not None
        guard = None
        if self._cancel_on_lost and isinstance(lease.owner, TaskOwner):
            guard = Guard(lease, lease.owner)
            if lease.state > EXTENDING:  # lost between the grant and this line
                guard.close(None)
                raise LockLost(self.name, self._loss(lease) or LossReason.NOT_CONFIRMED)
        if self._blocks is None:
            self._blocks = []
        enter(self._blocks, lease, guard)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        thrown_away = exc_type is GeneratorExit
        mine = self._mine() if self._options.thread_local else None
        block = leave(self._blocks or [], thrown_away=thrown_away, by_hand=mine is not None and self._believed(mine))
        if block is not None and block.guard is not None and block.guard.close(exc_type):
            raise LockLost(self.name, self._loss(block.lease) or LossReason.NOT_CONFIRMED) from exc_value
        lease = self._lease if block is None else block.lease
        if thrown_away:
            # A coroutine that is thrown away in the middle may not await any more.
            if lease is not None:
                self._engine.tell(partial(self._engine.release, lease, Operation(_nobody)))
            return
        try:
            # Not whatever the object holds by now: another task may have acquired the lock through it since.
            await self._release(self._usable(mine or lease, "release"))
        except WheelLockError as error:
            if exc_value is None:
                raise
            exc_value.add_note(f"and the lock could not be released: {error}")  # the first error is the one to see


def _checked_callback(on_lost: OnLost | None) -> OnLost | None:
    if inspect.iscoroutinefunction(on_lost):
        raise ValueError(f"on_lost must be a plain function, not {on_lost!r}: nobody would await what it returns")
    return checked_callback(on_lost)


def _nobody() -> None:
    """Who is told of a result that nobody waits for."""


def _tell_in_loop(loop: weakref.ref[asyncio.AbstractEventLoop], on_lost: OnLost, event: LostEvent) -> None:
    """On the notifier thread: have a callback called where its author expects it, on the event loop."""
    try:
        running = loop()
        if running is None:
            raise RuntimeError
        running.call_soon_threadsafe(on_lost, event)
    except RuntimeError:
        logger.warning("the event loop that was to be told of the loss of %s is closed", quoted(event.name))


class AsyncContext:
    """A :class:`wheel_lock.LockContext` as asyncio sees it: ``context.asyncio``. Same names, same engine, same locks."""

    def __init__(self, engine: Engine, context: object = None) -> None:
        self._engine = engine
        self._context = context  # which hangs up when nobody has it any more

    def lock(
        self,
        name: str | bytes,
        timeout: float = 30.0,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        **terms: Unpack[LockTerms],
    ) -> Lock:
        """Return an exclusive lock, not yet acquired; see :meth:`wheel_lock.LockContext.lock`.

        Args:
            name: Its name.
            timeout: Its time-to-live in seconds.
            on_lost: Called once with a :class:`~wheel_lock.LostEvent`, on the event loop, if it is lost.
            cancel_on_lost: Whether the task inside ``async with`` is cancelled if it is lost; ``LockLost`` is then
                raised where the block ends.
            terms: As for threads; with ``thread_local`` (the default) a lease ends with its event loop.

        Raises:
            ValueError: A value is out of range; before any I/O.
        """
        lock_name(name)
        options = lock_options(timeout, **terms)
        kind = FENCED if options.fencing else EXCLUSIVE
        return Lock(self._engine, kind, name, options, _checked_callback(on_lost), cancel_on_lost=cancel_on_lost)

    async def acquire_many(
        self,
        names: Iterable[Name],
        timeout: float = 30.0,
        *,
        all_or_nothing: bool = False,
        renew: bool = True,
        renew_every: float | None = None,
        max_renewals: int | None = None,
        max_hold: float | None = None,
        on_lost: OnLost | None = None,
        thread_local: bool = False,
    ) -> dict[Name, Lock | None]:
        """Try once to acquire each of ``names``; see :meth:`wheel_lock.LockContext.acquire_many`."""
        options = lock_options(
            timeout,
            blocking=False,
            renew=renew,
            renew_every=renew_every,
            max_renewals=max_renewals,
            max_hold=max_hold,
            thread_local=thread_local,
        )
        callback = _checked_callback(on_lost)

        def new_lock(name: Name) -> Lock:
            return Lock(self._engine, EXCLUSIVE, name, options, callback)

        awaiting: Awaiting[None] = Awaiting(self._engine)
        many = ManyLocks(self._engine, names, options, new_lock, all_or_nothing, awaiting)
        awaiting.undeliverable = many.give_up
        try:
            for _ in many.hand_over():
                await asyncio.sleep(0)  # other tasks want their turn, too
            await awaiting
        except BaseException:
            many.give_up()
            raise
        return many.outcome()

    async def release_many(self, locks: Iterable[Lock | None]) -> None:
        """Release ``locks``; see :meth:`wheel_lock.LockContext.release_many`."""
        leases, lost = leases_to_release(locks)
        if leases:
            engine = self._engine

            def begin(operation: Operation[dict[str | bytes, LossReason]]) -> Callable[[], object]:
                return lambda: engine.release_many(leases, operation)

            losses = await wait_for(engine, begin)
            lost.update(losses)
        if lost:
            raise LocksLost(lost)

    async def adopt(
        self,
        text: str,
        *,
        on_lost: OnLost | None = None,
        cancel_on_lost: bool = False,
        thread_local: bool = True,
    ) -> Lock:
        """Take over a lock that somebody has exported; see :meth:`wheel_lock.LockContext.adopt`."""
        handoff = Handoff.from_text(text)
        kind, options = handed_over_kind(handoff), adopted_options(handoff, thread_local)
        callback = _checked_callback(on_lost)
        lock = Lock(self._engine, kind, handoff.name, options, callback, cancel_on_lost=cancel_on_lost)
        await lock._adopt(handoff)
        return lock

    def stats(self) -> ContextStats:
        """Return a frozen snapshot of the counters. O(1) in the number of locks."""
        return self._engine.stats()

    def held(self) -> list[HeldLock]:
        """Return what is held now, in order of acquisition. O(n)."""
        return self._engine.held_locks()

    @property
    def timer(self) -> HashedWheelTimer:
        """The timer that renews its locks."""
        return self._engine.timer

    @property
    def closed(self) -> bool:
        """Whether the context has been closed."""
        return self._engine.closed

    async def close(self, timeout: float | None = None) -> None:
        """Close the context, for threads too; see :meth:`wheel_lock.LockContext.close`."""
        engine = self._engine
        limit_s = engine.options.close_timeout_s if timeout is None else seconds("timeout", timeout, above=0.0)
        if not engine.closed and not engine.timer.stopped:
            await wait_for(engine, lambda operation: lambda: engine.close(limit_s, operation))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not GeneratorExit:
            await self.close()
            return
        # A coroutine that is thrown away in the middle may not await any more.
        engine = self._engine
        engine.tell_if_running(partial(engine.close, engine.options.close_timeout_s, Operation(_nobody)))
