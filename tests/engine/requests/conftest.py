"""Fixtures: releases in parts that are small enough to count."""

from __future__ import annotations

import pytest

from tests.engine.requests.parts import PART
from wheel_lock.engine.requests import bulk_operations


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a release in parts is ten leases."""
    monkeypatch.setattr(bulk_operations, "LEASES_A_TURN", PART)
