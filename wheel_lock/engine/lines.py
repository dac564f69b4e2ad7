"""Lines: the callers of a process that wait for one name.

Only the first in a line contends on the server; the others stand behind it in the order of their arrival. It tries
again when it is woken by a release, when the holder's lease would end, and, because wake-ups can be lost, when it has
not heard anything for a while. Its own process's releases need no message at all: the try follows the release on the
same connection. Before there is a line, those who come while somebody asks for the first time wait for what he hears.

The algorithm is the usual one for a lock with pub/sub (Redisson's): subscribe, try once more, then wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from wheel_lock.engine.acquiring import Acquire
from wheel_lock.engine.requests import PATIENCE
from wheel_lock.engine.waiting import Acquisition, copied
from wheel_lock.errors import ContextClosed, TooManyLocks, WheelLockError
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.protocol.names import wake_channel
from wheel_lock.wheel import WheelEntry

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine

_LINGER_S = 2.0  # a subscription outlives its last waiter for so long: the next one may come at once
_IN_A_ROW = 16  # grants that pass from hand to hand within a process before other processes get their chance
_FIRST_LOOK_S = 0.1


class Line(WheelEntry):
    """The callers of this process that wait for one name. On the wheel it waits for its next look."""

    __slots__ = (
        "_again",
        "_engine",
        "_in_a_row",
        "_key",
        "_lines",
        "_listens",
        "_rivals",
        "_subscribed",
        "_trying",
        "_waiters",
        "_yielding",
        "channel",
        "group",
        "holder",
    )

    def __init__(self, lines: Lines, engine: Engine, key: bytes) -> None:
        self.tick = -1
        self.group = PATIENCE
        self._lines = lines
        self._engine = engine
        self._key = key
        self.channel = wake_channel(key)
        # Ordered, because taking the first of many out of a plain dict again and again is quadratic.
        self._waiters: OrderedDict[Acquisition, None] = OrderedDict()
        self.holder: Lease | None = None  # where the lock is held by this process, and was granted to this line
        self._trying: Acquire | None = None
        self._again = False  # woken while a try was under way, which may have been refused just before
        self._listens = False
        self._subscribed = False
        self._yielding = False
        self._rivals = 0  # other processes that listened at the last release
        self._in_a_row = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def __iter__(self) -> Iterator[Acquisition]:
        return iter(self._waiters)

    @property
    def _first(self) -> Acquisition:
        return next(iter(self._waiters))

    @property
    def held_here(self) -> bool:
        """Whether the lock is held by this process, and was granted to this line."""
        holder = self.holder
        # One that is not renewed says nothing when somebody else takes its key away.
        return holder is not None and holder.state <= EXTENDING and not holder.at_limit

    # -- who stands in it --------------------------------------------------------------------------------------------

    def join(self, waiter: Acquisition) -> None:
        """Stand at the end."""
        waiter.line = self
        self._waiters[waiter] = None
        self._lines.waiting += 1
        if len(self._waiters) > 1:
            return
        if not self._listens:
            self._listens = True
            self._lines.wakeups.listen(self.channel, self)
        if self._subscribed and not self.held_here:
            self._try()  # what was published since its own try, nobody has listened to
        else:
            self._look_later()

    def leave(self, waiter: Acquisition) -> None:
        """Stand there no more. The caller ends a try that is under way."""
        if self._waiters.pop(waiter, self) is self:
            return
        self._lines.waiting -= 1
        trying = self._trying
        if trying is not None and trying is waiter._request:
            self._trying = None
            # After the clean-up of the try that is given up, which follows in this very turn.
            self._engine.timer.post(self._try)
        if not self._waiters:
            self.linger()

    def linger(self) -> None:
        """Nobody stands in it: close it, unless somebody comes soon."""
        self._yielding = False
        self._schedule(_LINGER_S)

    def disperse(self) -> list[Acquisition]:
        """Send everybody away, without a word; return who stood in it."""
        waiters = list(self._waiters)
        self._waiters.clear()
        self._trying = None
        self._engine.timer.wheel.cancel(self)
        return waiters

    def time_is_up(self, waiter: Acquisition) -> None:
        """A waiter's time is up: the first gets a last try, because nothing else may have told it that it is free."""
        if waiter is not self._first:
            self._go(waiter).refuse()
            return
        waiter.last = True
        if self._trying is None:
            if self.held_here:
                self._go(waiter).refuse()
            else:
                self._try()

    def _go(self, waiter: Acquisition) -> Acquisition:
        self.leave(waiter)
        return waiter

    def fail(self, error: Exception) -> None:
        """Whatever kept the first from asking the server keeps all of them."""
        waiters = list(self._waiters)
        for waiter in waiters:
            self._go(waiter).fail(copied(error))

    # -- what wakes the first ----------------------------------------------------------------------------------------

    def listening(self, holds: bool) -> None:
        """The subscription begins to hold, or does not: what was published before was not heard, so look once more."""
        self._subscribed = holds
        if holds:
            self.woken()

    def woken(self) -> None:
        """Somebody has released the lock."""
        if not self._waiters or self._yielding or self.held_here:
            return
        if self._trying is not None:
            self._again = True
        else:
            self._try()

    def ended(self, lease: Lease) -> None:
        """A lease of this process on this name has ended; a release of it has just been sent."""
        if self.held_here and self.holder is not lease:
            return
        self.holder = None
        if not self._waiters or self._yielding:
            return
        self._in_a_row += 1
        if self._trying is not None:
            self._again = True
        elif self._rivals > 0 and self._in_a_row >= _IN_A_ROW:
            self._in_a_row = 0
            self._yielding = True
            self._schedule(self._engine.timer.scale.tick_s)
        else:
            self._try()

    def late(self, now: float) -> None:
        """Nothing was heard for a while: look."""
        if self in self._engine.timer.wheel:
            return  # scheduled anew by something else that came due in the same step
        self._yielding = False
        if not self._waiters:
            self._lines.close(self)
        elif self._trying is None:
            # Who has said how often he wants to look does so also here: the key may have been released behind our back.
            if self.held_here and self._first.options.fallback_s is None:
                self._look_later()
            else:
                self._try()

    def listened(self, woken: int) -> None:
        """A release has woken so many listeners, on all servers' connections together."""
        self._rivals = woken - self._subscribed

    # -- trying ------------------------------------------------------------------------------------------------------

    def _try(self) -> None:
        if self._trying is not None or not self._waiters:
            return
        self._again = self._yielding = False
        self._engine.timer.wheel.cancel(self)
        first = self._first
        first.try_once(partial(self._tried, first), waiting=True)
        if first.line is self and not first.request.operation.done:
            self._trying = first.request

    def _tried(self, waiter: Acquisition) -> None:
        request = waiter.request
        self._trying = None
        if waiter.over:
            return
        error = request.operation.error
        if error is not None:
            self.fail(error)
        elif request.operation.result():
            self.holder = request.lease
            self._go(waiter).succeed(request.lease)
            if self._waiters:
                self._look_later()
        else:
            if not self.held_here:
                self.holder = None
                self._in_a_row = 0
            if waiter.last:
                self._go(waiter).refuse()
            if self._again:
                self._try()
            elif self._waiters:
                self._look_later(request.retry_ms)

    def _look_later(self, retry_ms: int | None = None) -> None:
        """Look when the holder's lease would end, but not too late: its release may go unheard, or be published by nobody.

        The longer it has been waited for, the less a moment more matters: so the looks come further and further apart.
        """
        first = self._first
        pause_s = first.options.fallback_s
        if pause_s is None:
            waited_s = self._engine.timer.now - first.began_at
            pause_s = min(max(_FIRST_LOOK_S, waited_s), self._engine.options.fallback_s)
        if retry_ms is not None:
            pause_s = min(pause_s, (retry_ms + 1) / 1000)  # a millisecond more, because the server rounds down
        self._schedule(pause_s)

    def _schedule(self, pause_s: float) -> None:
        timer = self._engine.timer
        timer.wheel.cancel(self)
        timer.wheel.schedule(self, timer.scale.ceil(timer.clock.now() + pause_s))


