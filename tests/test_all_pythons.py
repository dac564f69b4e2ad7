"""scripts/test_all.py: which combinations there are, and what becomes of their results."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

THIS = f"{sys.version_info[0]}.{sys.version_info[1]}"


script: Any = import_module("scripts.test_all")


def test_the_newest_environment_differs_in_redis_py_only() -> None:
    oldest, newest = script.oldest_requirements(), script.newest_requirements()
    assert script.redis_version(oldest) != script.redis_version(newest)
    assert script._REDIS_PIN.sub("", oldest) == script._REDIS_PIN.sub("", newest)
    assert "--hash=sha256:" in script._REDIS_PIN.search(newest)[0]


def test_a_python_is_found_by_what_it_says_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.answers(sys.executable) == THIS
    assert script.find_python("3.99") is None
    broken = tmp_path / "python3.99"
    broken.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert list(script.candidates("3.99"))[-1] == str(broken)
    assert script.find_python("3.99") is None


def test_all_combinations_run_although_one_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "find_python", lambda version: None if version == "3.14" else "python")
    ran: list[tuple[str, str]] = []

    def run(python: str, redis_py: str, program: str, requirements: str, arguments: list[str]) -> Any:
        ran.append((python, redis_py))
        return script.Result(python, redis_py, "passed" if len(ran) > 1 else "FAILED: status 1", "", 1.0)

    monkeypatch.setattr(script, "run_combination", run)
    assert script.main([]) == 1
    assert len(ran) == 6
    lines = capsys.readouterr().out.splitlines()[-9:]
    assert [line.split()[2:4] for line in lines[1:]] == [
        ["1", "FAILED:"],
        *[["1", "passed"]] * 5,
        *[["not", "found"]] * 2,
    ]
