"""What random users do with the public objects of a context. Each action is one choice of the user's stream.

The programs are the same for threads and for tasks. A task awaits; for a thread, whose calls block, a body never suspends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.operations import EVERYDAY, OF_BOTH, UNUSUAL
from tests.simulation.record import Holding
from tests.simulation.scheduler import Dice, Stopped
from wheel_lock.errors import InvalidHandoff, LockLost, LockServerError, LockUnavailable, WheelLockError
from wheel_lock.lease import Lease

if TYPE_CHECKING:
    from tests.simulation.processes import Caller, Process
    from tests.simulation.world import World

TIMEOUTS = (1.0, 0.5, 3.0)
PERMITS = 2
# Errors that the library follows: where a key is, that a script is not there. The last two are mistakes in a script.
_NOT_FOR_CALLERS = ("MOVED ", "ASK ", "NOSCRIPT", "non local key", "CROSSSLOT", "user_script", "no number of permits")
NAMES = {
    "exclusive": ("x", "y", "z"),
    "reentrant": ("r",),
    "read-write": ("rw",),
    "fair": ("f",),
    "semaphore": ("s",),
    "leader": ("l",),
}


Action = Callable[[Dice], Coroutine[Any, Any, None]]


class Interruption(KeyboardInterrupt):
    """What a signal's handler raises in a caller."""


class Promised:
    """In a ``with``: passes over errors that public methods promise; every other one breaks a rule.

    (The generator of a ``contextmanager`` leaves a swallowed error in a cycle, or does not: Python's versions differ.)
    """

    def __init__(self, user: User, what: str, errors: type[Exception]) -> None:
        self._user = user
        self._what = what
        self._errors = errors

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or isinstance(error, (Stopped, Interruption, asyncio.CancelledError, GeneratorExit)):
            return False
        user, what = self._user, self._what
        if isinstance(error, LockServerError) and any(text in str(error) for text in _NOT_FOR_CALLERS):
            user.world.rules.broken("callers", f"{user.name}: {what} raised {error!r}", error)
        elif isinstance(error, self._errors):
            user.note("%s ended with %s: %s", what, type(error).__name__, str(error))
        else:
            user.world.rules.broken("callers", f"{user.name}: {what} raised {error!r}", error)
        return True


