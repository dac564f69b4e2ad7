"""What random users do with the public objects of a context. Each action is one choice of the user's stream.

The programs are the same for threads and for tasks. A task awaits; for a thread, whose calls block, a body never suspends.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.rules import Holding
from tests.simulation.scheduler import Dice, Stopped
from wheel_lock.errors import WheelLockError
from wheel_lock.lease import Lease

if TYPE_CHECKING:
    from tests.simulation.processes import Caller, Process
    from tests.simulation.world import World

TIMEOUTS = (1.0, 0.5, 3.0)
PERMITS = 2
NAMES = {
    "exclusive": ("x", "y", "z"),
    "reentrant": ("r",),
    "read-write": ("rw",),
    "fair": ("f",),
    "semaphore": ("s",),
}


Action = Callable[[Dice], Coroutine[Any, Any, None]]


class Interruption(KeyboardInterrupt):
    """What a signal's handler raises in a caller."""


class Promised:
    """In a ``with``: passes over errors that public methods promise; every other one breaks a rule.

    (The generator of a ``contextmanager`` leaves a swallowed error in a cycle, or does not: Python's versions differ.)
    """

    def __init__(self, user: User, what: str) -> None:
        self._user = user
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if error is None or isinstance(error, (Stopped, Interruption, asyncio.CancelledError, GeneratorExit)):
            return False
        user, what = self._user, self._what
        if isinstance(error, WheelLockError):
            user._note("%s ended with %s: %s", what, type(error).__name__, str(error))
        else:
            user.world.rules.broken("callers", f"{user.name}: {what} raised {error!r}", error)
        return True


