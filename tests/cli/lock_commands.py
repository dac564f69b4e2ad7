"""What tests of commands share: users with few rights, and one call for each command in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.support.backend import Backend
from wheel_lock.cli import main

TOKEN = b"x" * 22

Refused = Callable[..., tuple[int, str]]
"""What runs a command that is refused, see `refusal`."""
Examined = Callable[..., tuple[int, dict[str, dict[str, Any]]]]
"""What runs ``doctor``, see `findings`."""


class Said(NamedTuple):
    """What a command has printed, and its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run, expect a sentence on stderr and nothing on stdout, and return the exit status and the sentence."""
    status = main(arguments)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("wheel-lock: ")
    assert said.err.count("\n") == 1
    return status, said.err


def findings(capsys: pytest.CaptureFixture[str], url: str, *more: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run with --json; return the exit status and the findings by check."""
    status = main(["doctor", "--redis", url, "--json", *more])
    said = capsys.readouterr()
    assert said.err == ""
    report = json.loads(said.out)
    return status, {finding["check"]: finding for finding in report["findings"]}


class CommandLine:
    """Runs commands on one server, in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, command: str, *arguments: str, url: str | None = None) -> Said:
        self._capsys.readouterr()
        status = main([command, "--redis", url or self.url, *arguments])
        said = self._capsys.readouterr()
        assert said.err.count("\n") <= 1
        assert said.err == "" or said.err.startswith("wheel-lock: ")
        return Said(status, said.out, said.err)


@contextmanager
def user(backend: Backend, *rules: str) -> Iterator[str]:
    """Yield the URL of a user with these rights only."""
    backend.view.execute_command("ACL", "SETUSER", "looker", "reset", "on", ">secret", *rules)
    try:
        yield f"redis://looker:secret@127.0.0.1:{backend.port}/0"
    finally:
        backend.view.execute_command("ACL", "DELUSER", "looker")
