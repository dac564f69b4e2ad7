"""What the workers of a crowd do: a class for each kind of lock. They write down what they believed, and when."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from redis.exceptions import LockError

from tests.crowds.apis import done
from tests.crowds.checker import Claim, Mode
from tests.faults.checker import Belief, Ending, Loss
from tests.faults.holder import to_monotonic
from wheel_lock import LockLost, LocksLost, LockTimeout, LockUnavailable, LostEvent, UpgradeRefused

if TYPE_CHECKING:
    from tests.crowds.member import Member

TIMEOUT_S = 1.0
PERMITS = 3

now = time.monotonic


class Worker:
    """Acquires locks of one kind one after the other, and holds each for a moment."""

    kind: ClassVar[str]
    mode: ClassVar[Mode] = "alone"
    names: ClassVar[int] = 2

    def __init__(self, member: Member, number: int) -> None:
        self.member = member
        self.face = member.face
        self.name = f"{member.number}:{self.kind}:{number}"
        self.holder = ""

    async def live(self) -> None:
        turns = 0
        await self.face.sleep(max(self.member.begin - now(), 0.0))
        while now() < self.member.until:
            turns += 1
            self.holder = f"{self.name}:{turns}"
            await self.turn()
            await self.face.sleep(random.uniform(0.005, 0.06))

    async def turn(self) -> None:
        lock = self.new_lock(on_lost=self.told(), retry_every=0.02 if random.random() < 0.1 else None)
        if await self.acquired(lock):
            await self.hold(lock)

    def new_lock(self, **terms: Any) -> Any:
        raise NotImplementedError

    async def hold(self, lock: Any) -> None:
        since = now()
        until = await self.believe(lock, since)
        self.note(lock.name, since, until, await self.released(lock), fence=lock.fence)

    # What all of them do

    def some_name(self) -> str:
        return f"{self.kind}:{random.randrange(self.names)}"

    def told(self) -> Callable[[LostEvent], None]:
        holder, losses = self.holder, self.member.losses[self.kind]

        def told(event: LostEvent) -> None:
            losses.append(Loss(str(event.name), holder, self.member.number, event.deadline + to_monotonic(), now()))

        return told

    async def acquired(self, lock: Any) -> bool:
        """Whether it was granted: some do not wait, some not for long."""
        how, since = random.random(), now()
        try:
            if how < 0.2:
                return bool(await done(lock.acquire(blocking=False)))
            if how < 0.4:
                return await self.face.hasty_acquire(lock, random.uniform(0.0, 0.02))
            return bool(await done(lock.acquire(blocking_timeout=random.uniform(0.5, 2.0))))
        except (LockTimeout, LockUnavailable) as error:
            # Right where there was next to no time, or where the process was stopped meanwhile: who stopped it knows.
            if not 0.2 <= how < 0.4:
                self.member.unanswered.append((self.member.number, since, now(), f"{self.holder}: acquire: {error}"))
            return False
        except LockError as error:
            self.trouble("acquire", error)
            return False

    async def acquired_again(self, lock: Any) -> bool:
        """Whether what is held already was acquired once more."""
        try:
            if await done(lock.acquire()):
                return True
            self.trouble("acquire again", AssertionError("it was refused"))
        except LockLost:
            pass
        return False

    async def believe(self, lock: Any, since: float) -> float:
        """Hold it for a moment; return until when it was seen to be held, which is `since` where it never was."""
        until, enough = since, now() + random.uniform(0.0, 0.008)
        while (at := now()) < enough and lock.is_held:
            until = at
            await self.face.sleep(0.001)
        return until

    async def released(self, lock: Any, *, fully: bool = True) -> Ending:
        """Release it once, and say how it ended; `fully` is whether that is to be the end."""
        return await self.ended(lock.release, lambda result: result in (fully, None))

    async def ended(self, call: Callable[[], Any], right: Callable[[Any], bool] = lambda result: True) -> Ending:
        try:
            result = await done(call())
        except LockLost:
            return "lost"
        except LockError as error:
            self.trouble("release", error)
            return "running"
        if not right(result):
            self.trouble("release", AssertionError(f"it returned {result!r}"))
        return "released"

    def note(
        self,
        name: str,
        since: float,
        until: float,
        ending: Ending,
        *,
        fence: int | None = None,
        mode: Mode | None = None,
    ) -> None:
        belief = Belief(name, self.holder, self.member.number, since, until, fence, ending)
        self.member.claims[self.kind].append(Claim(self.name, mode or self.mode, belief))

    def trouble(self, what: str, error: Exception) -> None:
        self.member.troubles.append(f"{self.holder}: {what}: {type(error).__name__}: {error}")


class Exclusive(Worker):
    kind = "exclusive"

    def new_lock(self, **terms: Any) -> Any:
        return self.face.locks.lock(self.some_name(), TIMEOUT_S, fencing=True, **terms)


class Fair(Worker):
    kind = "fair"

    def new_lock(self, **terms: Any) -> Any:
        return self.face.locks.fair_lock(self.some_name(), TIMEOUT_S, fencing=True, **terms)


class Semaphore(Worker):
    kind = "semaphore"
    mode = "shared"

    def new_lock(self, **terms: Any) -> Any:
        return self.face.locks.semaphore(self.some_name(), PERMITS, TIMEOUT_S, **terms)


class Reentrant(Worker):
    kind = "reentrant"

    def new_lock(self, **terms: Any) -> Any:
        return self.face.locks.reentrant_lock(self.some_name(), TIMEOUT_S, fencing=True, **terms)

    async def hold(self, lock: Any) -> None:
        """Acquire it a few times more, through objects of their own."""
        name, fence, since = str(lock.name), lock.fence, now()
        inner = [self.face.locks.reentrant_lock(name, TIMEOUT_S) for _ in range(random.choice([0, 0, 1, 2]))]
        inner = [again for again in inner if await self.acquired_again(again)]
        for again in inner:
            if again.fence != fence:
                self.trouble("acquire again", AssertionError(f"the fence was {fence} and is {again.fence}"))
        until = await self.believe(lock, since)
        for again in inner:
            await self.released(again, fully=False)
            at = now()
            until = at if lock.is_held else until
        self.note(name, since, until, await self.released(lock), fence=fence)


class ReadWrite(Worker):
    kind = "read-write"

    async def turn(self) -> None:
        both = self.face.locks.rw_lock(self.some_name(), TIMEOUT_S, fencing=True, on_lost=self.told())
        if random.random() < 0.7:
            reader = both.read()
            if await self.acquired(reader):
                await self.read(both, reader)
        else:
            writer = both.write()
            if await self.acquired(writer):
                await random.choice([self.write, self.downgrade, self.read_on])(both, writer)

    async def read(self, both: Any, reader: Any) -> None:
        """Read, some of it twice, and never write what is read."""
        since, again = now(), both.read()
        nested = random.random() < 0.3 and await self.acquired_again(again)
        if random.random() < 0.1:
            try:
                await done(both.write().acquire())
                self.trouble("upgrade", AssertionError("it was granted"))
            except UpgradeRefused:
                pass
        until = await self.believe(reader, since)
        if nested:
            await self.released(again, fully=False)
        self.note(reader.name, since, until, await self.released(reader), mode="shared")

    async def write(self, both: Any, writer: Any) -> None:
        """Write, and read within it."""
        since, reader = now(), both.read()
        nested = await self.acquired_again(reader)
        until = await self.believe(writer, since)
        if nested:
            await self.released(reader, fully=False)
        self.note(writer.name, since, until, await self.released(writer), fence=writer.fence)

    async def downgrade(self, both: Any, writer: Any) -> None:
        """Write, and then read."""
        since = now()
        until = await self.believe(writer, since)
        fence, ending = writer.fence, await self.ended(writer.downgrade)
        self.note(writer.name, since, until, ending, fence=fence)
        if ending == "released":
            await self.read_out(both.read())
        else:
            await self.released(writer)  # it is held no more, and must be released all the same

    async def read_on(self, both: Any, writer: Any) -> None:
        """Write, begin to read, and write no more."""
        since, reader = now(), both.read()
        nested = await self.acquired_again(reader)
        until = await self.believe(writer, since)
        self.note(writer.name, since, until, await self.released(writer), fence=writer.fence)
        if nested:
            await self.read_out(reader)

    async def read_out(self, reader: Any) -> None:
        since = now()
        until = await self.believe(reader, since)
        self.note(reader.name, since, until, await self.released(reader), mode="shared")


class Multi(Worker):
    kind = "multi"
    names = 5

    def new_lock(self, **terms: Any) -> Any:
        """Some of the names, or one of them by itself."""
        if random.random() < 0.3:
            return self.face.locks.lock(self.some_name(), TIMEOUT_S, **terms)
        names = random.sample(range(self.names), random.choice([2, 3]))
        return self.face.locks.multi_lock([f"{self.kind}:{number}" for number in names], TIMEOUT_S, **terms)

    async def hold(self, lock: Any) -> None:
        if not hasattr(lock, "names"):
            await super().hold(lock)
            return
        since = now()
        until = await self.believe(lock, since)
        lost: set[str] = set()

        async def release() -> None:
            try:
                await done(lock.release())
            except LocksLost as error:
                lost.update(map(str, error.losses))

        ending = await self.ended(release)
        for name in lock.names:
            self.note(name, since, until, "lost" if name in lost else ending)


KINDS: dict[str, type[Worker]] = {
    worker.kind: worker for worker in (Exclusive, Reentrant, ReadWrite, Fair, Semaphore, Multi)
}
