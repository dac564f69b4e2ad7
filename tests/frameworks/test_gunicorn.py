"""gunicorn --preload: workers that are forked from a loaded application have connections of their own, and take turns."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.frameworks.programs import LONG_S, program
from tests.support.ports import candidate_port
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

MODULE = "docs.examples.frameworks.gunicorn_app"


@pytest.mark.slow
def test_workers_that_are_forked_from_a_loaded_application_share_locks(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    port, output = candidate_port(), tmp_path / "gunicorn.txt"
    options = ["--preload", "--workers", "2", "--threads", "2", "--config", f"python:{MODULE}", "--no-control-socket"]
    arguments = ["gunicorn", *options, "--bind", f"127.0.0.1:{port}", f"{MODULE}:app"]

    def get(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=LONG_S) as response:
            return str(response.read().decode())

    with program(*arguments, output=output, redis_url=redis_server.url) as gunicorn:

        def is_up() -> bool:
            try:
                return gunicorn.alive and bool(get("/"))
            except OSError:
                return False

        eventually(is_up, LONG_S, interval_s=0.05)
        with ThreadPoolExecutor(8) as pool:
            answers = set(pool.map(get, ["/order"] * 100))
        assert all(answer.startswith("held by ") for answer in answers)
        assert f"held by {gunicorn.process.pid}\n" not in answers
        with redis_server.client() as view:
            assert sum(client["name"].startswith("wheel_lock") for client in view.client_list()) >= len(answers)
            assert gunicorn.end() == 0
            assert not view.keys("page:*")
        assert "Traceback" not in gunicorn.output
