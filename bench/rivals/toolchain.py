"""What the rivals that are built by another language's tools have in common."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LAST_LINES = 15


class NotFetched(RuntimeError):
    """The packages of a rival could not be downloaded."""


def run(command: Sequence[str], directory: Path, error: type[RuntimeError] = RuntimeError) -> None:
    """Run a tool; raise ``error`` with the last lines of its output if it fails."""
    done = subprocess.run(
        command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-LAST_LINES:])
        raise error(f"{' '.join(command)}: status {done.returncode}\n{last}")


def up_to_date(product: Path, sources: Iterable[Path]) -> bool:
    """Return whether a file exists and is newer than everything that it is made from."""
    return product.exists() and product.stat().st_mtime >= max(source.stat().st_mtime for source in sources)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Keep other processes from building in the same directory, as tests and benchmarks may do at the same time."""
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
