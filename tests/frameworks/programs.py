"""Programs of frameworks that tests start: each in a process group of its own, which ends with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "frameworks"
LONG_S = 60.0


class Program:
    """A running program. ``output`` is what it has written to stdout and stderr."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        """Whether it runs; an AssertionError with its output if it has ended."""
        assert self.process.poll() is None, self.output
        return True

    def end(self) -> int:
        """Stop it as its users do; return its exit status."""
        self.process.terminate()
        return self.process.wait(LONG_S)


@contextmanager
def program(*arguments: str, output: Path, redis_url: str, **variables: str) -> Iterator[Program]:
    """`python -m <arguments>`, with REDIS_URL. Its output goes to a file, which no full pipe can block."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "REDIS_URL": redis_url, **variables},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Program(process, output)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all of it has ended
        process.wait(LONG_S)