class Lines:
    """All the lines of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.wakeups = engine.wakeups
        self.forget()

    def forget(self) -> None:
        """Start empty, without a word: in a forked child."""
        self._lines: dict[bytes, Line] = {}
        self.asking: dict[bytes, Acquisition] = {}  # for the first time, and ready to wait
        self.pollers: set[Acquisition] = set()
        self.waiting = 0

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def count(self) -> int:
        """How many callers wait."""
        return self.waiting + len(self.pollers)

    def find(self, key: bytes) -> Line | None:
        """Return the line for a name if there is one to stand in: somebody does, or somebody of this process holds it."""
        line = self._lines.get(key)
        return line if line is not None and (line or line.held_here) else None

    def open(self, key: bytes) -> Line:
        """Return the line for a name, a new one where there is none."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = Line(self, self._engine, key)
            line.linger()
        return line

    def close(self, line: Line) -> None:
        """Nobody has stood in it for a while."""
        if self._lines.get(line._key) is line:  # else all were sent away in the very step in which it came due
            del self._lines[line._key]
            self.wakeups.ignore(line.channel)

    def refusal(self, name: str | bytes) -> WheelLockError | None:
        """Return why one more may not wait, or None if it may."""
        if self._engine.closed:
            return ContextClosed("The context has been closed", name)
        most = self._engine.options.max_waiting
        if most is not None and self.count >= most:
            return TooManyLocks(f"{most} callers wait for locks already, which is the limit of this context", name)
        return None

    def ended(self, lease: Lease) -> None:
        """A lease of this process has ended; if it was released, the release has been sent."""
        if self._lines and (line := self._lines.get(lease.key)) is not None:
            line.ended(lease)

    def listened(self, lease: Lease, woken: int) -> None:
        """The release of a lease has woken so many listeners."""
        if self._lines and (line := self._lines.get(lease.key)) is not None:
            line.listened(woken)

    def fail(self, error: Exception) -> None:
        """Nobody will get anything any more."""
        waiters = self._disperse()
        for waiter in waiters:
            waiter.fail(copied(error))

    def dissolve(self) -> None:
        """Nobody will get anything any more, and nobody is told: at the end of the interpreter it would only be noise."""
        for waiter in self._disperse():
            waiter.over = True

    def _disperse(self) -> list[Acquisition]:
        waiters = list(self.pollers)
        wheel = self._engine.timer.wheel
        for line in self._lines.values():
            waiters.extend(line.disperse())
        for first in list(self.asking.values()):
            waiters.append(first)
            waiters.extend(first.step_aside() or ())
        self.pollers.clear()
        self._lines.clear()
        self.waiting = 0
        for waiter in waiters:
            wheel.cancel(waiter)
            waiter.line = None
            waiter.abort()
        return waiters
