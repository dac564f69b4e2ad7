"""Celery's prefork pool: its processes take turns, a soft time limit frees what its task holds, the end frees the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.programs import LONG_S, program
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

MODULE = "tests.frameworks.celery_program"


def call(app: Any, task: str, *arguments: Any) -> Any:
    return app.send_task(f"{MODULE}.{task}", arguments)


@pytest.mark.slow
def test_the_processes_of_a_worker_take_turns(fresh_redis: RedisServer, tmp_path: Path) -> None:
    from celery import Celery

    view, app = fresh_redis.client(), Celery("caller", broker=fresh_redis.url, backend=fresh_redis.url)
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    arguments = ["celery", "-A", MODULE, "worker", "--pool", "prefork", "--concurrency", "2", *quiet]
    variables = {"C_FORCE_ROOT": "1"}
    with program(*arguments, output=tmp_path / "celery.txt", redis_url=fresh_redis.url, **variables) as worker:
        hanging = call(app, "hang")
        turns = [call(app, "take_turn") for _ in range(5)]
        invoice = app.send_task("docs.examples.frameworks.celery_tasks.write_invoice", [7])

        def result(task: Any) -> Any:
            eventually(lambda: worker.alive and view.exists(f"celery-task-meta-{task.id}"), LONG_S, worker.output)
            stored: Any = view.get(f"celery-task-meta-{task.id}")
            return json.loads(stored)["result"]

        def settled(task: Any) -> Any:
            eventually(lambda: isinstance(result(task), (bool, str)), LONG_S)
            return result(task)

        assert [settled(turn) for turn in turns] == [True] * 5
        assert view.get("turns") == b"5"
        assert settled(invoice) == "invoice of 7"
        assert settled(hanging) == "free"
        assert view.exists("hanging")  # acquired again after the limit, and released by no task
        pid = int(view.get("hangs") or 0)
        assert pid not in (0, os.getpid(), worker.process.pid)
        worker.end()
        eventually(lambda: not view.exists("hanging"), LONG_S, worker.output)
    app.close()
    view.close()
