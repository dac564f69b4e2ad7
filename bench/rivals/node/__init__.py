"""The rival on Node: node-redlock (see worker.js)."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.rivals.toolchain import NotFetched, alone, run, up_to_date

PROGRAMS = ("node-redlock",)
DIRECTORY = Path(__file__).resolve().parent
INSTALLED = DIRECTORY / "node_modules" / ".package-lock.json"  # what npm writes last


def missing() -> str | None:
    """Return what the machine lacks, or None."""
    return None if shutil.which("node") and shutil.which("npm") else "no Node"


def build() -> None:
    """Install the packages unless that has been done. Raises NotFetched if that fails."""
    with alone(DIRECTORY):
        if not up_to_date(INSTALLED, [DIRECTORY / "package.json", DIRECTORY / "package-lock.json"]):
            run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], DIRECTORY, NotFetched)


def command(program: str) -> list[str]:
    """Return the command line of a worker up to its mode; ``program`` is one of ``PROGRAMS``."""
    return ["node", "--expose-gc", str(DIRECTORY / "worker.js"), program]
