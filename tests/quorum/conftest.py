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
def rig(request: pytest.FixtureRequest) -> Iterator[QuorumRig]:
    """A quorum of scripted masters, with default settings or those of the marker `rig`."""
    marker = request.node.get_closest_marker("rig")
    with QuorumRig(**(marker.kwargs if marker else {})) as rig:
        yield rig
