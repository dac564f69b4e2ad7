"""Fixtures: five masters that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.quorum.masters import UNHURRIED_S, Masters
from tests.quorum.rig import QuorumRig
from wheel_lock.quorum.context import QuorumContext


@pytest.fixture(scope="session")
def running() -> Iterator[Masters]:
    with Masters() as masters:
        yield masters


@pytest.fixture
def masters(running: Masters) -> Masters:
    """All of them well, and empty."""
    running.heal()
    return running


@pytest.fixture
def context(masters: Masters) -> Iterator[QuorumContext]:
    with masters.connected(close_timeout=1.0, node_timeout=UNHURRIED_S) as context:
        yield context


@pytest.fixture
def rig() -> Iterator[QuorumRig]:
    with QuorumRig() as rig:
        yield rig
