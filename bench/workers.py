"""Processes of the benchmarks: each side of a comparison works in one of its own, and answers questions in JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent


class Worker:
    """A Python program that prints a line of JSON when it is ready, and one for each line that it reads.

    Args:
        module: The module that is run, such as ``"bench.pairs"``.
        arguments: Its command line.
        patience_s: Seconds after which a worker without an answer is ended.
    """

    def __init__(self, module: str, *arguments: object, patience_s: float = 300.0) -> None:
        self._module = module
        self._patience_s = patience_s
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            process_group=0,  # Ctrl-C is for the program that has started it, which ends it
        )

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

    def answer(self) -> Any:
        """Return the next answer. Raises RuntimeError with what the worker has printed last if it ends without one."""
        assert self._process.stdout is not None
        patience = threading.Timer(self._patience_s, self._process.kill)
        until = time.monotonic() + self._patience_s
        patience.start()
        try:
            line = self._process.stdout.readline()
        finally:
            patience.cancel()
        if line:
            return json.loads(line)
        if time.monotonic() >= until:
            raise RuntimeError(f"{self._module}: no answer in {self._patience_s:g} s")
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines() or [f"ended with {self._process.returncode}"]
        raise RuntimeError(f"{self._module}: {said[-1]}")

    def ask(self, line: str = "") -> Any:
        """Send a line and return the answer."""
        self.tell(line)
        return self.answer()

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


def serve(answer: Callable[[str], Mapping[str, Any]]) -> None:
    """In a worker: say that it is ready, and answer each line until there are no more."""
    print("{}", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)


def cpu_s(pid: int) -> float:
    """Return the CPU time that all threads of a process have used so far, as clock_getcpuclockid(3) finds it.

    The kernel counts it in nanoseconds, unlike the ticks of 10 ms in /proc/PID/stat.
    """
    return time.clock_gettime(~pid << 3 | 2)
