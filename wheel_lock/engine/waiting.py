"""One caller's wait for one lock, from its first try to the grant, the refusal, or the end of his patience."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from wheel_lock.engine.acquiring import Acquire
from wheel_lock.engine.operation import Operation
from wheel_lock.engine.requests import PATIENCE
from wheel_lock.lease import EXTENDING, Lease
from wheel_lock.options import LockOptions
from wheel_lock.protocol.resp import fragment
from wheel_lock.tokens import new_token
from wheel_lock.wheel import WheelEntry

if TYPE_CHECKING:
    from wheel_lock.engine.engine import Engine
    from wheel_lock.engine.lines import Line


def _nobody() -> None:
    """Who is told of a result that nobody waits for."""


def copied(error: Exception) -> Exception:
    """Return an exception for another caller: a traceback belongs to one."""
    another = copy.copy(error)
    another.__cause__ = error.__cause__
    return another


class Acquisition(WheelEntry):
    """One caller's wait for one lock, from its first try to the grant, the refusal, or the end of his patience.

    It completes with the lease, or with None where it was not granted in time. On the wheel it waits for the end of
    its time, or, where it polls, for its next try. Timer's thread only, but for the constructor.

    Args:
        engine: Whose lock.
        key: The lock's name as the server knows it.
        options: How to acquire; whether it may wait and how long are given apart.
        lease: The lease of the first try. Each later one gets its own, with a token of its own unless that was given, so
            that what cleans up after a try whose outcome is not known cannot meet the grant of the next.
        token_given: The caller has chosen the token.
        blocking: Whether to wait.
        until: When to stop waiting, in seconds of the timer's clock; None for never.
        operation: What to complete.
    """

    __slots__ = (
        "_attempts",
        "_behind",
        "_blocking",
        "_engine",
        "_key",
        "_request",
        "_template",
        "_token_given",
        "began_at",
        "group",
        "last",
        "lease",
        "line",
        "operation",
        "options",
        "over",
        "until",
    )

    def __init__(
        self,
        engine: Engine,
        key: bytes,
        options: LockOptions,
        lease: Lease,
        token_given: bool,
        blocking: bool,
        until: float | None,
        operation: Operation[Lease | None],
    ) -> None:
        self.tick = -1
        self.group = PATIENCE
        self._engine = engine
        self._key = key
        self._template = lease
        self._token_given = token_given
        self._blocking = blocking
        self._request: Acquire | None = None
        self._behind: list[Acquisition] | None = None  # who came while it asked for the first time
        self._attempts = 0
        self.options = options
        self.until = until
        self.operation = operation
        self.lease: Lease | None = None
        self.line: Line | None = None
        self.over = False
        self.last = False  # its time is up; the try that is under way is the last
        self.began_at = 0.0

    @property
    def _polls(self) -> bool:
        return self.options.retry_every_s is not None

    def begin(self) -> None:
        """Try, or join the line if there is one, or wait for what somebody hears who asks just now."""
        if self.over:
            return
        self.began_at = self._engine.timer.now
        if not self._blocking or self._polls:
            self.try_once(self._tried, waiting=False)
            return
        lines = self._engine.lines
        if lines.find(self._key) is not None:
            self._stand_in()
            return
        ahead = lines.asking.setdefault(self._key, self)
        if ahead is self:
            self.try_once(self._answered, waiting=False)
        elif ahead._behind is None:
            ahead._behind = [self]
        else:
            ahead._behind.append(self)

    def try_once(self, tried: Callable[[], object], *, waiting: bool) -> None:
        """Ask the server once; ``tried()`` is called when it has answered, or will not."""
        operation: Operation[bool] = Operation(tried)
        lease = self._template if self._attempts == 0 else self._another_lease()
        self._request = request = Acquire(self._engine, lease, self.options, operation, waiting=waiting)
        self._attempts += 1
        request.begin()

    def _another_lease(self) -> Lease:
        first = self._template
        wire = first.fragment if self._token_given else fragment(self._key, new_token())
        return Lease(first.name, wire, first.group, first.owner, first.on_lost, first.place)

    @property
    def request(self) -> Acquire:
        """The latest try."""
        assert self._request is not None
        return self._request

    def _answered(self) -> None:
        """The first try of one that may wait: what it has heard goes for those who came meanwhile, too."""
        behind, request = self.step_aside(), self.request
        self._tried()
        if behind:
            if request.operation.error is not None:
                for waiter in behind:
                    waiter.fail(copied(request.operation.error))
                return
            if request.operation.result():
                self._engine.lines.open(self._key).holder = request.lease
            for waiter in behind:
                waiter.begin()

    def step_aside(self) -> list[Acquisition] | None:
        """It asks for the first time no more, so it stands in nobody's way; return who came behind."""
        self._engine.lines.asking.pop(self._key, None)
        behind, self._behind = self._behind, None
        return behind

    def _tried(self) -> None:
        if self.over:
            return
        request = self.request
        if request.operation.error is not None:
            self.fail(request.operation.error)
        elif request.operation.result():
            self.succeed(request.lease)
        elif not self._blocking:
            self.refuse()
        elif self._polls:
            self._poll()
        else:
            self._stand_in()

    def _stand_in(self) -> None:
        if self._may_wait():
            if self.until is not None:
                self._wake_at(self.until)
            self._engine.lines.open(self._key).join(self)

    def _may_wait(self) -> bool:
        refusal = self._engine.lines.refusal(self._key)
        if refusal is not None:
            self.fail(refusal)
        return refusal is None

    def _poll(self) -> None:
        now, pause_s = self._engine.timer.clock.now(), self.options.retry_every_s
        assert pause_s is not None
        if self._attempts == self.options.max_attempts or (self.until is not None and now >= self.until):
            self.refuse()
            return
        if self not in self._engine.lines.pollers:
            if not self._may_wait():
                return
            self._engine.lines.pollers.add(self)
        # Cut short so that the last try comes when the time is up.
        self._wake_at(now + pause_s if self.until is None else min(now + pause_s, self.until))

    def _wake_at(self, when: float) -> None:
        self._engine.timer.wheel.schedule(self, self._engine.timer.scale.ceil(when))

    def late(self, now: float) -> None:
        """The wheel says that the time has come."""
        if self.line is not None:
            self.line.time_is_up(self)
        elif not self.over:
            self.try_once(self._tried, waiting=False)

    def _end(self) -> None:
        self.over = True
        self.line = None
        if self.tick >= 0:
            self._engine.timer.wheel.cancel(self)
            self._engine.lines.pollers.discard(self)

    def succeed(self, lease: Lease) -> None:
        """It is granted."""
        self._end()
        self._request = None  # which knows us, too: nothing should be left to the garbage collector
        self.lease = lease
        self.operation.complete(lease)

    def refuse(self) -> None:
        """It is not granted in time."""
        self._end()
        self._request = None
        self.operation.complete(None)

    def fail(self, error: Exception) -> None:
        """The server could not be asked."""
        self._end()
        self._request = None
        self.operation.fail(error)

    def give_up(self) -> None:
        """The caller waits no more, or never hears: undo what was granted, or may have been."""
        if self.over:
            if self.lease is not None and self.lease.state <= EXTENDING:
                self._engine.release_many([self.lease], Operation(_nobody))
            return
        line = self.line
        self._end()
        if line is not None:
            line.leave(self)
        self.abort()
        if self._engine.lines.asking.get(self._key) is self:
            for waiter in self.step_aside() or ():
                waiter.begin()

    def abort(self) -> None:
        """End the try that is under way, if there is one, and undo what it may have been granted."""
        if self._request is not None:
            self._request.operation = Operation(_nobody)
            self._request.give_up()
