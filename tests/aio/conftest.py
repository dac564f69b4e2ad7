"""Fixtures: event loops of either kind, and contexts on the real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aio.lock_loser import LockLoser
from tests.support.backend import Backend
from tests.support.waiting import eventually
from wheel_lock import LockContext


@pytest.fixture
def context(request: pytest.FixtureRequest, real: Backend) -> LockContext:
    """A context on the real server that is connected, on a timer of its own, with the settings of the marker `settings`."""
    marker = request.node.get_closest_marker("settings")
    context = real.context(timer=real.timer(), **(marker.kwargs if marker else {}))
    assert not context.lock("warm-up").locked()
    return context


@pytest.fixture
def loser(real: Backend) -> Iterator[LockLoser]:
    """Locks that are lost on demand."""
    loser = LockLoser(real)
    yield loser
    # A leap of the clock makes the connection suspect, and the probe that follows must not find its timer stopped.
    eventually(lambda: not loser.context.timer.busy)
