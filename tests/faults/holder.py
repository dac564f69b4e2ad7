"""A process that holds locks, so that a test can fork it; and below the test's side of it.

A nursery forks it. It reads orders, a line of JSON each, from one pipe, and reports on another; losses are reported
unasked. A fork of it serves a pair of pipes of its own.
"""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.nursery import Nursery
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LostEvent

ANSWER_S = 20.0  # only a deadlock takes longer
CLIENT = "holder"


class Program:
    """The process's side. Its public methods can be ordered."""

    def __init__(self, url: str, context: dict[str, Any], pipes: list[tuple[int, int]]) -> None:
        self._context = LockContext.from_url(url, client_options={"client_name": CLIENT}, **context)
        self._locks: dict[str, Lock] = {}
        self._processes: dict[int, multiprocessing.process.BaseProcess] = {}
        self._pipes = deque(pipes)
        self._outgoing = -1

    def serve(self) -> None:
        incoming, self._outgoing = self._pipes.popleft()
        self._report("ready", os.getpid())
        with os.fdopen(incoming, "rb") as orders:
            for line in orders:
                what, arguments = json.loads(line)
                if what == "exit":
                    return
                try:
                    answer = getattr(self, what)(**arguments), ""
                except SystemExit:
                    raise  # a forked child on its way out
                except BaseException as failure:
                    answer = None, type(failure).__name__
                self._report("answer", answer)

    def _report(self, what: str, fact: object) -> None:
        # One write of less than PIPE_BUF bytes, so reports of several threads do not mix.
        os.write(self._outgoing, json.dumps([what, fact]).encode() + b"\n")

    def _told(self, event: LostEvent) -> None:
        self._report("lost", [event.name, event.reason.name])

    def acquire(self, name: str, blocking: bool | None = None, **options: Any) -> dict[str, Any]:
        """Acquire through the lock object of that name, which is made with the options if there is none."""
        if name not in self._locks:
            self._locks[name] = self._context.lock(name, on_lost=self._told, **options)
        granted = self._locks[name].acquire(blocking)
        return {"granted": granted, **self.look(name)}

    def acquire_many(self, prefix: str, count: int, **options: Any) -> int:
        names = [f"{prefix}{number}" for number in range(count)]
        locks = self._context.acquire_many(names, on_lost=self._told, **options)
        self._locks.update({str(name): lock for name, lock in locks.items() if lock is not None})
        return sum(lock is not None for lock in locks.values())

    def look(self, name: str) -> dict[str, Any]:
        lock = self._locks[name]
        return {
            "held": lock.is_held,
            "lost": lock.lost and lock.lost.name,
            "renewals": lock.renewals,
            "token": lock.token and lock.token.decode(),
            "fence": lock.fence,
        }

    def held(self) -> list[str]:
        """The names of all lock objects that say they are held."""
        return sorted(name for name, lock in self._locks.items() if lock.is_held)

    def release(self, name: str) -> None:
        self._locks[name].release()

    def extend(self, name: str) -> None:
        self._locks[name].extend(1.0)

    def stats(self) -> dict[str, Any]:
        stats, timer = self._context.stats(), self._context.timer
        listed = len(self._context.held())
        return {"held": stats.held, "listed": listed, "connects": stats.connects, "thread": timer.running}

    def fork(self, how: str, tidy: bool) -> int:
        """Fork a child that serves the next pair of pipes; `tidy` lets its interpreter end as usual."""
        if how == "multiprocessing":
            process = multiprocessing.get_context("fork").Process(target=self.serve)
            process.start()
            self._pipes.popleft()
            assert process.pid is not None
            self._processes[process.pid] = process
            return process.pid
        pids: list[int] = []
        if how == "fork":
            self._fork(pids, tidy)
        else:
            thread = threading.Thread(target=self._fork, args=(pids, False))
            thread.start()
            thread.join()
        self._pipes.popleft()
        return pids[0]

    def _fork(self, pids: list[int], tidy: bool) -> None:
        pid = os.fork()
        if pid == 0:
            self.serve()
            if tidy:
                sys.exit()
            os._exit(0)
        pids.append(pid)

    def reap(self, pid: int) -> int:
        """Wait for the end of a child, and return its exit code."""
        if pid not in self._processes:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        process = self._processes.pop(pid)
        process.join()
        assert process.exitcode is not None
        return process.exitcode


