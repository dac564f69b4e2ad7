"""Processes of the benchmarks: each side of a comparison works in one of its own, and answers questions line by line.

A worker writes ``up`` when it is ready. It answers each line that it reads with ``result`` and a JSON object, or with
``failed`` and why not; before that it writes a line ``lost INDEX T REASON`` for each lock whose loss its user has heard of
meanwhile, T in seconds of CLOCK_MONOTONIC. It ends at the end of its input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Loss:
    """The report of a loss to a worker's user, at a time of CLOCK_MONOTONIC."""

    index: int
    at: float
    reason: str


def python(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this project."""
    return [sys.executable, "-m", module, *map(str, arguments)]


class Unable(RuntimeError):
    """What a worker has not got, such as "no tasks"."""


class Worker:
    """A running worker.

    Args:
        command: The program and its arguments.
        patience_s: Seconds after which a worker without an answer is ended.

    Attributes:
        losses: All losses that the worker has written so far.
    """

    def __init__(self, command: Sequence[str], *, patience_s: float = 300.0) -> None:
        self._what = command[2] if "-m" in command[1:2] else Path(command[0]).name
        self._patience_s = patience_s
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            process_group=0,  # Ctrl-C is for the program that has started it, which ends it
        )
        self.losses: list[Loss] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str = "") -> None:
        """Send a line, to be answered later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() says why it has ended

    def answer(self, patience_s: float | None = None) -> Any:
        """Return the next answer, an empty one for ``up``.

        Args:
            patience_s: Another patience than the worker's, in seconds.

        Raises:
            Unable: If it says that it has "no ...".
            RuntimeError: With what the worker has printed last, if it fails or ends without an answer.
        """
        assert self._process.stdout is not None
        patience_s = self._patience_s if patience_s is None else patience_s
        patience = threading.Timer(patience_s, self._process.kill)
        until = time.monotonic() + patience_s
        patience.start()
        try:
            for line in self._process.stdout:
                if not line.endswith("\n"):
                    break  # it was ended as it wrote
                word, _, rest = line.strip().partition(" ")
                if word == "lost":
                    index, at, reason = (rest + " ").split(" ", 2)
                    self.losses.append(Loss(int(index), float(at), reason.strip()))
                elif word == "up":
                    return {}
                elif word == "result":
                    return json.loads(rest)
                elif word == "failed":
                    if rest.startswith("no "):
                        raise Unable(rest)
                    raise RuntimeError(f"{self._what}: {rest}")
        finally:
            patience.cancel()
        if time.monotonic() >= until:
            raise RuntimeError(f"{self._what}: no answer in {patience_s:g} s")
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or [f"ended with {self._process.returncode}"]
        raise RuntimeError(f"{self._what}: {said[-1]}")

    def ask(self, line: str = "", patience_s: float | None = None) -> Any:
        """Send a line and return the answer."""
        self.tell(line)
        return self.answer(patience_s)

    def said(self) -> str:
        """Return what the process has written to stderr so far."""
        # Without a seek: the process writes at the position that it shares with this file object.
        errors = self._errors.fileno()
        return os.pread(errors, os.fstat(errors).st_size, 0).decode(errors="replace")

    def stop(self) -> None:
        """Stop the process where it is, until :meth:`go_on`: it renews nothing meanwhile."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(answer: Callable[[str], Mapping[str, Any]], losses: Callable[[], Iterable[Loss]] = tuple) -> None:
    """In a worker: say that it is ready, and answer each line until there are no more; ``losses`` returns new ones."""
    print("up", flush=True)
    for line in sys.stdin:
        result = answer(line.strip())
        for loss in losses():
            print("lost", loss.index, loss.at, " ".join(loss.reason.split()))
        print("result", json.dumps(result), flush=True)


def cpu_s(pid: int) -> float:
    """Return the CPU time that all threads of a process have used so far, as clock_getcpuclockid(3) finds it.

    The kernel counts it in nanoseconds, unlike the ticks of 10 ms in /proc/PID/stat.
    """
    return time.clock_gettime(~pid << 3 | 2)


def rss_and_threads(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process in bytes, and the number of its threads."""
    fields = _status(pid)
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"])


def peak_bytes(pid: int) -> int:
    """Return the most resident memory that a process has had so far."""
    return int(_status(pid)["VmHWM"].split()[0]) * 1024


def _status(pid: int) -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
