"""The command line as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start ``wheel-lock`` with ``arguments``; a warning is an error there too."""
    command = [sys.executable, "-W", "error", "-m", "wheel_lock.cli", *arguments]
    return subprocess.Popen(command, cwd=ROOT, text=True, **options)
