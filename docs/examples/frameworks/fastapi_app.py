"""FastAPI: one context for the application, a lock for each request, 423 Locked for a lock that another request holds."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, TypedDict

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

from wheel_lock import LockContext, LockNotAcquired, LockTimeout, LockUnavailable
from wheel_lock.asyncio import AsyncContext

RETRY_AFTER_S = 1


class State(TypedDict):
    locks: AsyncContext


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[State]:
    """Make the context when the worker starts; release what is held when it stops."""
    context = LockContext.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))
    async with context.asyncio as locks:
        yield {"locks": locks}


def current_locks(request: Request) -> AsyncContext:
    locks: AsyncContext = request.state.locks
    return locks


Locks = Annotated[AsyncContext, Depends(current_locks)]
app = FastAPI(lifespan=lifespan)


@app.exception_handler(LockNotAcquired)
async def locked(request: Request, error: Exception) -> JSONResponse:
    """Answer for a lock that another request holds. Use 409 instead where clients do not know 423."""
    return JSONResponse({"detail": "busy"}, status_code=423, headers={"Retry-After": str(RETRY_AFTER_S)})


@app.exception_handler(LockUnavailable)
@app.exception_handler(LockTimeout)
async def unavailable(request: Request, error: Exception) -> JSONResponse:
    """Answer for a server that cannot be reached, or does not answer in time."""
    return JSONResponse({"detail": "no locks"}, status_code=503, headers={"Retry-After": str(RETRY_AFTER_S)})


@app.post("/orders/{order}/charge")
async def charge(order: int, locks: Locks) -> dict[str, int]:
    async with locks.lock(f"order:{order}", blocking_timeout=0.5, fencing=True, cancel_on_lost=True) as lock:
        fence = lock.fence or 0
        # ... charge the customer; the fence goes with what is written
        return {"order": order, "fence": fence}
