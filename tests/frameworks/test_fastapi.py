"""FastAPI and Starlette: the lifespan makes and closes the context, handlers answer for locks that are not to be had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

import pytest

from tests.support.backend import Backend


@asynccontextmanager
async def serving(framework: str) -> AsyncIterator[tuple[Any, Any]]:
    """The application between its start and its end, as a server runs it: a client of it, and the locks in its state."""
    import httpx  # here, as the frameworks: it takes long, and most processes that read this file run none of its tests

    app = import_module(f"docs.examples.frameworks.{framework}_app").app
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "state": dict(state)}, receive, send)

        transport = httpx.ASGITransport(app=with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            yield client, state["locks"]


@pytest.fixture
def redis_url(real: Backend, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REDIS_URL", real.url)
    return real.url


@pytest.mark.usefixtures("redis_url")
@pytest.mark.parametrize(("name", "status"), [("fastapi", 423), ("starlette", 409)])
async def test_a_request_whose_lock_another_holds_is_to_come_again(real: Backend, name: str, status: int) -> None:
    async with serving(name) as (client, _):
        with real.context().lock("order:42"):
            answer = await client.post("/orders/42/charge")
        assert (answer.status_code, answer.headers["Retry-After"]) == (status, "1")
        assert (await client.post("/orders/42/charge")).status_code == 200


@pytest.mark.usefixtures("redis_url")
async def test_the_fences_of_requests_grow_and_nothing_stays_held(real: Backend) -> None:
    async with serving("fastapi") as (client, locks):
        fences = [(await client.post("/orders/42/charge")).json()["fence"] for _ in range(3)]
        assert 0 < fences[0] < fences[1] < fences[2]
        assert not real.view.exists("order:42")
        assert not locks.closed
    assert locks.closed


async def test_a_server_that_is_away_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1")
    async with serving("fastapi") as (client, _):
        answer = await client.post("/orders/42/charge")
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
