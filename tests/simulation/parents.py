"""A process that has forked, beside its child.

There is one copy of a process's memory here, and the child has it. So the parent runs no code: a stand-in goes on with
what can be seen of it, its connections and the renewals of its locks. What a child can do to its parent goes through what
the two share, which are sockets, the poller and the waker. Each use of them breaks the rule, whatever came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.network import Poller, Sock
from tests.simulation.record import MAJORITY, Belief
from wheel_lock.lease import State, local_deadline
from wheel_lock.protocol import scripts

if TYPE_CHECKING:
    from tests.simulation.processes import Process

_RENEWALS = 6


class Waker:
    """Nothing sleeps, so nothing is woken."""

    def wake(self) -> None: ...

    clear = close = wake

    def fileno(self) -> int:
        return -1


class _ParentsWaker(Waker):
    """The parent's: the child may close its copy."""

    touched: Callable[[str], None]

    def wake(self) -> None:
        self.touched("wakes the parent")

    def clear(self) -> None:
        self.touched("takes a wake-up of the parent's")

    def close(self) -> None: ...


class _ParentsPoller(Poller):
    """The same for the poller."""

    touched: Callable[[str], None]

    def poll(self, timeout_s: float | None) -> list[tuple[int, int]]:
        self.touched("polls what the parent watches")
        return []

    def watch(self, sock: Any, events: int, watch: Any) -> None:
        self.touched("changes what the parent watches")

    unwatch: Any = watch


class _ParentsSock(Sock):
    """A socket of the parent's. The child may detach itself from it; to close a connection shuts it down for both."""

    __slots__ = ()

    def arrive(self, data: bytes) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def send(self, data: bytes | memoryview) -> int:
        self._touched("sends on")
        return len(data)

    def recv(self, most: int) -> bytes:
        self._touched("reads from")
        raise BlockingIOError

    def close(self) -> None:
        if not self.closed:
            self._touched("closes")

    def shutdown(self, how: int) -> None:
        self._touched("shuts down")

    def setsockopt(self, level: int, option: int, value: object) -> None:
        self._touched("changes")

    def _touched(self, does: str) -> None:
        _touched(self.wire.link.process, f"{does} a connection of the parent's to {self.wire.link.host.name}")


class Parent:
    """The parent: made in the moment of the fork, before the child does anything."""

    def __init__(self, process: Process, beliefs: list[Belief]) -> None:
        self._world = process.world
        self._beliefs = [
            belief for belief in beliefs if belief.host != MAJORITY and belief.lease.state < State.EXTENDING
        ]
        for belief in self._beliefs:  # in which nothing is about to change
            belief.until = process.clock.moment_of(belief.deadline)
        self._wires = [wire for link in process.links.values() for wire in link.wires]
        for wire in self._wires:
            wire.sock.__class__ = _ParentsSock
        for shared, kind in ((process.timer._poller, _ParentsPoller), (process.timer._waker, _ParentsWaker)):
            if shared is not None:
                shared.__class__ = kind  # type: ignore[assignment]
                shared.touched = partial(_touched, process)  # type: ignore[union-attr]
        self._world.scheduler.after(0.0, partial(self._goes_on, _RENEWALS))

    def _goes_on(self, renewals: int) -> None:
        """Renew what is held, and come back; in the end the parent is killed."""
        if not renewals or self._world.calm or self._world.over:
            for wire in self._wires:
                wire.hang_up(resets=False)
            for belief in self._beliefs:
                belief.until = min(belief.until, self._world.scheduler.now)
            return
        for belief in self._beliefs:
            self._renew(belief)
        self._world.scheduler.after(0.2, partial(self._goes_on, renewals - 1))

    def _renew(self, belief: Belief) -> None:
        """Renew a lock of the parent's, as if by a message that takes no time, if it is as the parent knows it."""
        world, key, token = self._world, belief.name, belief.token
        host, timeout_s = world.host_of(key), belief.lease.group.timeout_s
        ours = host.server.data.get(key) == token  # of some types the holder is not the key's value: they expire
        if not ours or host.paused or not host.alive or world.scheduler.now > belief.until or belief.lease.limits:
            return
        session = host.server.connect(lambda data: None)
        words = [b"EVAL", scripts.RENEW.plain.source, b"0", b"%d" % (timeout_s * 1000), key, token]
        host.server.handle(session, words)
        host.server.disconnect(session)
        renewed = min(local_deadline(world.scheduler.now, timeout_s), world.rules.promised(belief))
        if renewed > belief.until:
            belief.until = renewed
            world.rules.exercised["fork"] += 1
            world.scheduler.note("the parent renews %s with %s until %.3f", key, token, renewed)


def _touched(process: Process, does: str) -> None:
    if not process.world.over:
        process.world.rules.broken("fork", f"{process.name}, a forked child, {does}")
