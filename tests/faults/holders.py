"""The test's side of holder.py: start such a process, give it orders, stop, kill and fork it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import queue
import signal
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.nursery import Nursery
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
ANSWER_S = 20.0  # only a deadlock takes longer


@dataclass(frozen=True)
class Report:
    """What came of an order. `before` and `after` are readings of CLOCK_MONOTONIC; `error` is a class name or ""."""

    did: str
    before: float
    after: float
    result: Any
    error: str


@dataclass(frozen=True)
class Told:
    """A lost event as a callback was told it, on CLOCK_MONOTONIC."""

    name: str
    reason: str
    fence: int | None
    at: float
    deadline: float
    told: float


@functools.cache
def _nursery() -> Nursery:
    nursery = Nursery("tests.faults.holder")
    atexit.register(nursery.close)
    return nursery


class Peer:
    """Somebody at the other end of a pair of pipes who does as it is ordered."""

    def __init__(self, to_peer: int, from_peer: int) -> None:
        self._to_peer = to_peer
        self._from_peer = from_peer
        self._answers: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.pid = 0
        self.told: list[Told] = []
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def order(self, do: str, **arguments: Any) -> None:
        """Order something without waiting: it is also how a stopped process is given its first task."""
        os.write(self._to_peer, json.dumps({"do": do, **arguments}).encode() + b"\n")

    def answer(self, timeout_s: float = ANSWER_S) -> Report:
        try:
            return self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"process {self.pid} does not answer within {timeout_s} s") from None

    def ask(self, do: str, **arguments: Any) -> Report:
        self.order(do, **arguments)
        return self.answer()

    def acquire(self, name: str, **options: Any) -> Report:
        """Have it acquire a lock, which must succeed."""
        report = self.ask("acquire", name=name, **options)
        assert not report.error, report
        assert report.result["granted"], report
        return report

    def told_of(self, name: str) -> list[Told]:
        return [told for told in self.told if told.name == name]

    def _read(self) -> None:
        with os.fdopen(self._from_peer, "rb") as lines:
            for line in lines:
                facts = json.loads(line)
                event = facts.pop("event", None)
                if event is None:
                    self._answers.put(Report(**facts))
                elif event == "lost":
                    self.told.append(Told(**facts))
                elif event == "ready":
                    self.pid = facts["pid"]
                else:
                    self.events.append({"event": event, **facts})

    def _hang_up(self) -> None:
        os.close(self._to_peer)
        self._reader.join(ANSWER_S)


class Holder(Peer):
    """A process that holds locks. Use it in a `with`: if all goes well it must end in order and without a traceback.

    `forks` is how many children it may have; `context` are options of its LockContext.
    """

    def __init__(self, url: str, *, forks: int = 0, client_name: str = "holder", **context: Any) -> None:
        pairs = [(os.pipe(), os.pipe()) for _ in range(forks + 1)]
        ours = [(to_peer[1], from_peer[0]) for to_peer, from_peer in pairs]
        theirs = [fd for to_peer, from_peer in pairs for fd in (to_peer[0], from_peer[1])]
        settings = {"url": url, "client_name": client_name, "context": context}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        self._process = _nursery().start(json.dumps(settings), fds=theirs, stderr=self._errors.fileno())
        for fd in theirs:
            os.close(fd)
        self._killed = False
        super().__init__(*ours[0])
        self._children = [Peer(*pair) for pair in ours[1:]]
        self._unused = list(self._children)

    def __enter__(self) -> Self:
        eventually(lambda: self.pid, timeout_s=ANSWER_S, message="the holder has started")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self._end()
        if kind is None and not self._killed:
            assert code == 0, self.said
            assert "Traceback" not in self.said, self.said
        elif self.said:
            print(self.said)
        self._errors.close()

    @property
    def said(self) -> str:
        """All that it and its children have written to standard error."""
        self._errors.seek(0)
        return self._errors.read().decode()

    def fork(self, how: str = "fork", *, tidy: bool = True) -> Peer:
        """Have it fork: straight, in a "thread", or by "multiprocessing". The child obeys the Peer that is returned."""
        child = self._unused.pop(0)
        pid = self.ask("fork", how=how, tidy=tidy).result
        eventually(lambda: child.pid == pid, timeout_s=ANSWER_S, message=f"child {pid} serves")
        return child

    def reap(self, child: Peer) -> int:
        """Have a child end, and return its exit code."""
        child.order("exit")
        code = self.ask("reap", pid=child.pid).result
        assert isinstance(code, int)
        return code

    def pause(self) -> None:
        """SIGSTOP. Returns when all of its threads stand still."""
        os.kill(self.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", message="SIGSTOP took")

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it."""
        os.kill(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, and return when it is gone."""
        self._killed = True
        self._process.kill()

    def _end(self) -> int:
        if not self._killed:
            with suppress(OSError):
                self.resume()
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
