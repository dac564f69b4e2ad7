"""Servers that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.topology.masters import Masters


@pytest.fixture(scope="module")
def running() -> Iterator[Masters]:
    with Masters() as masters:
        yield masters


@pytest.fixture
def masters(running: Masters) -> Masters:
    """All of them well, and empty."""
    running.heal()
    return running
