"""Fixtures: five masters that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quorum.masters import Masters


@pytest.fixture(scope="session")
def running() -> Iterator[Masters]:
    with Masters() as masters:
        yield masters


@pytest.fixture
def masters(running: Masters) -> Masters:
    """All of them well, and empty."""
    running.heal()
    return running
