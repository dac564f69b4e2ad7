"""A process that holds locks, so that a test can stop, kill and fork it.

It is forked by a nursery. It reads orders, a line of JSON each, from one pipe and reports on another. Every report says
what CLOCK_MONOTONIC, one clock for all processes of a host, showed before and after; losses are reported unasked. A fork
of it serves a pair of pipes of its own. The parent's side is in holders.py.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tests.faults.support import Pulse
from wheel_lock import Lock, LockContext, LostEvent

now = time.monotonic
STRANGE, STUCK_S = 3, 5


def to_monotonic() -> float:
    """What to add to a reading of the library's clock to get CLOCK_MONOTONIC's."""
    return now() - time.clock_gettime(time.CLOCK_BOOTTIME)


class Pipe:
    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def orders(self) -> Iterator[dict[str, Any]]:
        with os.fdopen(self._incoming, "rb") as lines:
            for line in lines:
                yield json.loads(line)

    def report(self, **facts: Any) -> None:
        # One write of less than PIPE_BUF bytes, so reports of several threads do not mix.
        os.write(self._outgoing, json.dumps(facts).encode() + b"\n")


class Program:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.context = LockContext.from_url(
            settings["url"], client_options={"client_name": settings["client_name"]}, **settings["context"]
        )
        self.locks: dict[str, Lock] = {}
        self.processes: dict[int, multiprocessing.process.BaseProcess] = {}
        self.pipes = deque(Pipe(*pair) for pair in settings["pipes"])
        self.pipe = self.pipes[0]
        self.pulse = Pulse()

    def serve(self) -> None:
        pipe = self.pipe = self.pipes.popleft()
        pipe.report(event="ready", pid=os.getpid())
        for order in pipe.orders():
            do = order.pop("do")
            if do == "exit":
                return
            call: Callable[..., Any] = getattr(self, f"do_{do}")
            result, error, before = None, "", now()
            try:
                result = call(**order)
            except SystemExit:
                raise  # a forked child on its way out
            except BaseException as failure:
                error = type(failure).__name__
            pipe.report(did=do, before=before, after=now(), result=result, error=error)

    def _told(self, event: LostEvent) -> None:
        told, shift = now(), to_monotonic()
        self.pipe.report(
            event="lost",
            name=event.name,
            reason=event.reason.name,
            fence=event.fence,
            at=event.at + shift,
            deadline=event.deadline + shift,
            told=told,
        )

    # What can be ordered

    def do_prepare(self, name: str, **options: Any) -> None:
        """Make a lock object and no more."""
        self.locks[name] = self.context.lock(name, on_lost=self._told, **options)

    def do_acquire(self, name: str, blocking: bool | None = None, **options: Any) -> dict[str, Any]:
        """Acquire through the lock object of that name, which is made with the options if there is none."""
        if name not in self.locks:
            self.do_prepare(name, **options)
        granted = self.locks[name].acquire(blocking)
        return {"granted": granted, **self.do_look(name)}

    def do_acquire_in_thread(self, name: str, **options: Any) -> None:
        """Wait for a lock in another thread, which then ends; the lock may be used by all threads."""
        self.do_prepare(name, thread_local=False, **options)

        def wait() -> None:
            try:
                self.pipe.report(event="acquired", granted=self.locks[name].acquire(), at=now())
            except Exception as error:
                self.pipe.report(event="failed", error=type(error).__name__)

        threading.Thread(target=wait, daemon=True).start()

    def do_acquire_many(self, prefix: str, count: int, **options: Any) -> int:
        names = [f"{prefix}{number}" for number in range(count)]
        locks = self.context.acquire_many(names, on_lost=self._told, **options)
        self.locks.update({str(name): lock for name, lock in locks.items() if lock is not None})
        return sum(lock is not None for lock in locks.values())

    def do_look(self, name: str) -> dict[str, Any]:
        lock = self.locks[name]
        held = lock.is_held  # first: it is what the stamps are about
        return {
            "held": held,
            "lost": lock.lost and lock.lost.name,
            "remaining": lock.remaining(),
            "renewals": lock.renewals,
            "token": lock.token and lock.token.decode(),
            "fence": lock.fence,
        }

    def do_held(self) -> list[str]:
        """The names of all lock objects that say they are held."""
        return sorted(name for name, lock in self.locks.items() if lock.is_held)

    def do_release(self, name: str) -> None:
        self.locks[name].release()

    def do_extend(self, name: str) -> None:
        self.locks[name].extend(1.0)

    def do_stats(self) -> dict[str, Any]:
        stats, timer = self.context.stats(), self.context.timer
        return {
            "held": stats.held,
            "listed": len(self.context.held()),
            "renewed": stats.renewed,
            "unknown": stats.unknown,
            "connects": stats.connects,
            "lost": stats.lost,
            "deaths": timer.deaths,
            "thread": timer.running,
        }

    def do_watch(self) -> None:
        """From now on notice when the machine keeps this process from running."""
        self.pulse.__enter__()

    def do_stalled(self, since: float) -> float:
        """For how many seconds it was kept from running, from a reading of CLOCK_MONOTONIC on."""
        return self.pulse.stood_s(since - to_monotonic())

    # Forks

    def do_fork(self, how: str = "fork", tidy: bool = True) -> int:
        """Fork a child that serves the next pair of pipes; `tidy` lets its interpreter end as usual."""
        if how == "fork":
            return self._fork(tidy)
        if how == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=self.serve)
            process.start()
            self.pipes.popleft()
            assert process.pid is not None
            self.processes[process.pid] = process
            return process.pid
        pids: list[int] = []
        thread = threading.Thread(target=lambda: pids.append(self._fork(False)))
        thread.start()
        thread.join()
        return pids[0]

    def _fork(self, tidy: bool) -> int:
        pid = os.fork()
        if pid == 0:
            self.serve()
            if tidy:
                sys.exit()
            os._exit(0)
        self.pipes.popleft()
        return pid

    def do_reap(self, pid: int) -> int:
        """Wait for the end of a child, and return its exit code."""
        if pid in self.processes:
            process = self.processes.pop(pid)
            process.join()
            assert process.exitcode is not None
            return process.exitcode
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(settings: str, *fds: int) -> None:
    terms = json.loads(settings)
    terms["pipes"] = list(zip(fds[::2], fds[1::2], strict=True))
    Program(terms).serve()
