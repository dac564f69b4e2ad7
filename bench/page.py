"""The page of figures, docs/performance.md: the parts of it that programs write, and the machine that they ran on."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.support.redis_server import redis_server_version


def machine() -> str:
    """Return what figures depend on, in one line."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    redis_server = ".".join(map(str, redis_server_version()))
    return (
        f"{model.strip()}, {os.cpu_count()} cores, {platform.system()} {platform.release().split('-')[0]}, "
        f"Python {platform.python_version()}, redis-server {redis_server}, redis-py {version('redis')}, "
        f"{datetime.date.today().isoformat()}"
    )


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(path: Path, marker: str, text: str) -> None:
    """Replace what is between the comments ``marker begins`` and ``marker ends`` of a page."""
    before, begins, rest = path.read_text().partition(f"<!-- {marker} begins -->\n")
    _, ends, after = rest.partition(f"<!-- {marker} ends -->\n")
    if not begins or not ends:
        raise ValueError(f"{path} has no place for {marker}")
    path.write_text(f"{before}{begins}\n{text}\n\n{ends}{after}")
