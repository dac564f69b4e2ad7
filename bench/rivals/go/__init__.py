"""The rivals in Go: rueidislock, redsync and bsm/redislock, in one program (see main.go)."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.rivals.toolchain import NotFetched, alone, run, up_to_date

PROGRAMS = ("rueidislock", "redsync", "bsm")
DIRECTORY = Path(__file__).resolve().parent
BINARY = DIRECTORY / "bin" / "rivals"


def missing() -> str | None:
    """Return what the machine lacks, or None."""
    return None if shutil.which("go") else "no Go"


def build() -> None:
    """Compile the program unless that has been done. Raises NotFetched if a package cannot be downloaded."""
    with alone(DIRECTORY):
        if not up_to_date(BINARY, [*DIRECTORY.glob("*.go"), *DIRECTORY.glob("go.*")]):
            run(["go", "mod", "download"], DIRECTORY, NotFetched)
            # Without -buildvcs=false it asks Git about the sources, and fails where that refuses an answer.
            run(["go", "build", "-mod=readonly", "-buildvcs=false", "-o", str(BINARY), "."], DIRECTORY)


def command(program: str) -> list[str]:
    """Return the command line of a worker up to its mode; ``program`` is one of ``PROGRAMS``."""
    return [str(BINARY), program]
