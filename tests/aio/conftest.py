"""Fixtures: event loops of either kind, and contexts on the real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.aio.scene import Scene
from tests.aio.support import NewLoop, Run, loop_factory, watched_run
from tests.redis.support import Backend
from tests.support.waiting import eventually
from wheel_lock import LockContext


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    """What makes event loops."""
    return loop_factory(request.param)


@pytest.fixture
def run(new_loop: NewLoop) -> Run:
    """What runs a coroutine in such a loop. A task that is left over, or an error that nobody sees, is a failure."""
    return watched_run(new_loop)


@pytest.fixture
def context(real: Backend) -> LockContext:
    """A context on the real server, on a wheel of its own."""
    return real.context(timer=real.timer())


@pytest.fixture
def scene(real: Backend) -> Iterator[Scene]:
    """Locks that are lost on demand."""
    scene = Scene(real)
    yield scene
    # A leap of the clock makes the connection suspect, and the probe that follows must not find its timer stopped.
    eventually(lambda: not scene.context.timer.busy)
