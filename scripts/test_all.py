"""Test each kind of lock on every supported Python of this machine, with the oldest and the newest redis-py.

`make test-all`. Each combination has an environment of its own under .venv-all, installed from requirements/ by hash.
Arguments are handed to pytest in place of the folders in `SUITES`. The exit status is 1 if a combination failed, or no
Python was found.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".venv-all"
LOCKS = ROOT / "requirements"
FOLDERS = ["redis", "lock_types", "locks", "redis_lock", "net", "topology", "aio", "quorum", "direct"]
SUITES = [f"tests/{folder}" for folder in FOLDERS]
WORKERS = os.environ.get("WORKERS", "4")
_STEP_S = 1800.0
_RUNS_VENV = "import ensurepip, venv, sys; print('%d.%d' % sys.version_info[:2])"
_REDIS_PIN = re.compile(r"^redis==(\S+) \\\n(?:    --hash=\S+(?: \\)?\n)+(?:    #.*\n)*", re.MULTILINE)


class Result(NamedTuple):
    """The outcome of one combination."""

    python: str
    redis_py: str
    outcome: str  # "passed", "FAILED: ...", "not found"
    tests: str = ""
    seconds: float = 0.0


def main(arguments: list[str]) -> int:
    """Run all combinations and print a table; return the exit status."""
    pythons = {version: find_python(version) for version in supported_pythons()}
    for version, program in pythons.items():
        say(f"Python {version}: {program or 'not found'}")
    requirements = {redis_version(text): text for text in (oldest_requirements(), newest_requirements())}
    combinations = [(version, redis_py) for version in pythons for redis_py in requirements]
    results: list[Result] = []
    for number, (version, redis_py) in enumerate(combinations, 1):
        program = pythons[version]
        if program is None:
            results.append(Result(version, redis_py, "not found"))
            continue
        say(f"[{number}/{len(combinations)}] Python {version}, redis-py {redis_py}")
        results.append(run_combination(version, redis_py, program, requirements[redis_py], arguments or SUITES))
        say(f"[{number}/{len(combinations)}] {results[-1].outcome} {results[-1].tests}")
    print(table(results))
    return exit_status(results)


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(f"test-all: {text}", flush=True)


def supported_pythons() -> list[str]:
    """Return the versions that the lock files are made for, such as 3.11."""
    first_line = (LOCKS / "oldest.txt").read_text().partition("\n")[0]
    return first_line.removeprefix("# python: ").split()


def find_python(version: str) -> str | None:
    """Return a program of that version of Python that can make virtual environments, or None.

    Looked for in the PATH, and among the versions of pyenv, whose programs are in the PATH only if they are chosen there.
    """
    return next((program for program in candidates(version) if answers(program) == version), None)


def candidates(version: str) -> Iterator[str]:
    """Return the programs that may be Python of that version."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from sorted(map(str, pyenv.glob(f"{version}*/bin/python")), reverse=True)
    if (found := shutil.which(f"python{version}")) is not None:
        yield found


def answers(program: str) -> str | None:
    """Return the version that a program reports if it has the modules venv and ensurepip, None otherwise."""
    try:
        done = subprocess.run([program, "-c", _RUNS_VENV], capture_output=True, text=True, timeout=60.0)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def oldest_requirements() -> str:
    """Return the text of the lock file with the oldest redis-py."""
    return (LOCKS / "oldest.txt").read_text()


def newest_requirements() -> str:
    """Return the same with the redis-py of dev.txt."""
    newest = _REDIS_PIN.search((LOCKS / "dev.txt").read_text())
    if newest is None:
        raise SystemExit("test-all: requirements/dev.txt does not pin redis: make lock")
    return _REDIS_PIN.sub(lambda _: newest[0], oldest_requirements(), count=1)


def redis_version(requirements: str) -> str:
    """Return the version of redis-py that the text of a lock file pins."""
    pin = _REDIS_PIN.search(requirements)
    if pin is None:
        raise SystemExit("test-all: requirements/oldest.txt does not pin redis: make lock")
    return pin[1]


def run_combination(python: str, redis_py: str, program: str, requirements: str, arguments: list[str]) -> Result:
    """Install and test one combination. What pip and pytest print is shown."""
    began = time.monotonic()
    environment = ENVIRONMENTS / f"{python}-redis-{redis_py}"
    interpreter = str(environment / "bin" / "python")
    try:
        install(environment, program, requirements)
    except subprocess.SubprocessError as error:
        return Result(python, redis_py, f"FAILED: not installed ({error})", "", time.monotonic() - began)
    variables = {**os.environ, "PYTHONPYCACHEPREFIX": str(environment / "pycache"), "PYTHONPATH": str(ROOT)}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [interpreter, "-m", "pytest", "-q", "-n", WORKERS, "--dist", "loadgroup", "--benchmark-disable"]
    command += ["--max-worker-restart", "0", "-p", "no:cacheprovider", *arguments]
    status, last = streamed(command, variables)
    outcome = "passed" if status == 0 else f"FAILED: status {status}"
    return Result(python, redis_py, outcome, last, time.monotonic() - began)


def install(environment: Path, program: str, requirements: str) -> None:
    """Make an environment of what ``requirements`` pins, unless it is there already.

    Raises:
        subprocess.SubprocessError: A step failed.
    """
    stamp, digest = environment / "wheel_lock.stamp", sha256(f"{environment}{requirements}".encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest and answers(str(environment / "bin" / "python")):
        return
    shutil.rmtree(environment, ignore_errors=True)
    environment.parent.mkdir(exist_ok=True)
    quietly: Callable[[list[str]], object] = lambda command: subprocess.run(  # noqa: E731
        command, check=True, timeout=_STEP_S, stdin=subprocess.DEVNULL, cwd=ROOT
    )
    quietly([program, "-m", "venv", str(environment)])
    (environment / "requirements.txt").write_text(requirements)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    quietly([*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(environment / "requirements.txt")])
    stamp.write_text(digest)


def streamed(command: list[str], variables: dict[str, str]) -> tuple[int, str]:
    """Run a command and pass its output on; return its status, and its last line."""
    last = ""
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, last


def table(results: list[Result]) -> str:
    """Return the results as lines of text.

    >>> print(table([Result("3.11", "7.0.1", "passed", "9 passed in 1.0s", 2.0), Result("3.14", "7.0.1", "not found")]))
    Python  redis-py   seconds  outcome
    3.11    7.0.1            2  passed (9 passed in 1.0s)
    3.14    7.0.1               not found
    """
    lines = [f"{'Python':<8}{'redis-py':<10}{'seconds':>8}  outcome"]
    for result in results:
        seconds = f"{result.seconds:.0f}" if result.outcome != "not found" else ""
        tests = f" ({result.tests})" if result.tests else ""
        lines.append(f"{result.python:<8}{result.redis_py:<10}{seconds:>8}  {result.outcome}{tests}")
    return "\n".join(lines)


def exit_status(results: list[Result]) -> int:
    """Return 0 if at least one combination passed and none failed.

    >>> exit_status([Result("3.11", "7.0.1", "passed"), Result("3.14", "7.0.1", "not found")])
    0
    >>> exit_status([Result("3.14", "7.0.1", "not found")])
    1
    """
    outcomes = {result.outcome.partition(":")[0] for result in results}
    return 0 if "passed" in outcomes and "FAILED" not in outcomes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
