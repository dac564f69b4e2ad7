"""Fixtures: event loops of either kind, servers of either kind, and contexts on them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from tests.aio.scene import Scene
from tests.aio.support import NewLoop, Run, loop_factory
from tests.redis.support import Backend
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.testing import EmbeddedServer

T = TypeVar("T")


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest) -> NewLoop:
    """What makes event loops."""
    return loop_factory(request.param)


@pytest.fixture
def run(new_loop: NewLoop) -> Run:
    """What runs a coroutine in such a loop. A task that is left over, or an error that nobody sees, is a failure."""

    def run_it(main: Coroutine[Any, Any, T]) -> T:
        complaints: list[dict[str, Any]] = []

        async def watched() -> T:
            asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
            value = await main
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return value

        with asyncio.Runner(loop_factory=new_loop) as runner:
            value = runner.run(watched())
        assert complaints == []
        return value

    return run_it


@pytest.fixture(scope="session")
def embedded_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as server:
        yield server


@pytest.fixture(params=["real", "embedded"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """An empty server of either kind."""
    server: RedisServer | EmbeddedServer
    if request.param == "real":
        server = request.getfixturevalue("redis_server")
    else:
        server = request.getfixturevalue("embedded_server")
    with Backend(request.param, server.port) as backend:
        backend.view.flushall()
        yield backend


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[Backend]:
    """The session's real server."""
    with Backend("real", redis_server.port) as backend:
        yield backend


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
