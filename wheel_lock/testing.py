"""For tests of programs that use the package: a clock that is moved by hand, and a context on an embedded server.

with fake_context() as context:
    with context.lock("order:42") as lock:
        ...

clock = ManualClock()
timer = HashedWheelTimer(clock=clock)
timer.new_timeout(task, delay=30.0)
clock.advance(30.0)                     # the task runs, without any sleep

The embedded server is for tests and demos only. It listens on loopback and requires a password. A client that has
it can run Python in the process, by scripts of fakeredis.
"""

from __future__ import annotations

import math
import secrets
import threading
from functools import partial
from typing import Any

import redis

from wheel_lock.context import LockContext
from wheel_lock.errors import missing_extra
from wheel_lock.runtime.clock import Clock, Wakeable
from wheel_lock.runtime.greenlets import new_gate, start_helper_thread
from wheel_lock.runtime.timer import HashedWheelTimer
from wheel_lock.runtime.timer_threads import on_timer_thread
from wheel_lock.runtime.weak_registry import WeakRegistry

_TURN_S = 10.0  # real seconds within which a thread must have turned; only a bug takes longer
_POLL_S = 0.02  # the longest time for which the embedded server does not notice that it is to stop


class ManualClock:
    """A clock whose time changes only by :meth:`advance` and :meth:`jump`.

    Timers on it run their threads as usual, but sleep until it is moved. A lease still expires on its *server* by the
    server's own time.

    Args:
        now: The initial time, in seconds.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._loops: WeakRegistry[Wakeable] = WeakRegistry()

    def now(self) -> float:
        """Return the current time of this clock, in seconds."""
        return self._now

    def sleep_s(self, remaining_s: float) -> float | None:
        """Return 0 if ``remaining_s`` has passed, else None: sleep until woken."""
        return 0.0 if remaining_s <= 0 else None

    def attach(self, loop: Wakeable) -> None:
        """Note a timer whose thread must turn when the clock is moved."""
        self._loops.add(loop)

    def advance(self, seconds: float) -> None:
        """Advance the time, and return when every running timer has processed all entries that became due.

        The clock stops at each due moment, so an action that repeats every second runs ten times in ten seconds, and each
        time the server's replies are awaited.

        Args:
            seconds: By how much, in seconds; finite and not negative.

        Raises:
            ValueError: ``seconds`` is negative or not finite.
        """
        target = self._now + _forward(seconds)
        self._settle()  # requests that have just been made must be on the wheel before time passes
        while self._now < target:
            moments = [loop.next_due_at() for loop in self._loops if loop.running]
            due = min([moment for moment in moments if moment is not None], default=target)
            self._now = min(max(due, self._now), target)
            self._settle()

    def jump(self, seconds: float) -> None:
        """Advance the time in one step, as after the suspension of a machine; arguments as for :meth:`advance`."""
        _forward(seconds)
        self._settle()
        self._now += seconds
        self._settle()

    def _settle(self) -> None:
        for loop in self._loops:
            settle(loop)


def _forward(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a clock moves by a finite number of seconds that is not negative, not by {seconds!r}")
    return seconds


def settle(loop: Wakeable) -> None:
    """Wait until a running timer has turned once more and no request of its engines waits for a reply.

    A request that gets no reply within about 0.1 s is not awaited any longer: its time limit has not passed.
    """
    if not loop.running or loop.in_thread:
        return
    for _ in range(100):
        turned = new_gate()
        loop.post(turned.release)
        if not turned.acquire(timeout=_TURN_S):
            raise RuntimeError(f"the thread {loop.name} does not turn")
        if not loop.busy:
            return
        threading.Event().wait(0.001)  # in real time: for a server's reply


class EmbeddedServer:
    """fakeredis as a server on loopback, in threads of this process, for tests and demos.

    Clients need its password, a new one for each server, which ``url`` and :meth:`client` carry: other users of the machine
    cannot connect. A client that has it can run Python in this process, by scripts, and by RESTORE.

    Attributes:
        port: The TCP port on 127.0.0.1.
        password: The password for clients, as in ``redis.Redis(port=server.port, password=server.password)``.

    Raises:
        ModuleNotFoundError: fakeredis is not installed: the message names the extra.
    """

    def __init__(self) -> None:
        try:
            from wheel_lock.embedded import Server
        except ModuleNotFoundError as error:
            raise missing_extra(__name__, "testing", error) from error

        self.password: str = secrets.token_urlsafe(32)
        self._server = Server(self.password)
        self.port: int = self._server.server_address[1]
        serve = partial(self._server.serve_forever, _POLL_S)
        self._thread = threading.Thread(target=serve, name="embedded-redis", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the server, including the password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """Return a client of the server; ``options`` are arguments of ``redis.Redis``."""
        return redis.Redis(**{"host": "127.0.0.1", "port": self.port, "password": self.password, **options})

    def close(self) -> None:
        """Stop the server. A second call does nothing. A finaliser on its thread, or a timer's, does not wait for that."""
        if not self._thread.is_alive():
            return
        if on_timer_thread() or threading.current_thread() is self._thread:
            start_helper_thread(self.close)
        else:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(timeout=5.0)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class FakeContext(LockContext):
    """A context with its own embedded ``server``, which is stopped when the context is closed."""

    def __init__(self, clock: Clock | None, timer: HashedWheelTimer | None, **options: Any) -> None:
        self._own_timer = None if clock is None else HashedWheelTimer(clock=clock)
        self.server: EmbeddedServer = EmbeddedServer()
        try:
            super().__init__(self.server.client(), timer=self._own_timer or timer, **options)
        except BaseException:
            self.server.close()
            raise

    def close(self, timeout: float | None = None) -> None:
        """Close the context within ``timeout`` seconds, then its own timer if it has one, then the server."""
        if on_timer_thread():  # in a finaliser; a timer cannot be stopped on its own thread
            start_helper_thread(partial(self.close, timeout))
            return
        super().close(timeout)
        if self._own_timer is not None:
            self._own_timer.stop()
        self.server.close()


def fake_context(*, clock: Clock | None = None, timer: HashedWheelTimer | None = None, **options: Any) -> FakeContext:
    """Start an embedded server and return a ready context for it. Needs the extra ``testing`` (fakeredis).

    Args:
        clock: A clock, for which the context gets a timer of its own.
        timer: A timer; by default the one that the process shares.
        options: As for :class:`wheel_lock.LockContext`.

    Returns:
        A context; close it, or use it in a ``with`` statement.

    Raises:
        ValueError: Both a clock and a timer are given.
    """
    if clock is not None and timer is not None:
        raise ValueError("fake_context() takes a clock or a timer, not both: a timer has its clock already")
    return FakeContext(clock, timer, **options)
