"""Programs of Python that a test runs to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run_python(*arguments: str) -> str:
    """Run `python <arguments>`, which is to end well and to write no errors; return what it has printed."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
