"""The workers of the rivals in Go and on Node answer in every mode, with tiny numbers. (test_jvm.py has those of Java.)"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import pytest

from bench.rivals import go, node
from tests.support import rival_worker
from tests.support.redis_server import RedisServer

WORKERS: dict[str, tuple[ModuleType, str]] = {
    **{program: (go, program) for program in go.PROGRAMS},
    **{program: (node, program) for program in node.PROGRAMS},
}
WITHOUT_THREADS = node.PROGRAMS

build_or_skip = functools.cache(rival_worker.build_or_skip)


@pytest.fixture(params=WORKERS)
def program(request: pytest.FixtureRequest) -> str:
    build_or_skip(WORKERS[request.param][0])
    name: str = request.param
    return name


@pytest.fixture
def command(program: str) -> list[str]:
    language, worker = WORKERS[program]
    found: list[str] = language.command(worker)
    return found


@pytest.mark.slow
def test_a_worker_answers_in_every_mode(program: str, command: list[str], redis_server: RedisServer) -> None:
    def check(what: Callable[..., None], *arguments: object, **options: object) -> None:
        with redis_server.client() as view:
            view.flushall()  # a worker that was ended may have left a lock
        what(command, redis_server, *arguments, **options)

    check(rival_worker.check_hold)
    if program in WITHOUT_THREADS:
        check(rival_worker.check_refusal, "pairs", "no threads", callers=4, kind="threads")
    else:
        check(rival_worker.check_pairs, 4, "threads", spin=1)
    check(rival_worker.check_pairs, 20, "tasks")
    check(rival_worker.check_handover)
    check(rival_worker.check_crowd)
    check(rival_worker.check_refusal, "juggle", "no juggle")
