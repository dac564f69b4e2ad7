"""Plants mistakes, and sees what finds each: `make mutants SECONDS=60 JOBS=1 ARGS="permit fence"`.

First the original is watched: which lines each history of the simulation, and each test without a server, comes to. A
mutant is given the histories that come to its line, those first that come there most, until one breaks a rule or the
seconds of the processor are used up; then, if it is one by operators, the tests that come there. Each has a process of
its own, in a copy of the package: this checkout is not touched. What is known is kept in build/mutants.json, so a run
that was stopped goes on where it was, as long as the package is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.simulation.mutants.by_hand import BY_HAND, OLD_BUGS
from tests.simulation.mutants.mutant import PACKAGE, Mutant, digest
from tests.simulation.mutants.operators import chosen, places
from tests.simulation.mutants.reach import instrument, place_of

_ROOT = PACKAGE.parent
_BUILD = _ROOT / "build"
_WORLD = Path(__file__).parents[1]
_SURVIVORS = Path(__file__).with_name("survivors.txt")
_TESTS = ("engine", "lease", "protocol", "lock_types", "quorum", "net", "wheel")  # tests that need no server
_FIRST_SEED, _SEEDS, _FURTHER = 1, 200, 1000
OUTCOMES = ("simulation", "tests", "survived", "harmless")
_HARMLESS = ("equivalent", "figures", "pace")  # kinds of reasons: nothing that is promised is changed
_TESTS_S = 5.0  # time for the tests of one mutant: the quickest first
_START_S = 12.0  # limit of a process beside its given time

Result = dict[str, Any]


class Stage:
    """A copy of the package and its tests, in which one mutant after the other is planted."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="mutants-"))
        weakref.finalize(self, shutil.rmtree, self.root)
        ignored = shutil.ignore_patterns("__pycache__", "build")
        for name in ("wheel_lock", "tests"):
            shutil.copytree(_ROOT / name, self.root / name, ignore=ignored)
        for name in ("pyproject.toml", "wheel_lock_command.py"):
            shutil.copy(_ROOT / name, self.root / name)

    def run(self, *arguments: str, cpu_s: float, **environment: str) -> subprocess.CompletedProcess[str]:
        def limit() -> None:
            seconds = int(cpu_s + _START_S)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "PATH": _without_servers(), **environment},
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limit,
        )

    def histories(self, seeds: list[int], cpu_s: float) -> Result:
        """Return what the simulation says of what is planted."""
        arguments = [f"--cpu={cpu_s}", *map(str, seeds)]
        done = self.run("tests.simulation.mutants.trial", *arguments, cpu_s=cpu_s)
        last = done.stdout.splitlines()[-1:] or [""]
        if last[0].startswith("{"):
            result: Result = json.loads(last[0])
            return result
        ended = "it does not end" if done.returncode < 0 else (done.stderr.splitlines() or ["nothing"])[-1]
        return {"seed": 0, "rule": "start", "text": ended[:300]}

    def tests(self, names: list[str]) -> str | None:
        """Return the first test that fails with what is planted."""
        listed = self.root / "chosen-tests"
        listed.write_text("\n".join(names))
        arguments = ["-x", "-q", "--tb=no", "--benchmark-disable", "-p", "no:cacheprovider", f"@{listed}"]
        done = self.run("pytest", *arguments, cpu_s=6 * _TESTS_S)
        if done.returncode == 0:
            return None
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return (failed or ["a test that does not end" if done.returncode < 0 else "all: " + done.stdout[-200:]])[0][
            :200
        ]

    def plant(self, mutant: Mutant) -> None:
        self._write(mutant.path, mutant.text)

    def heal(self, mutant: Mutant) -> None:
        self._write(mutant.path, (PACKAGE / mutant.path).read_text())

    def _write(self, name: str, text: str) -> None:
        path = self.root / "wheel_lock" / name
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()


def _without_servers() -> str:
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(each for each in folders if not (Path(each) / "redis-server").exists())


