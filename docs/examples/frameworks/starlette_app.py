"""Starlette: the same lifespan and handlers as FastAPI's, given to the application."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from wheel_lock import LockContext, LockNotAcquired


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    context = LockContext.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))
    async with context.asyncio as locks:
        yield {"locks": locks}


async def locked(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "busy"}, status_code=409, headers={"Retry-After": "1"})


async def charge(request: Request) -> JSONResponse:
    async with request.state.locks.lock(f"order:{request.path_params['order']}", blocking=False):
        return JSONResponse({"charged": True})


app = Starlette(
    lifespan=lifespan,
    routes=[Route("/orders/{order:int}/charge", charge, methods=["POST"])],
    exception_handlers={LockNotAcquired: locked},
)
