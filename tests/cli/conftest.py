"""Fixtures: a command line."""

from __future__ import annotations

from functools import partial

import pytest

from tests.cli.lock_commands import CommandLine, Examined, Refused, findings, refusal
from tests.support.backend import Backend


@pytest.fixture
def run(real: Backend, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(real.url, capsys)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    return partial(refusal, capsys)


@pytest.fixture
def examined(capsys: pytest.CaptureFixture[str]) -> Examined:
    return partial(findings, capsys)
