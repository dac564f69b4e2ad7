"""A WSGI application for gunicorn: what it has at module level is made before the fork, and before gevent patches."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.greenlets.beside import Beside
from wheel_lock import LockContext, LostEvent

context = LockContext.from_url(os.environ["APPLICATION_REDIS_URL"])
lost: list[str] = []
before_the_fork = context.lock("before the fork", timeout=60.0)
before_the_fork.acquire()
beside: list[Beside] = []  # one, from the first request on


def on_lost(event: LostEvent) -> None:
    lost.append(f"{event.name!r}: {event.reason}")


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    path = environ["PATH_INFO"]
    if not beside:
        beside.append(Beside())
    start_response("200 OK", [("Content-Type", "application/json")])
    if path == "/report":
        return [json.dumps([lost, str(before_the_fork.lost), context.stats().held]).encode()]
    if path == "/starved":
        return [json.dumps(beside[0].starved).encode()]
    with context.lock(path, timeout=0.6, on_lost=on_lost) as lock:
        if path == "/busy":
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                pass  # no other greenlet runs
        else:
            time.sleep(0.02)
        held = lock.is_held
    return [json.dumps(held).encode()]
