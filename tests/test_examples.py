"""The examples of the documentation do what they say, on the embedded server and on a real one."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXPECTED = {
    "threads": ["10 customers paid 55 in all; 10 locks were acquired"],
    "tasks": ["100 tasks took turns in 10 shards", "reported in time: key gone"],
    "hand_over": [
        "exported; held here: False",
        "adopted; held here: True, renewed from now on",
        "finished with fence",
        "refused: The lock 'import:2026' was lost: key gone",
        "refused: The text of this exported lock has been cut off or changed",
    ],
    "fences": ["fences grow: True", "the new holder writes: True", "the late one writes: False"],
}


def program(name: str) -> str:
    return str(ROOT / "docs" / "examples" / f"{name}.py")


def check(name: str, printed: str) -> None:
    for line, expected in zip(printed.splitlines(), EXPECTED[name], strict=True):
        assert line.startswith(expected)


def test_every_example_is_run_here() -> None:
    assert {path.stem for path in (ROOT / "docs" / "examples").glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("server", ["embedded", "real"])
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(
    request: pytest.FixtureRequest,
    name: str,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [] if server == "embedded" else [request.getfixturevalue("redis_server").url]
    monkeypatch.setattr("sys.argv", [program(name), *given])
    runpy.run_path(program(name), run_name="__main__")
    check(name, capsys.readouterr().out)


def test_it_ends_as_a_program_does() -> None:
    command = [sys.executable, "-W", "error", program("tasks")]
    result = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": "."}, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    check("tasks", result.stdout)