class User:
    """A thread, or a task, that uses locks until the world calms down."""

    def __init__(self, process: Process, name: str, *, task: bool) -> None:
        self.process = process
        self.world: World = process.world
        self.name = name
        self.is_task = task
        self.ends = False  # it does nothing more
        self.permits = PERMITS
        self._stream = self.world.tape.stream(f"user/{name}")
        self._writes = self.world.tape.stream(f"writes/{name}")
        self._holdings: list[Holding] = []  # of the action under way
        self._caller: Caller | None = None
        if task:
            process.start_task(name, self._live())
        else:
            self._caller = process.start(name, self._live_as_thread)

    def _live_as_thread(self, caller: Caller) -> None:
        self._caller = caller
        try:
            self._live().send(None)
        except StopIteration:
            pass
        else:
            raise AssertionError("the program of a thread has suspended")

    async def do(self, result: Any) -> Any:
        """Return the result of a public method, which a task awaits."""
        return await result if inspect.isawaitable(result) else result

    async def _live(self) -> None:
        while not self.world.calm:
            dice = self._stream.draw()
            if dice.nothing or self.ends:
                return
            self.world.steps += 1
            action: Action = dice.pick(self.world.settings.actions)(self)
            self._holdings.clear()
            try:
                with self.promised("an action"):
                    await action(dice)
                await self.sleep(dice.up_to(0.4) if dice.one_in(2) else 0.0)
            except (Interruption, asyncio.CancelledError):
                if self.world.over:
                    raise
                self.note("was interrupted")
                for holding in self._holdings:
                    holding.interrupted = True

    def new_holding(self) -> Holding:
        """Return what notes the losses of the locks that are acquired next."""
        self._holdings.append(Holding(self.process, stops=len(self.process.stops)))
        return self._holdings[-1]

    def promised(self, what: str, errors: type[Exception] = WheelLockError) -> Promised:
        """Pass over errors that public methods promise; every other one breaks a rule."""
        return Promised(self, what, errors)

    def note(self, text: str, *arguments: Any) -> None:
        self.world.scheduler.note(f"{self.name}: {text}", *arguments)

    async def sleep(self, seconds: float) -> None:
        if not seconds:
            return
        if self._caller is None:
            await asyncio.sleep(seconds)
        else:
            self.sleep_as_thread(seconds)

    def sleep_as_thread(self, seconds: float) -> None:
        self.process.sleep(seconds)

    @property
    def context(self) -> Any:
        context = self.process.contexts[-1]
        return context if self._caller is not None else context.asyncio

    def pick_name(self, kind: str, dice: Dice) -> str:
        return dice.pick(NAMES[kind])

    # -- one lock ----------------------------------------------------------------------------------------------------

    def terms(self, dice: Dice) -> dict[str, Any]:
        terms: dict[str, Any] = {"timeout": dice.pick(TIMEOUTS)}
        terms |= dice.pick([{}, {}, {}, {}, {"renew": False}, {"max_renewals": 1}, {"max_hold": 1.2}])
        terms |= dice.pick([{}, {}, {}, {"retry_every": 0.15}, {"max_attempts": 3}])
        return terms

    def waiting(self, dice: Dice) -> tuple[bool, float | None]:
        """Return whether to wait, and for how long."""
        return dice.pick([(True, 2.0), (True, None), (False, None), (True, 0.3), (True, 0.01)])

    async def exclusive(self, dice: Dice) -> None:
        name, fencing = self.pick_name("exclusive", dice), dice.one_in(2)
        holding, terms = self.new_holding(), self.terms(dice)
        lock = self.context.lock(name, on_lost=holding.on_lost, fencing=fencing, **terms)
        await self.use(lock, holding, terms, dice)

    async def fair(self, dice: Dice) -> None:
        holding, terms = self.new_holding(), self.terms(dice)
        name = self.pick_name("fair", dice)
        lock = self.context.fair_lock(name, fencing=dice.one_in(3), on_lost=holding.on_lost, **terms)
        await self.use(lock, holding, terms, dice)

    async def semaphore(self, dice: Dice) -> None:
        holding, terms = self.new_holding(), self.terms(dice)
        name = self.pick_name("semaphore", dice)
        lock = self.context.semaphore(name, PERMITS, on_lost=holding.on_lost, **terms)
        await self.use(lock, holding, terms, dice)

    async def reentrant(self, dice: Dice) -> None:
        holding, terms = self.new_holding(), self.terms(dice)
        name = self.pick_name("reentrant", dice)
        lock = self.context.reentrant_lock(name, on_lost=holding.on_lost, fencing=dice.one_in(2), **terms)
        await self.use(lock, holding, terms, dice, inside=partial(self._again, lock))

    async def _again(self, lock: Any, dice: Dice) -> None:
        await self.do(lock.acquire())
        await self.sleep(dice.up_to(0.5))
        await self.do(lock.release())

    async def read_write(self, dice: Dice) -> None:
        holding, terms = self.new_holding(), self.terms(dice)
        name, fencing = self.pick_name("read-write", dice), dice.one_in(2)
        lock = self.context.rw_lock(name, on_lost=holding.on_lost, fencing=fencing, **terms)
        if dice.one_in(2):
            await self.use(lock.read(), holding, terms, dice)
            return
        writer = lock.write()
        await self.use(writer, holding, terms, dice, inside=partial(self._read_on, lock, writer))

    async def _read_on(self, lock: Any, writer: Any, dice: Dice) -> None:
        if dice.one_in(2):
            reader = await self.downgrade(writer)
            await self.sleep(dice.up_to(0.5))
            await self.release(reader)
            return
        reader = lock.read()
        await self.do(reader.acquire())
        await self.sleep(dice.up_to(0.3))
        await self.do(reader.release())

    async def downgrade(self, writer: Any) -> Any:
        """Downgrade a lock; return the reader."""
        self.note("downgrades %s", writer.name)
        lease = writer._own_or_latest()
        reader = await self.end_lease(writer, writer.downgrade)
        if lease is not None:
            self.world.rules.downgraded(self.process, lease, reader._own_or_latest())
        return reader

    @contextmanager
    def limited(self, what: str, limit: float | None) -> Iterator[None]:
        """A call, in a ``with``, that ends by its limit."""
        process = self.process
        began, stops = process.clock.now(), len(process.stops)
        try:
            yield
        finally:
            calm = stops == len(process.stops) and not self.world.settings.slow_processes and not self.world.over
            if limit is not None and calm:
                self.world.rules.limit_kept(what, limit, process.clock.now() - began)

    @staticmethod
    def _may_deadlock(lock: Any) -> bool:
        """Return whether the holder of a lock may wait for one that its next caller holds, and has maybe forgotten.

        A forgotten reentrant or read-write lock is held until its thread or task ends. A holder of the one may wait for the
        other without a limit, but only in one order: who holds a read-write lock has a limit for a reentrant one.
        """
        return lock.name in NAMES["reentrant"] and any(
            family == "read-write" and hold.lease.loss is None
            for (_, family, _), hold in (lock._caller().holds or {}).items()
        )

    async def acquire(
        self, lock: Any, dice: Dice, waiting: tuple[bool, float | None] | None = None, **more: Any
    ) -> bool:
        """Acquire a lock, ``waiting`` or not, and for how long; return whether it was granted."""
        blocking, limit = waiting or self.waiting(dice)
        if blocking and limit is None and self._may_deadlock(lock):
            limit = 2.0
        self.note("acquires %s (%s, blocking=%s, limit=%s)", lock.name, type(lock).__name__, blocking, limit)
        with (
            self.limited(f"acquire of {lock.name!r}", limit),
            self.world.rules.waiting(self.process, lock) if blocking else nullcontext() as wait,
        ):
            began = self.process.clock.now()
            try:
                granted: bool = await self.do(lock.acquire(blocking=blocking, blocking_timeout=limit, **more))
            except LockUnavailable as error:
                self.world.rules.refused(lock._engine, lock.name, limit, self.process.clock.now() - began, error)
                raise
            if granted and wait is not None:
                self.world.rules.granted(wait)
        self.note("%s %s", "got" if granted else "did not get", lock.name)
        return granted

    async def use(
        self, lock: Any, holding: Holding, terms: dict[str, Any], dice: Dice, inside: Action | None = None, **more: Any
    ) -> None:
        """Acquire a lock, do something, and end it in one of several ways."""
        if not await self.acquire(lock, dice, **more):
            return
        self.world.rules.holds(lock, holding, terms)
        lease = lock._own_or_latest()
        for _ in range(dice.below(3)):
            with self.promised("something inside"):
                await self._inside(lock, dice, inside)
                self.write(lease)
        ending = dice.pick([self.release, self.release, self.release, self._abandon, self._export, self._outlive])
        await ending(lock)
        self.write(lease)

    def write(self, lease: Lease | None) -> None:
        """Maybe write into what a lock with a fence protects, as its holder, or as one that was its holder."""
        if lease is not None and lease.fence is not None and self._writes.draw().one_in(2):
            self.world.rules.writes(self.process, lease)

    async def _inside(self, lock: Any, dice: Dice, more: Action | None) -> None:
        choice = dice.below(8 if self.world.settings.extends else 6)
        if choice == 0:
            await self.sleep(dice.up_to(0.2))
        elif choice == 1:
            await self.sleep(dice.up_to(2.0))
        elif choice == 2:
            self.note("%s is held: %s, lost: %s", lock.name, lock.is_held, lock.lost)
        elif choice == 3 and more is not None:
            await more(dice)
        elif choice in (3, 4):
            locked, owned = await self.do(lock.locked()), await self.do(lock.owned())
            self.note("%s is locked: %s, owned: %s", lock.name, locked, owned)
        elif choice == 5:
            self.note("%s is held by %s", lock.name, await self.do(lock.holders()))
        elif choice == 6:
            self.note("extends %s", lock.name)
            await self.do(lock.extend(dice.pick([0.3, 1.0, 5.0]), replace_ttl=dice.one_in(2)))
        else:
            self.note("reacquires %s", lock.name)
            await self.do(lock.reacquire())

    async def release(self, lock: Any) -> None:
        """Release a lock."""
        self.note("releases %s", lock.name)
        await self.end_lease(lock, lock.release)
        self.note("released %s", lock.name)

    async def end_lease(self, lock: Any, end: Callable[[], Any]) -> Any:
        """Call what ends the lease of a lock; return its result."""
        lease: Lease | None = lock._own_or_latest()
        breaks = self.process.breaks
        try:
            result = await self.do(end())
        except LockLost as error:
            self.world.rules.found_lost(lease, error)
            raise
        if result and lease is not None:
            self.world.rules.released(lease, answered=breaks == self.process.breaks)
        return result

    async def _abandon(self, lock: Any) -> None:
        """Forget a lock that is held."""
        self.note("forgets %s", lock.name)

    async def _export(self, lock: Any) -> None:
        self.note("exports %s", lock.name)
        lease, began = lock._own_or_latest(), self.world.scheduler.now
        with self.promised("an export"):
            text = await self.do(lock.export())
            self.world.rules.handoffs.exported(self.process, lease, text, began)
            self.world.mailbox.append(text)
            return
        await self.release(lock)

    async def _outlive(self, lock: Any) -> None:
        """Hold a lock for longer than it may last without renewals, and release it."""
        await self.sleep(3.2)
        await self.release(lock)

    async def adopt(self, dice: Dice) -> None:
        """Take over a lock that was exported; if there is none, export one that may not be held for long."""
        if not self.world.mailbox:
            holding, terms = self.new_holding(), {"max_hold": dice.pick([1.2, 4.0]), "timeout": 1.0}
            lock = self.context.lock(dice.pick(NAMES["exclusive"]), on_lost=holding.on_lost, **terms)
            if await self.do(lock.acquire(blocking=False)):
                self.world.rules.holds(lock, holding, terms)
                await self._export(lock)
        else:
            texts = self.world.mailbox
            text = texts[0] if dice.one_in(8) else texts.pop(0)  # one that is used twice
            holding = self.new_holding()
            self.note("adopts")
            handoffs, began = self.world.rules.handoffs, self.world.scheduler.now
            try:
                lock = await self.do(self.context.adopt(text, on_lost=holding.on_lost))
            except InvalidHandoff as error:
                handoffs.refused(self.process, text, began, error)
                raise
            handoffs.adopted(self.process, lock._own_or_latest(), text, began)
            self.world.rules.holds(lock, holding, {})
            await self.sleep(dice.up_to(1.0))
            await (self._export if dice.one_in(4) else self.release)(lock)

    # -- several locks -------------------------------------------------------------------------------------------------

    async def multi(self, dice: Dice) -> None:
        names = list(NAMES["exclusive"])[: 1 + dice.below(3)]
        holding, terms = self.new_holding(), self.terms(dice)
        lock = self.context.multi_lock(names, on_lost=holding.on_lost, **terms)
        blocking, limit = self.waiting(dice)
        self.note("acquires %s together", names)
        with self.limited(f"acquire of {names}", limit):
            granted = await self.do(lock.acquire(blocking=blocking, blocking_timeout=limit))
        if granted:
            holding.got.update(names)
            self.note("got %s together", names)
            await self.sleep(dice.up_to(1.0))
            await self.do(lock.release())

    async def bulk(self, dice: Dice) -> None:
        names = [*NAMES["exclusive"], *(f"bulk{number}" for number in range(dice.below(6)))]
        holding = self.new_holding()
        together, blocking = dice.one_in(2), dice.one_in(2)
        timeout, limit = dice.pick(TIMEOUTS), dice.pick([1.0, 0.2, 3.0]) if blocking else None
        self.note("acquires %s in bulk (all or nothing: %s, blocking: %s)", names, together, blocking)
        terms: dict[str, Any] = {"all_or_nothing": together, "blocking": blocking, "blocking_timeout": limit}
        context = self.context
        with self.limited(f"acquire of {names}", limit):
            found = await self.do(context.acquire_many(names, timeout, on_lost=holding.on_lost, **terms))
        granted = [name for name, lock in dict.items(found) if lock]  # without making the locks
        holding.got.update(granted)
        self.note("got %s", granted)
        await self.sleep(dice.up_to(1.5))
        await self.do(context.release_many(found.values()))

    # -- others ------------------------------------------------------------------------------------------------------

    async def force_release(self, dice: Dice) -> None:
        name = dice.pick([name for names in NAMES.values() for name in names])
        self.note("releases %s by force", name)
        await self.do(self.context.force_release(name, foreign=dice.one_in(2)))

    async def close(self, dice: Dice) -> None:
        """Close the context, and go on with a new one."""
        if dice.one_in(4):
            self.note("closes the context")
            self.process.closed_at = self.world.scheduler.now
            await self.do(self.context.close())
            self.world.new_context(self.process)


ACTIONS: tuple[Callable[[User], Action], ...] = (
    lambda user: user.exclusive,
    lambda user: user.exclusive,
    lambda user: user.exclusive,
    lambda user: user.reentrant,
    lambda user: user.read_write,
    lambda user: user.fair,
    lambda user: user.semaphore,
    lambda user: user.multi,
    lambda user: user.bulk,
    lambda user: user.adopt,
    *(partial(partial, action) for action in EVERYDAY),
)
OF_A_MAJORITY: tuple[Callable[[User], Action], ...] = (
    lambda user: user.exclusive,
    lambda user: user.exclusive,
    lambda user: user.reentrant,
    *(partial(partial, action) for action in OF_BOTH),
)
RARE: tuple[Callable[[User], Action], ...] = (
    lambda user: user.force_release,
    lambda user: user.close,
    *(partial(partial, action) for action in UNUSUAL),
)