class User:
    """A thread, or a task, that uses locks until the world calms down."""

    def __init__(self, process: Process, name: str, *, task: bool) -> None:
        self.process = process
        self.world: World = process.world
        self.name = name
        self._stream = self.world.tape.stream(f"user/{name}")
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

    async def _do(self, result: Any) -> Any:
        """Return the result of a public method, which a task awaits."""
        return await result if inspect.isawaitable(result) else result

    async def _live(self) -> None:
        while not self.world.calm:
            dice = self._stream.draw()
            if dice.nothing:
                return
            self.world.steps += 1
            action: Action = dice.pick(self.world.settings.actions)(self)
            try:
                with Promised(self, "an action"):
                    await action(dice)
                await self._sleep(dice.up_to(0.4) if dice.one_in(2) else 0.0)
            except (Interruption, asyncio.CancelledError):
                if self.world.over:
                    raise
                self._note("was interrupted")

    def _note(self, text: str, *arguments: Any) -> None:
        self.world.scheduler.note(f"{self.name}: {text}", *arguments)

    async def _sleep(self, seconds: float) -> None:
        if not seconds:
            return
        if self._caller is None:
            await asyncio.sleep(seconds)
        else:
            self._caller.wait(seconds)

    @property
    def _context(self) -> Any:
        context = self.process.contexts[-1]
        return context if self._caller is not None else context.asyncio

    def _name(self, kind: str, dice: Dice) -> str:
        return dice.pick(NAMES[kind])

    # -- one lock ----------------------------------------------------------------------------------------------------

    def _terms(self, dice: Dice) -> dict[str, Any]:
        terms: dict[str, Any] = {"timeout": dice.pick(TIMEOUTS)}
        terms |= dice.pick([{}, {}, {}, {}, {"renew": False}, {"max_renewals": 1}, {"max_hold": 1.2}])
        terms |= dice.pick([{}, {}, {}, {"retry_every": 0.15}, {"max_attempts": 3}])
        return terms

    def _waiting(self, dice: Dice) -> tuple[bool, float | None]:
        """Return whether to wait, and for how long."""
        return dice.pick([(True, 2.0), (True, None), (False, None), (True, 0.3)])

    async def exclusive(self, dice: Dice) -> None:
        name, fencing = self._name("exclusive", dice), dice.one_in(2)
        holding, terms = Holding(self.process), self._terms(dice)
        terms |= {"fencing": fencing} if self.world.settings.masters == 1 else {}
        lock = self._context.lock(name, on_lost=holding.on_lost, **terms)
        await self._use(lock, holding, terms, dice)

    async def fair(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        name = self._name("fair", dice)
        lock = self._context.fair_lock(name, fencing=dice.one_in(3), on_lost=holding.on_lost, **terms)
        await self._use(lock, holding, terms, dice)

    async def semaphore(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        name = self._name("semaphore", dice)
        lock = self._context.semaphore(name, PERMITS, on_lost=holding.on_lost, **terms)
        await self._use(lock, holding, terms, dice)

    async def reentrant(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        name = self._name("reentrant", dice)
        terms |= {"fencing": dice.one_in(2)} if self.world.settings.masters == 1 else {}
        lock = self._context.reentrant_lock(name, on_lost=holding.on_lost, **terms)
        await self._use(lock, holding, terms, dice, inside=partial(self._again, lock))

    async def _again(self, lock: Any, dice: Dice) -> None:
        await self._do(lock.acquire())
        await self._sleep(dice.up_to(0.5))
        await self._do(lock.release())

    async def read_write(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        lock = self._context.rw_lock(self._name("read-write", dice), on_lost=holding.on_lost, **terms)
        if dice.one_in(2):
            await self._use(lock.read(), holding, terms, dice)
            return
        writer = lock.write()
        await self._use(writer, holding, terms, dice, inside=partial(self._read_on, lock, writer))

    async def _read_on(self, lock: Any, writer: Any, dice: Dice) -> None:
        if dice.one_in(2):
            reader = await self._do(writer.downgrade())
            await self._sleep(dice.up_to(0.5))
            await self.release(reader)
            return
        reader = lock.read()
        await self._do(reader.acquire())
        await self._sleep(dice.up_to(0.3))
        await self._do(reader.release())

    async def _use(
        self, lock: Any, holding: Holding, terms: dict[str, Any], dice: Dice, inside: Action | None = None
    ) -> None:
        """Acquire a lock, do something, and end it in one of several ways."""
        blocking, limit = self._waiting(dice)
        what, began, process = f"acquire of {lock.name!r}", self.process.clock.now(), self.process
        stops = len(process.stops)
        self._note("acquires %s (%s, blocking=%s, limit=%s)", lock.name, type(lock).__name__, blocking, limit)
        polls = lock._options.retry_every_s is not None or not blocking
        try:
            with nullcontext() if polls else self.world.rules.waiting(process, lock) as wait:
                granted = await self._do(lock.acquire(blocking=blocking, blocking_timeout=limit))
                if granted and wait is not None:
                    self.world.rules.granted(wait)
        finally:
            calm = stops == len(process.stops) and not self.world.settings.slow_processes and not self.world.over
            if limit is not None and calm:
                ahead = self.world.settings.users - 1
                self.world.rules.limit_kept(what, limit, process.clock.now() - began, ahead)
        self._note("%s %s", "got" if granted else "did not get", lock.name)
        if not granted:
            return
        self.world.rules.holds(lock, holding, terms)
        for _ in range(dice.below(3)):
            with Promised(self, "something inside"):
                await self._inside(lock, dice, inside)
        ending = dice.pick([self.release, self.release, self.release, self._abandon, self._export, self._outlive])
        await ending(lock)

    async def _inside(self, lock: Any, dice: Dice, more: Action | None) -> None:
        choice = dice.below(8 if self.world.settings.extends else 6)
        if choice == 0:
            await self._sleep(dice.up_to(0.2))
        elif choice == 1:
            await self._sleep(dice.up_to(2.0))
        elif choice == 2:
            self._note("%s is held: %s, lost: %s", lock.name, lock.is_held, lock.lost)
        elif choice == 3 and more is not None:
            await more(dice)
        elif choice in (3, 4):
            locked, owned = await self._do(lock.locked()), await self._do(lock.owned())
            self._note("%s is locked: %s, owned: %s", lock.name, locked, owned)
        elif choice == 5:
            self._note("%s is held by %s", lock.name, await self._do(lock.holders()))
        elif choice == 6:
            self._note("extends %s", lock.name)
            await self._do(lock.extend(dice.pick([0.3, 1.0, 5.0]), replace_ttl=dice.one_in(2)))
        else:
            self._note("reacquires %s", lock.name)
            await self._do(lock.reacquire())

    async def release(self, lock: Any) -> None:
        """Release a lock."""
        lease: Lease | None = lock._own_or_latest()
        self._note("releases %s", lock.name)
        if await self._do(lock.release()) and lease is not None:
            self.world.rules.released(lease)
        self._note("released %s", lock.name)

    async def _abandon(self, lock: Any) -> None:
        """Forget a lock that is held."""
        self._note("forgets %s", lock.name)

    async def _export(self, lock: Any) -> None:
        self._note("exports %s", lock.name)
        with Promised(self, "an export"):
            self.world.mailbox.append(await self._do(lock.export()))
            return
        await self.release(lock)

    async def _outlive(self, lock: Any) -> None:
        """Hold a lock for longer than it may last without renewals, and release it."""
        await self._sleep(3.2)
        await self.release(lock)

    async def adopt(self, dice: Dice) -> None:
        """Take over a lock that somebody has exported."""
        if self.world.mailbox:
            texts = self.world.mailbox
            text = texts[0] if dice.one_in(8) else texts.pop(0)  # one that is used twice
            holding = Holding(self.process)
            self._note("adopts")
            lock = await self._do(self._context.adopt(text, on_lost=holding.on_lost))
            self.world.rules.holds(lock, holding, {})
            await self._sleep(dice.up_to(1.0))
            await self.release(lock)

    # -- several locks -------------------------------------------------------------------------------------------------

    async def multi(self, dice: Dice) -> None:
        names = list(NAMES["exclusive"])[: 1 + dice.below(3)]
        holding, terms = Holding(self.process), self._terms(dice)
        lock = self._context.multi_lock(names, on_lost=holding.on_lost, **terms)
        blocking, limit = self._waiting(dice)
        self._note("acquires %s together", names)
        if await self._do(lock.acquire(blocking=blocking, blocking_timeout=limit)):
            self._note("got %s together", names)
            await self._sleep(dice.up_to(1.0))
            await self._do(lock.release())

    async def bulk(self, dice: Dice) -> None:
        names = [*NAMES["exclusive"], *(f"bulk{number}" for number in range(dice.below(6)))]
        holding = Holding(self.process)
        together, blocking = dice.one_in(2), dice.one_in(2)
        timeout, limit = dice.pick(TIMEOUTS), dice.pick([1.0, 0.2, 3.0]) if blocking else None
        self._note("acquires %s in bulk (all or nothing: %s, blocking: %s)", names, together, blocking)
        terms: dict[str, Any] = {"all_or_nothing": together, "blocking": blocking, "blocking_timeout": limit}
        context = self._context
        found = await self._do(context.acquire_many(names, timeout, on_lost=holding.on_lost, **terms))
        self._note("got %s", [name for name, lock in found.items() if lock])
        await self._sleep(dice.up_to(1.5))
        await self._do(context.release_many(found.values()))

    # -- others ------------------------------------------------------------------------------------------------------

    async def force_release(self, dice: Dice) -> None:
        name = dice.pick([name for names in NAMES.values() for name in names])
        self._note("releases %s by force", name)
        await self._do(self._context.force_release(name))

    async def close(self, dice: Dice) -> None:
        """Close the context, and go on with a new one."""
        if dice.one_in(4):
            self._note("closes the context")
            await self._do(self._context.close())
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
)
OF_A_MAJORITY: tuple[Callable[[User], Action], ...] = (
    lambda user: user.exclusive,
    lambda user: user.exclusive,
    lambda user: user.reentrant,
)
RARE: tuple[Callable[[User], Action], ...] = (
    lambda user: user.force_release,
    lambda user: user.close,
)
