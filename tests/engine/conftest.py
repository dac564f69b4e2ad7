"""Fixtures: an engine without a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.rig import Rig
from tests.engine.waiting_rig import WaitingRig


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A WaitingRig, or the module's RIG, with default settings or those of the marker `rig`."""
    marker = request.node.get_closest_marker("rig")
    with getattr(request.module, "RIG", WaitingRig)(**(marker.kwargs if marker else {})) as rig:
        yield rig


@pytest.fixture
def failing(rig: Rig) -> Iterator[Rig]:
    """A rig whose own code fails on purpose."""
    yield rig
    assert rig.failures
    rig.failures.clear()
