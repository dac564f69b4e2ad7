"""What random users do with the public objects of a context. Each action is one choice of the user's stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.rules import Holding
from tests.simulation.scheduler import Dice, Stopped
from wheel_lock.errors import ContextClosed, WheelLockError
from wheel_lock.lease import Lease

if TYPE_CHECKING:
    from tests.simulation.processes import Caller, Context, Process
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


class Interruption(KeyboardInterrupt):
    """What a signal's handler raises in a caller."""


class User:
    """A thread that uses locks until the world calms down."""

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.world: World = process.world
        self.name = name
        self._stream = self.world.tape.stream(f"user/{name}")
        self._caller: Caller = process.start(name, lambda caller: self._live())

    def _live(self) -> None:
        while not self.world.calm:
            dice = self._stream.draw()
            if dice.nothing:
                return
            self.world.steps += 1
            action: Callable[[Dice], None] = dice.pick(self.world.settings.actions)(self)
            try:
                with self._promised("an action"):
                    action(dice)
                self._sleep(dice.up_to(0.4) if dice.one_in(2) else 0.0)
            except Interruption:
                self._note("was interrupted")

    @contextmanager
    def _promised(self, what: str) -> Iterator[None]:
        """Pass over errors that public methods promise; every other one breaks a rule."""
        try:
            yield
        except WheelLockError as error:
            self._note("%s ended with %s: %s", what, type(error).__name__, error)
            if isinstance(error, ContextClosed) and not self.world.calm:
                self._sleep(0.1)
        except (Stopped, Interruption):
            raise
        except BaseException as error:
            self.world.rules.broken("callers", f"{self.name}: {what} raised {error!r}", error)

    def _note(self, text: str, *arguments: Any) -> None:
        self.world.scheduler.note(f"{self.name}: {text}", *arguments)

    def _sleep(self, seconds: float) -> None:
        if seconds:
            self._caller.wait(seconds)

    @property
    def _context(self) -> Context:
        return self.process.contexts[-1]

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

    def exclusive(self, dice: Dice) -> None:
        name, fencing = self._name("exclusive", dice), dice.one_in(2)
        holding, terms = Holding(self.process), self._terms(dice)
        lock = self._context.lock(name, fencing=fencing, on_lost=holding.on_lost, **terms)
        self._use(lock, holding, dice)

    def fair(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        name = self._name("fair", dice)
        lock = self._context.fair_lock(name, fencing=dice.one_in(3), on_lost=holding.on_lost, **terms)
        self._use(lock, holding, dice)

    def semaphore(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        name = self._name("semaphore", dice)
        self._use(self._context.semaphore(name, PERMITS, on_lost=holding.on_lost, **terms), holding, dice)

    def reentrant(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        name = self._name("reentrant", dice)
        lock = self._context.reentrant_lock(name, on_lost=holding.on_lost, fencing=dice.one_in(2), **terms)
        self._use(lock, holding, dice, inside=partial(self._again, lock))

    def _again(self, lock: Any, dice: Dice) -> None:
        lock.acquire()
        self._sleep(dice.up_to(0.5))
        lock.release()

    def read_write(self, dice: Dice) -> None:
        holding, terms = Holding(self.process), self._terms(dice)
        lock = self._context.rw_lock(self._name("read-write", dice), on_lost=holding.on_lost, **terms)
        if dice.one_in(2):
            self._use(lock.read(), holding, dice)
            return
        writer = lock.write()
        self._use(writer, holding, dice, inside=partial(self._read_on, lock, writer))

    def _read_on(self, lock: Any, writer: Any, dice: Dice) -> None:
        if dice.one_in(2):
            reader = writer.downgrade()
            self._sleep(dice.up_to(0.5))
            self.release(reader)
            return
        reader = lock.read()
        reader.acquire()
        self._sleep(dice.up_to(0.3))
        reader.release()

    def _use(
        self, lock: Any, holding: Holding, dice: Dice, inside: Callable[[Dice], None] | None = None
    ) -> None:
        """Acquire a lock, do something, and end it in one of several ways."""
        blocking, limit = self._waiting(dice)
        what, began, process = f"acquire of {lock.name!r}", self.process.clock.now(), self.process
        stops = len(process.stops)
        self._note("acquires %s (%s, blocking=%s, limit=%s)", lock.name, type(lock).__name__, blocking, limit)
        polls = lock._options.retry_every_s is not None or not blocking
        try:
            with nullcontext() if polls else self.world.rules.waiting(process, lock.name):
                granted = lock.acquire(blocking=blocking, blocking_timeout=limit)
        finally:
            calm = stops == len(process.stops) and not self.world.settings.slow_processes and not self.world.over
            if limit is not None and calm:
                ahead = self.world.settings.users - 1
                self.world.rules.limit_kept(what, limit, process.clock.now() - began, ahead)
        self._note("%s %s", "got" if granted else "did not get", lock.name)
        if not granted:
            return
        self.world.rules.holds(lock, holding)
        for _ in range(dice.below(3)):
            with self._promised("something inside"):
                self._inside(lock, dice, inside)
        ending = dice.pick([self.release, self.release, self.release, self._abandon, self._export, self._outlive])
        ending(lock)

    def _inside(self, lock: Any, dice: Dice, more: Callable[[Dice], None] | None) -> None:
        choice = dice.below(8 if self.world.settings.extends else 6)
        if choice == 0:
            self._sleep(dice.up_to(0.2))
        elif choice == 1:
            self._sleep(dice.up_to(2.0))
        elif choice == 2:
            self._note("%s is held: %s, lost: %s", lock.name, lock.is_held, lock.lost)
        elif choice == 3 and more is not None:
            more(dice)
        elif choice in (3, 4):
            self._note("%s is locked: %s, owned: %s", lock.name, lock.locked(), lock.owned())
        elif choice == 5:
            self._note("%s is held by %s", lock.name, lock.holders())
        elif choice == 6:
            self._note("extends %s", lock.name)
            lock.extend(dice.pick([0.3, 1.0, 5.0]), replace_ttl=dice.one_in(2))
        else:
            self._note("reacquires %s", lock.name)
            lock.reacquire()

    def release(self, lock: Any) -> None:
        """Release a lock."""
        lease: Lease | None = lock._own_or_latest()
        self._note("releases %s", lock.name)
        if lock.release() and lease is not None:
            self.world.rules.released(lease)
        self._note("released %s", lock.name)

    def _abandon(self, lock: Any) -> None:
        """Forget a lock that is held."""
        self._note("forgets %s", lock.name)

    def _export(self, lock: Any) -> None:
        self._note("exports %s", lock.name)
        with self._promised("an export"):
            self.world.mailbox.append(lock.export())
            return
        self.release(lock)

    def _outlive(self, lock: Any) -> None:
        """Hold a lock for longer than it may last without renewals, and release it."""
        self._sleep(3.2)
        self.release(lock)

    def adopt(self, dice: Dice) -> None:
        """Take over a lock that somebody has exported."""
        if self.world.mailbox:
            texts = self.world.mailbox
            text = texts[0] if dice.one_in(8) else texts.pop(0)  # one that is used twice
            holding = Holding(self.process)
            self._note("adopts")
            lock = self._context.adopt(text, on_lost=holding.on_lost)
            self.world.rules.holds(lock, holding)
            self._sleep(dice.up_to(1.0))
            self.release(lock)

    # -- several locks -------------------------------------------------------------------------------------------------

    def multi(self, dice: Dice) -> None:
        names = list(NAMES["exclusive"])[: 1 + dice.below(3)]
        holding, terms = Holding(self.process), self._terms(dice)
        lock = self._context.multi_lock(names, on_lost=holding.on_lost, **terms)
        blocking, limit = self._waiting(dice)
        self._note("acquires %s together", names)
        if lock.acquire(blocking=blocking, blocking_timeout=limit):
            self._note("got %s together", names)
            self._sleep(dice.up_to(1.0))
            lock.release()

    def bulk(self, dice: Dice) -> None:
        names = [*NAMES["exclusive"], *(f"bulk{number}" for number in range(dice.below(6)))]
        holding = Holding(self.process)
        together, blocking = dice.one_in(2), dice.one_in(2)
        timeout, limit = dice.pick(TIMEOUTS), dice.pick([1.0, 0.2, 3.0]) if blocking else None
        self._note("acquires %s in bulk (all or nothing: %s, blocking: %s)", names, together, blocking)
        found = self._context.acquire_many(
            names, timeout, all_or_nothing=together, blocking=blocking, blocking_timeout=limit, on_lost=holding.on_lost
        )
        self._note("got %s", [name for name, lock in found.items() if lock])
        self._sleep(dice.up_to(1.5))
        self._context.release_many(found.values())

    # -- others ------------------------------------------------------------------------------------------------------

    def force_release(self, dice: Dice) -> None:
        name = dice.pick([name for names in NAMES.values() for name in names])
        self._note("releases %s by force", name)
        self._context.force_release(name)

    def close(self, dice: Dice) -> None:
        """Close the context, and go on with a new one."""
        if dice.one_in(4):
            self._note("closes the context")
            self._context.close()
            self.world.new_context(self.process)


ACTIONS: tuple[Callable[[User], Callable[[Dice], None]], ...] = (
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
RARE: tuple[Callable[[User], Callable[[Dice], None]], ...] = (
    lambda user: user.force_release,
    lambda user: user.close,
)
