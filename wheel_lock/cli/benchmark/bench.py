"""A benchmark of a user's own server: what it costs to keep locks alive there.

Every name begins with the prefix and a random id, and all locks are released at the end, whatever ends it. Nothing is
printed here.
"""

from __future__ import annotations

import itertools
import math
import secrets
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from wheel_lock import HashedWheelTimer, Lock, LockContext, LockServerError, WheelLockError
from wheel_lock.cli import server
from wheel_lock.cli.benchmark.figures import TTL_S, Figures, Held
from wheel_lock.cli.measure import per, read
from wheel_lock.cli.output import Progress
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.cli.target import FAILURES, Target

THREADS = (1, 16)  # numbers of threads that acquire and release
_FEW = 1_000  # the smaller number of held locks
_MODERATE_PER_S = 5_000  # renewals per second
_MOST_SATURATED = 10_000  # number of locks; renewed every 0.02 s they exceed what a server can do
_SATURATED_EVERY_S = 0.02
_AT_ONCE = 1_000  # size of a bulk acquire
_NAMES_PER_THREAD = 64
_MOST_PINGS = 50_000
_SLICE_S = 0.2
_LIMIT_S = 10.0  # time limit of a step, beside its share, until its first figure
_WAITING_S = 0.004  # time for the waiter's subscription
_RELEASED_PER_S = 20_000  # locks per second; a tenth of the rate of a slow machine


class Stopped(Exception):
    """A signal has ended the benchmark."""


