"""Fixtures: clients of redis-py for locks of its classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis

from tests.redis_lock.callers import Party
from tests.support.backend import Backend
from tests.support.callers import callers
from wheel_lock import LockContext


@pytest.fixture
def client(real: Backend) -> Iterator[redis.Redis]:
    client = real.client()
    yield client
    LockContext.shared(client).close()
    client.close()


@pytest.fixture
def new_party(backend: Backend, api: str) -> Iterator[Callable[..., Party]]:
    """Makes threads or tasks that have a client of their own."""
    kind: Any = redis.Redis if api == "threads" else redis.asyncio.Redis
    with ExitStack() as parties, callers(api) as new_caller:

        def new(**options: Any) -> Party:
            client = kind(host="127.0.0.1", port=backend.port, password=backend.password, **options)
            return parties.enter_context(closing(Party(client, new_caller)))

        yield new
        parties.close()


@pytest.fixture
def party(new_party: Callable[..., Party]) -> Party:
    return new_party()
