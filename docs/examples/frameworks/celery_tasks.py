"""Celery: tasks of which one at a time runs for each customer, in any number of workers and prefork processes."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_shutdown

from wheel_lock import LockContext, LockNotAcquired

url = os.environ.get("REDIS_URL", "redis://localhost:6379")
app = Celery("shop", broker=url, backend=url)
context = LockContext.from_url(url)  # made before the fork; each process of the pool has connections of its own


@worker_process_shutdown.connect
def release_locks(**_: Any) -> None:
    """Release what is held: a process of the pool ends without the functions of ``atexit``."""
    context.close()


@app.task(autoretry_for=(LockNotAcquired,), retry_backoff=1, retry_jitter=True, max_retries=None, soft_time_limit=300)
@context.locked("invoice:{customer}", timeout=30.0, blocking=False)
def write_invoice(customer: int) -> str:
    """Run while no other invoice of that customer is written; otherwise the task goes back to the queue."""
    return f"invoice of {customer}"