class Reach:
    """What comes to which line of the original."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._histories: dict[str, list[int]] = known["histories"]
        self._tests: dict[str, list[str]] = known["tests"]
        self.broken: dict[str, str] = known["broken"]

    def histories(self, places: list[str | None]) -> list[int]:
        """Return the seeds of the histories that come to a place, those first that come there most often in their time."""
        return self._of(self._histories, places)

    def tests(self, places: list[str | None]) -> list[str]:
        if any(str(place).endswith(".lua") for place in places):  # nothing notes which of them the embedded server runs
            return [name for name in self._tests.get("everything", ()) if "lock_types" in name and "embedded" in name]
        return self._of(self._tests, places)

    def _of(self, reached: dict[str, list[Any]], places: list[str | None]) -> list[Any]:
        return list(dict.fromkeys(each for place in places for each in reached.get(place or "everything", ())))


def watch(seeds: int, folders: list[str]) -> Reach:
    """Run histories, and the tests in some folders, on the original; return what they come to."""
    kept = _BUILD / "mutants-reach.json"
    code = digest(seeds, folders, [path.read_text() for path in sorted(_WORLD.glob("*.py"))])
    if kept.exists() and (known := json.loads(kept.read_text()))["code"] == code:
        return Reach(known)
    print(f"{seeds} histories{', and the tests without a server,' if folders else ''} are watched", flush=True)
    stage = Stage()
    paths = {path for path, _ in places(PACKAGE)}.union(mutant.path for mutant in BY_HAND)
    instrument(stage.root / "wheel_lock", sorted(path for path in paths if path.endswith(".py")))
    cpu_s = 20.0 * seeds
    numbers = map(str, range(_FIRST_SEED, _FIRST_SEED + seeds))
    done = stage.run("tests.simulation.mutants.trial", "--reach", f"--cpu={cpu_s}", *numbers, cpu_s=cpu_s)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    if len(lines) < seeds:
        raise RuntimeError(f"the original does not run: {done.stderr}")
    ranked: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for seed, took_s, rule, reached in lines:
        if rule is None:
            for place, times in (("everything", 1), *reached.items()):
                ranked[place].append((-times / took_s, seed))
    histories = {place: [seed for _, seed in sorted(some)] for place, some in ranked.items()}
    path = stage.root / "reached.json"
    path.write_text("{}")
    if folders:
        arguments = ["-q", "--tb=no", "--benchmark-disable", "-p", "tests.simulation.mutants.reach", *folders]
        stage.run("pytest", *arguments, cpu_s=2000.0, REACHED=str(path))
    tests, spent_s = defaultdict(list), Counter[str]()
    for name, (took_s, *reached) in sorted(json.loads(path.read_text()).items(), key=lambda each: float(each[1][0])):
        for place in ("everything", *reached):
            spent_s[place] += float(took_s)  # type: ignore[assignment]
            if spent_s[place] < _TESTS_S or place == "everything":
                tests[place].append(name)
    broken = {str(seed): rule[0] for seed, _, rule, _ in lines if rule is not None}
    known = {"code": code, "histories": histories, "tests": tests, "broken": broken}
    _BUILD.mkdir(exist_ok=True)
    kept.write_text(json.dumps(known))
    return Reach(known)


def known_survivors() -> dict[str, tuple[str, str]]:
    """Return why mutants are not found, by their keys: the kind of reason, and the reason."""
    lines = [line for line in _SURVIVORS.read_text().splitlines() if line and not line.startswith("#")]
    return {key: (kind, reason) for key, kind, reason in (line.rsplit(" | ", 2) for line in lines)}


def trial(mutant: Mutant, stage: Stage, reach: Reach, original: Stage, cpu_s: float) -> Result:
    """Return what finds a mutant."""
    began = time.monotonic()
    where = [place_of(PACKAGE, mutant.path, line) for line in mutant.lines]
    seeds, tests = reach.histories(where), reach.tests(where)
    by_operator = mutant.operator not in ("by hand", "old bug")
    if seeds and not by_operator:
        seeds += range(_FURTHER, 2 * _FURTHER)
    result: Result = {"key": mutant.key, "path": mutant.path, "operator": mutant.operator}
    result["reached"] = bool(seeds or tests)
    stage.plant(mutant)
    try:
        said = stage.histories(seeds, cpu_s) if seeds else {"seed": None, "histories": 0}
        if said["seed"] is not None and said["seed"] >= _FURTHER:
            same = original.histories([said["seed"]], cpu_s)
            said = {"seed": None, "text": "the original fails, too"} if same["seed"] is not None else said
        result |= said
        if said["seed"] is None and by_operator:
            result["test"] = stage.tests(tests) if tests else None
    finally:
        stage.heal(mutant)
    result["found"] = "simulation" if said["seed"] is not None else "tests" if result.get("test") else None
    result["took_s"] = round(time.monotonic() - began, 1)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants")
    parser.add_argument("words", nargs="*", help="only mutants whose names have one of these words")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the processor, for the histories of a mutant")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--operators", type=int, default=0, metavar="COUNT", help="that many by operators, too")
    parser.add_argument("--seed", type=int, default=24, help="chooses which")
    parser.add_argument("--histories", type=int, default=_SEEDS, help="how many are watched")
    parser.add_argument("--results", type=Path, default=_BUILD / "mutants.json", help="where what is known is kept")
    parser.add_argument("--again", action="store_true", help="try survivors once more")
    arguments = parser.parse_args()
    os.nice(10)
    mutants = [*BY_HAND, *OLD_BUGS, *chosen(PACKAGE, arguments.seed, arguments.operators)]
    words = arguments.words
    wanted = [mutant for mutant in mutants if not words or any(word in mutant.name for word in words)]
    folders = [f"tests/{name}" for name in _TESTS] if arguments.operators else []
    reach, reasons = watch(arguments.histories, folders), known_survivors()
    kept = arguments.results
    known: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    if known.get("code") != digest():
        known = {"code": digest(), "verdicts": {}}
    results: dict[str, Result] = known["verdicts"]

    def is_open(mutant: Mutant) -> bool:
        result = results.get(mutant.name)
        if result is None:
            return reasons.get(mutant.key, ("",))[0] != "equivalent"
        return result["found"] is None and (arguments.again or bool(words))

    todo = [mutant for mutant in wanted if is_open(mutant)]
    random.Random(arguments.seed).shuffle(todo)  # so what is known of a run that was stopped is a fair sample
    stages: SimpleQueue[Stage] = SimpleQueue()
    for _ in range(arguments.jobs if todo else 0):
        stages.put(Stage())
    original = Stage()

    def attempt(mutant: Mutant) -> Result:
        stage = stages.get()
        try:
            return trial(mutant, stage, reach, original, arguments.seconds)
        finally:
            stages.put(stage)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        attempts = {pool.submit(attempt, mutant): mutant for mutant in todo}
        for number, done in enumerate(as_completed(attempts), start=1):
            mutant, result = attempts[done], done.result()
            results[mutant.name] = result
            kept.write_text(json.dumps(known, indent=1))
            by = result.get("rule") or result.get("test") or ""
            shown = {"simulation": "found   ", "tests": "by tests"}.get(result["found"], "SURVIVED")
            print(f"{number:4}/{len(todo)} {shown} {result['took_s']:5.1f} s  {mutant.name}", flush=True)
            if by:
                print(f"          {by}: {result.get('text', '')}"[:160], flush=True)
    return summary(wanted, results, reasons)


def outcome(result: Result, reasons: dict[str, tuple[str, str]]) -> tuple[str, str, str]:
    """Return what became of a mutant, and if it survived the kind of reason and the reason."""
    if result["found"]:
        return result["found"], "", ""
    kind, reason = reasons.get(result["key"], ("survived" if result["reached"] else "unreached", ""))
    return "harmless" if kind in _HARMLESS else "survived", kind, reason


def summary(wanted: list[Mutant], results: dict[str, Result], reasons: dict[str, tuple[str, str]]) -> int:
    """Print how many are found, by how they were made, and by folder; return how many by hand are not."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    kinds: Counter[str] = Counter()
    for mutant in wanted:
        found, kind, _ = outcome(results[mutant.name], reasons) if mutant.name in results else ("harmless", "", "")
        folder = str(Path(mutant.path).parent) if "/" in mutant.path else mutant.path
        counts[mutant.operator][found] += 1
        if mutant.operator not in ("by hand", "old bug"):
            counts[folder][found] += 1
            counts["all by operators"][found] += 1
            kinds[kind] += 1
    print(f"{'':24} {'number':>10}", *[f"{name:>10}" for name in OUTCOMES])
    for name, count in counts.items():
        numbers = [count.total(), *(count[found] for found in OUTCOMES)]
        print(f"{name:24} {' '.join(f'{number:10}' for number in numbers)}")
    if together := counts["all by operators"]:
        found_here = together["simulation"] + together["tests"]
        harmful = together.total() - together["harmless"]
        others = ", ".join(
            f"{kind} {number}" for kind, number in sorted(kinds.items()) if kind not in ("", "equivalent")
        )
        print(
            f"by operators: {harmful} change what is promised, {found_here} of these are found here; of others: {others}"
        )
    return counts["by hand"]["survived"] + counts["old bug"]["survived"]


if __name__ == "__main__":
    sys.exit(main())
