"""The command line as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start ``wheel-lock`` with ``arguments``; a warning is an error there too."""
    command = [sys.executable, "-W", "error", "-m", "wheel_lock.cli", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)


def interrupted(number: int, when: Callable[[], object], *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Send the program a signal as soon as `when` is true; return its status, its output in JSON, and its errors."""
    with start(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            eventually(when)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, json.loads(out), err