class Bench:
    """The steps of one benchmark.

    Args:
        target: The server.
        figures: The parameters, and what has been measured so far.
        watch: Shows the progress.
    """

    def __init__(self, target: Target, figures: Figures, watch: Progress) -> None:
        self._target = target
        self._prefix = figures.prefix
        self._watch = watch
        self._names: set[str] = set()
        self._busy_cores: float | None = None
        self._done_s = 0.0
        self._stopped = False
        self.figures = figures
        figures.prefix += f"{secrets.token_hex(4)}:"

    def run(self) -> None:
        """Measure everything, one step after the other.

        A signal or a failure of the server ends the measurement early, which the figures say.

        Raises:
            ServerTrouble: The server does not grant a single lock.
            KeyboardInterrupt: A second signal has come.
        """
        steps: list[tuple[str, float, Callable[[float], None]]] = [
            ("round trips", 1, self._round_trips),
            ("the server before", 1, self._idle),
            *[
                (f"holding {n:,} locks", 4, partial(self._holding, n))
                for n in sorted({min(_FEW, self.figures.locks), self.figures.locks})
            ],
            ("renewing as fast as possible", 4, self._saturate),
            *[(f"acquiring and releasing, {n} at once", 2, partial(self._pairs_by, n)) for n in THREADS],
            ("handing over", 2, self._hand_over),
        ]
        weights = sum(weight for _, weight, _ in steps)
        with self._signals_noted():
            self._check()
            for what, weight, step in steps:
                self._watch.stage(what, self._done_s / self.figures.seconds)  # its failure is not the server's
                share_s = self.figures.seconds * weight / weights
                try:
                    step(share_s)
                except Stopped:
                    break
                except (WheelLockError, *FAILURES) as error:
                    self.figures.trouble = f"the server {self._target.address} failed: {_reason(error)}"
                    break
                self._done_s += share_s
            else:
                self._estimate()
            self.figures.left_at_server = self._target.existing(self._names)

    # -- the steps ---------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Acquire and release one lock. Raises ServerTrouble if the server does not allow it."""
        try:
            with self._context() as context, context.lock(self._name("check"), TTL_S):
                pass
        except WheelLockError as error:
            reason = _reason(error)
            if isinstance(error, LockServerError) and error.code == "READONLY":
                reason = "it is a read-only replica; choose the URL of its master"
            elif "access one of the keys" in reason or "access a key" in reason:
                reason += f"; choose names that it may access with --prefix, not {self._prefix!r}"
            raise ServerTrouble(f"cannot hold locks on {self._target.address}: {reason}") from error

    def _round_trips(self, seconds: float) -> None:
        client, until = self._target.masters[0], time.monotonic() + seconds
        client.ping()  # connects
        taken: list[float] = []
        while not taken or (len(taken) < _MOST_PINGS and time.monotonic() < until):
            self._look()
            began = time.perf_counter()
            client.ping()
            taken.append(time.perf_counter() - began)
        taken.sort()
        self.figures.round_trip_p50_s = statistics.median(taken)
        self.figures.round_trip_p99_s = taken[math.ceil(0.99 * len(taken)) - 1]

    def _idle(self, seconds: float) -> None:
        began, used = time.monotonic(), self._target.cpu_s()
        self._pause(seconds)
        after = self._target.cpu_s()
        if used is None or after is None:
            self._lacks("CPU of the server", self._target.cpu_unknown())
        else:
            self._busy_cores = self.figures.server_busy_cores = max(after - used, 0.0) / (time.monotonic() - began)

    def _holding(self, locks: int, seconds: float) -> None:
        held = self._hold(locks, min(TTL_S / 3, max(seconds / 2, locks / _MODERATE_PER_S)), seconds)
        self.figures.held.append(held)
        if held.lag_p50_s is None:
            self._lacks(f"lag with {held.locks:,} held", "nothing was renewed in that time")

    def _saturate(self, seconds: float) -> None:
        self.figures.saturated = self._hold(min(self.figures.locks, _MOST_SATURATED), _SATURATED_EVERY_S, seconds)

    def _hold(self, locks: int, every_s: float, seconds: float) -> Held:
        """Hold locks for a while. The server has as much time again to grant them; those that it has granted count."""
        with self._context() as context:
            kept, held = list[dict[str, Lock | None]](), 0
            until = time.monotonic() + seconds
            while not kept or (held < locks and time.monotonic() < until):
                self._look()
                names = [self._name(str(number)) for number in range(held, min(held + _AT_ONCE, locks))]
                kept.append(context.acquire_many(names, TTL_S, renew_every=every_s))
                held += len(names)
            if held < locks:
                self._lacks(f"{locks:,} held", f"only {held:,} were granted within {seconds:.2g} s")
            begin = read(context, self._target.cpu_s())
            self._pause(seconds)
            give_up = time.monotonic() + _LIMIT_S
            while context.stats().renewed == begin.stats.renewed and time.monotonic() < give_up:
                self._pause(_SLICE_S)
            end = read(context, self._target.cpu_s())
            for master in self._target.masters:
                master.ping()  # figures without a server mean nothing
            self.figures.lost += end.stats.lost
        passed_s, renewed = end.at - begin.at, end.stats.renewed - begin.stats.renewed
        client_s = end.wheel_cpu_s - begin.wheel_cpu_s
        server_s = None
        if begin.server_cpu_s is not None and end.server_cpu_s is not None and self._busy_cores is not None:
            server_s = max(end.server_cpu_s - begin.server_cpu_s - self._busy_cores * passed_s, 0.0)
        return Held(
            locks=held,
            renew_every_s=every_s,
            renewed=renewed,
            renewals_per_s=per(renewed, passed_s),
            lag_p50_s=end.stats.renewal_lag_p50_s if renewed else None,
            lag_p99_s=end.stats.renewal_lag_p99_s if renewed else None,
            client_cores=per(client_s, passed_s),
            client_us_per_renewal=per(client_s * 1e6, renewed),
            server_cores=per(server_s, passed_s),
            server_us_per_renewal=per(None if server_s is None else server_s * 1e6, renewed),
        )

    def _pairs_by(self, threads: int, seconds: float) -> None:
        with self._context() as context, ThreadPoolExecutor(threads) as pool:
            with context.lock(self._name("check"), TTL_S):
                pass  # connects
            began = time.monotonic()
            crew = [pool.submit(self._pairs, context, thread, began + seconds) for thread in range(threads)]
            self._pause(seconds)
            pairs = sum(one.result() for one in crew)
            self.figures.pairs_per_s[threads] = pairs / (time.monotonic() - began)

    def _pairs(self, context: LockContext, thread: int, until: float) -> int:
        """Acquire and release free locks, a new lock object each time; return how many."""
        names = [self._name(f"{thread}:{number}") for number in range(_NAMES_PER_THREAD)]
        pairs = 0
        for name in itertools.cycle(names):
            if self._stopped or time.monotonic() >= until:
                break
            with context.lock(name, TTL_S):
                pairs += 1
        return pairs

    def _hand_over(self, seconds: float) -> None:
        """Two contexts, each with a thread of its own, as two processes have them."""
        name, until = self._name("hand-over"), time.monotonic() + seconds
        timer = HashedWheelTimer()
        taken: list[float] = []

        def grant(context: LockContext) -> float | None:
            lock = context.lock(name, TTL_S)
            if not lock.acquire(blocking_timeout=_LIMIT_S):
                return None
            granted = time.perf_counter()
            lock.release()
            return granted

        try:
            with self._context() as first, self._context(timer) as second, ThreadPoolExecutor(1) as pool:
                while not taken or time.monotonic() < until:
                    self._look()
                    lock = first.lock(name, TTL_S)
                    lock.acquire()
                    waiter = pool.submit(grant, second)
                    while not (second.stats().waiting or waiter.done()):
                        time.sleep(_WAITING_S / 8)
                    time.sleep(_WAITING_S)
                    released = time.perf_counter()
                    lock.release()
                    granted = waiter.result()
                    if granted is None:
                        break
                    taken.append(granted - released)
        finally:
            timer.stop()
        if taken:
            self.figures.hand_over_p50_s = statistics.median(taken)
        else:
            self._lacks("hand-over", f"the waiter was not granted the lock within {_LIMIT_S:g} s")

    def _estimate(self) -> None:
        """Estimate how many locks can be held, from the CPU time per renewal at full load."""
        figures, full, every_s = self.figures, self.figures.saturated, self.figures.timeout_s / 3
        assert full is not None
        if full.client_us_per_renewal:
            figures.client_locks = int(every_s * 1e6 / full.client_us_per_renewal)
        if full.server_us_per_renewal and self._busy_cores is not None:
            free_cores = max(figures.masters - self._busy_cores, 0.0)
            figures.server_locks = int(free_cores * every_s * 1e6 / full.server_us_per_renewal)
        if figures.server_locks is None:
            reason = self.figures.not_measured.get("CPU of the server", "it used none that could be measured")
            self._lacks("locks that the server can hold", reason)

    # -- beside them -------------------------------------------------------------------------------------------------

    def _name(self, what: str) -> str:
        name = self.figures.prefix + what
        self._names.add(name)
        return name

    def _context(self, timer: HashedWheelTimer | None = None) -> LockContext:
        close_timeout_s = 5.0 + self.figures.locks / _RELEASED_PER_S
        return server.context_of(self._target.client, timer=timer, close_timeout=close_timeout_s)

    def _lacks(self, what: str, reason: str) -> None:
        self.figures.not_measured[what] = reason

    def _look(self) -> None:
        """Raise Stopped if a signal has come."""
        if self._stopped:
            raise Stopped

    def _pause(self, seconds: float) -> None:
        began = time.monotonic()
        while (passed_s := time.monotonic() - began) < seconds:
            self._look()
            self._watch.advance((self._done_s + passed_s) / self.figures.seconds)
            time.sleep(min(_SLICE_S, seconds - passed_s))
        self._look()

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Note SIGINT and SIGTERM inside the ``with`` block, so that no step is torn; a second one interrupts it.

        One that is ignored from the start, as SIGINT in the background of a script, stays ignored.
        """

        def note(number: int, frame: FrameType | None) -> None:
            if self._stopped:
                raise KeyboardInterrupt
            self._stopped, self.figures.interrupted = True, 128 + number

        noted = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not signal.SIG_IGN]
        before: dict[int, Any] = {number: signal.signal(number, note) for number in noted}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _reason(error: BaseException) -> str:
    """Return the text of an error without the name of the lock, which says nothing to the user."""
    return server.one_line(error).partition(" (lock ")[0]
