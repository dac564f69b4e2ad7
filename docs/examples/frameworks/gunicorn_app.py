"""gunicorn: the application is loaded once, before the workers are forked (``--preload``), and its context with it.

gunicorn --preload --workers 4 --config python:gunicorn_app gunicorn_app:app
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from wheel_lock import LockContext, LockNotAcquired

context = LockContext.from_url(os.environ.get("REDIS_URL", "redis://localhost:6379"))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    try:
        with context.lock(f"page:{environ['PATH_INFO']}", blocking_timeout=5.0) as lock:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b"held by %d\n" % os.getpid() if lock.is_held else b"lost\n"]
    except LockNotAcquired:
        start_response("423 Locked", [("Content-Type", "text/plain"), ("Retry-After", "1")])
        return [b"busy\n"]


def worker_exit(server: Any, worker: Any) -> None:
    """Release what the worker holds; gunicorn calls it at the end of each worker."""
    context.close()
