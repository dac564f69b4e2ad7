"""Programs that a test runs to their end, in an interpreter of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_program(
    text: str, *arguments: str, options: tuple[str, ...] = (), timeout_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    """Run a program, which can import the library and its tests; return its status and what it wrote.

    Raises:
        subprocess.TimeoutExpired: It was not over in time, and has been killed.
    """
    return subprocess.run(
        [sys.executable, *options, "-c", text, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
