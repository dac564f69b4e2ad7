"""Fixtures: contexts on whatever server the test runs against, threads that live on, and event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.aio.support import Run, watched_run
from tests.family.support import Elsewhere, NewThread
from tests.redis.support import Backend
from tests.support.proxy import TcpProxy
from wheel_lock import LockContext


@pytest.fixture
def context(backend: Backend) -> LockContext:
    return backend.context()


@pytest.fixture
def other(backend: Backend) -> LockContext:
    """A second context on the same server, as another process would have one."""
    return backend.context()


@pytest.fixture
def new_thread(backend: Backend) -> Iterator[NewThread]:
    """What starts threads that live until the test ends. (Their contexts, which are the backend's, are closed later.)"""
    with ExitStack() as threads:
        yield lambda: threads.enter_context(Elsewhere())


@pytest.fixture
def run() -> Run:
    """What runs a coroutine in an event loop. A task that is left over, or an error that nobody sees, is a failure."""
    return watched_run(asyncio.new_event_loop)


@pytest.fixture
def far(real: Backend, proxy: TcpProxy) -> LockContext:
    """A context behind a network that can fail, whose connection stands."""
    context = real.context_through(proxy, timer=real.timer())
    with context.lock("warm-up"):
        pass
    return context
