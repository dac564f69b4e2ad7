"""The workers of the rivals in Go, on Node and in Java answer in every mode, with tiny numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

import pytest

from bench.rivals import go, jvm, node
from tests.support import rival_worker
from tests.support.redis_server import RedisServer

WORKERS: dict[str, tuple[ModuleType, str]] = {
    **{program: (go, program) for program in go.PROGRAMS},
    **{program: (node, program) for program in node.PROGRAMS},
    "redisson": (jvm, "redisson"),
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
    found: list[str] = rival_worker.little_jvm(worker) if language is jvm else language.command(worker)
    return found


@pytest.mark.slow
def test_a_worker_answers_in_every_mode(program: str, command: list[str], redis_server: RedisServer) -> None:
    def check(what: Callable[..., None], *arguments: object, **options: object) -> None:
        redis_server.admin.flushall()  # a worker that was ended may have left a lock
        what(command, redis_server, *arguments, **options)

    redis_server.admin.config_set("notify-keyspace-events", "Egx")  # by which Redisson hears of a loss
    check(rival_worker.check_hold, listen=True)
    check(rival_worker.check_handover)
    if program == "redisson":
        return  # a JVM takes seconds to start
    check(rival_worker.check_crowd)
    if program in WITHOUT_THREADS:
        rival_worker.check_refusal(command, redis_server.url, "pairs", "no threads", callers=4, kind="threads")
    else:
        check(rival_worker.check_pairs, 4, "threads", spin=1)
    check(rival_worker.check_pairs, 20, "tasks")
    rival_worker.check_refusal(command, redis_server.url, "juggle", "no juggle")


@pytest.mark.slow
def test_nettys_wheel_measures_its_timers() -> None:
    build_or_skip(jvm)
    command = rival_worker.little_jvm("netty-wheel")
    rival_worker.check_timers(command)
    rival_worker.check_refusal(command, "-", "hold", "no hold", status=1)
