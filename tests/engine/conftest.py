"""Fixtures: an engine without a server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.waiting_rig import WaitingRig


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "rig(**settings): the settings of the fixture `rig`")


@pytest.fixture
def rig(request: pytest.FixtureRequest) -> Iterator[WaitingRig]:
    """An engine on a timer that is turned by hand, with default settings or those of the marker `rig`."""
    marker = request.node.get_closest_marker("rig")
    with WaitingRig(**(marker.kwargs if marker else {})) as rig:
        yield rig


@pytest.fixture
def failing(rig: WaitingRig) -> Iterator[WaitingRig]:
    """A rig whose own code fails on purpose."""
    yield rig
    assert rig.failures
    rig.failures.clear()
