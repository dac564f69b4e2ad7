"""Fixtures: a command line."""

from __future__ import annotations

import pytest

from tests.cli.lock_commands import CommandLine
from tests.support.backend import Backend


@pytest.fixture
def run(real: Backend, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(real.url, capsys)
