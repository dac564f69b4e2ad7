"""The application of the example, with tasks that show what the processes of a pool do: for `celery -A`."""

from __future__ import annotations

import os
import time
from typing import Any

import redis
from celery.exceptions import SoftTimeLimitExceeded

from docs.examples.frameworks.celery_tasks import app, context, url, write_invoice
from wheel_lock import Lock, LockNotAcquired

__all__ = ["app", "write_invoice"]

kept: list[Lock] = []  # held until the process ends
view: Any = redis.Redis.from_url(url)
eager: dict[str, Any] = {"autoretry_for": (LockNotAcquired,), "max_retries": None, "default_retry_delay": 0.05}


@app.task(**eager)  # type: ignore[untyped-decorator, unused-ignore]
@context.locked("turn", timeout=10.0, blocking=False)
def take_turn() -> bool:
    """Return whether no other task was inside."""
    alone = view.incr("inside") == 1
    view.incr("turns")
    time.sleep(0.02)
    return bool(view.decr("inside") == 0) and alone


@app.task(soft_time_limit=3)  # type: ignore[untyped-decorator, unused-ignore]
def hang() -> str:
    """Hold a lock until the soft time limit; return whether it is free after that."""
    try:
        with context.lock("hanging", timeout=60.0):
            view.set("hangs", os.getpid())
            time.sleep(120.0)
    except SoftTimeLimitExceeded:
        kept.append(context.lock("hanging", timeout=600.0, blocking=False))
        return "free" if kept[0].acquire() else "held"
    return "not limited"
