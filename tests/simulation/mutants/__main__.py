"""Runs the simulation against each mutant: `make mutants SECONDS=60 JOBS=1 ARGS="permits fence"`.

Each gets a copy of the package; this checkout is not touched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.simulation.mutants import BY_HAND, Mutant

_ROOT = Path(__file__).parents[3]


def planted(mutant: Mutant, folder: Path) -> None:
    """Copy the package and the simulation to ``folder``, with the mistake."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_ROOT / "wheel_lock", folder / "wheel_lock", ignore=ignored)
    shutil.copytree(_ROOT / "tests" / "simulation", folder / "tests" / "simulation", ignore=ignored)
    (folder / "tests" / "__init__.py").touch()
    path = folder / "wheel_lock" / mutant.path
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: its text is in {mutant.path} {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new))


def found_by(mutant: Mutant, seconds: float) -> tuple[str | None, float]:
    """Return what the simulation says of a mutant, None if it found nothing, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as name:
        planted(mutant, Path(name))
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--seconds",
            str(seconds),
            "--cpu",
            "--shrink",
            "0",
            "--from",
            "1",
        ]
        environment = {**os.environ, "PYTHONPATH": name, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True, check=False)
        took_s = time.monotonic() - began
    broken = [line for line in done.stdout.splitlines() if "BROKEN" in line]
    if broken:
        return broken[0].strip(), took_s
    if "histories" not in done.stdout:
        raise RuntimeError(f"{mutant.name}: the simulation does not run: {done.stderr or done.stdout}")
    return None, took_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("words", nargs="*", help="only mutants whose names have one of these words")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    words = arguments.words
    chosen = [mutant for mutant in BY_HAND if not words or any(word in mutant.name for word in words)]
    survivors = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        results = pool.map(partial(found_by, seconds=arguments.seconds), chosen)
        for mutant, (said, took_s) in zip(chosen, results, strict=True):
            print(f"{'found   ' if said else 'SURVIVED'} {took_s:5.1f} s  {mutant.name}", flush=True)
            print(f"                    {(said or '')[:160]}" if said else "", flush=True)
            if said is None:
                survivors.append(mutant.name)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} found")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