def main(settings: str, *fds: int) -> None:
    url, context = json.loads(settings)
    Program(url, context, list(zip(fds[::2], fds[1::2], strict=True))).serve()


@functools.cache
def _nursery() -> Nursery:
    nursery = Nursery("tests.faults.holder")
    atexit.register(nursery.close)
    return nursery


class Answer(NamedTuple):
    """What came of an order: a result, or the class name of an error."""

    result: Any
    error: str


class Peer:
    """Somebody at the other end of a pair of pipes who does as it is ordered.

    Attributes:
        told: The losses that it was told of: names and reasons.
    """

    def __init__(self, to_peer: int, from_peer: int) -> None:
        self._to_peer = to_peer
        self._from_peer = from_peer
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self.pid = 0
        self.told: list[tuple[str, str]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def order(self, what: str, **arguments: Any) -> None:
        """Order something without waiting: it is also how a stopped process is given its first task."""
        os.write(self._to_peer, json.dumps([what, arguments]).encode() + b"\n")

    def answer(self) -> Answer:
        try:
            return self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise AssertionError(f"process {self.pid} does not answer") from None

    def ask(self, what: str, **arguments: Any) -> Answer:
        self.order(what, **arguments)
        return self.answer()

    def acquire(self, name: str, **options: Any) -> dict[str, Any]:
        """Have it acquire a lock, which must succeed; return how that looks."""
        answer = self.ask("acquire", name=name, **options)
        assert not answer.error, answer
        assert answer.result["granted"], answer
        return dict(answer.result)

    def look(self, name: str) -> dict[str, Any]:
        return dict(self.ask("look", name=name).result)

    def goes_on(self, name: str) -> None:
        """Wait until a lease has been renewed thrice more."""
        renewals = self.look(name)["renewals"]
        eventually(lambda: self.look(name)["renewals"] >= renewals + 3)
        assert self.look(name)["held"]

    def _read(self) -> None:
        with os.fdopen(self._from_peer, "rb") as lines:
            for line in lines:
                what, fact = json.loads(line)
                if what == "answer":
                    self._answers.put(Answer(*fact))
                elif what == "lost":
                    self.told.append((fact[0], fact[1]))
                else:
                    self.pid = fact

    def _hang_up(self) -> None:
        os.close(self._to_peer)
        self._reader.join(ANSWER_S)


class Holder(Peer):
    """A process that holds locks. Use it in a `with`: if all goes well it must end in order and without a traceback.

    `forks` is how many children it may have; `context` are options of its LockContext.
    """

    def __init__(self, url: str, *, forks: int = 0, **context: Any) -> None:
        pairs = [(os.pipe(), os.pipe()) for _ in range(forks + 1)]
        theirs = [fd for to_peer, from_peer in pairs for fd in (to_peer[0], from_peer[1])]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = _nursery().start(json.dumps([url, context]), fds=theirs, stderr=self._errors.fileno())
        for fd in theirs:
            os.close(fd)
        super().__init__(pairs[0][0][1], pairs[0][1][0])
        self._children = [Peer(to_peer[1], from_peer[0]) for to_peer, from_peer in pairs[1:]]
        self._unused = list(self._children)

    def __enter__(self) -> Self:
        eventually(lambda: self.pid, timeout_s=ANSWER_S, message="the holder has started")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self._end()
        self._errors.seek(0)
        said = self._errors.read().decode()
        self._errors.close()
        if kind is None:
            assert code == 0, said
            assert "Traceback" not in said, said
        else:
            print(said)

    def fork(self, how: str = "fork", *, tidy: bool = True) -> Peer:
        """Have it fork: straight, in a "thread", or by "multiprocessing". The child obeys the Peer that is returned."""
        child = self._unused.pop(0)
        pid = self.ask("fork", how=how, tidy=tidy).result
        eventually(lambda: child.pid == pid, timeout_s=ANSWER_S, message=f"child {pid} serves")
        return child

    def reap(self, child: Peer) -> int:
        """Have a child end, and return its exit code."""
        child.order("exit")
        return int(self.ask("reap", pid=child.pid).result)

    def _end(self) -> int:
        with suppress(OSError):
            self.order("exit")
        if not self._process.ends_within(ANSWER_S):
            self._process.kill()
        code = self._process.wait()
        for child in self._children:
            if child.pid and Path(f"/proc/{child.pid}").exists():
                os.kill(child.pid, signal.SIGKILL)  # left over by a test that failed
        for peer in (self, *self._children):
            peer._hang_up()
        return code
