"""What the interpreter says, for tests that interrupt threads."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def swallowed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the interpreter has said that it swallowed: an exception in a finaliser, or in a callback of the collector."""
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: said.append(str(what.exc_value)))
    return said
