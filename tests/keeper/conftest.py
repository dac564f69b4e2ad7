"""Fixtures: processes that can be killed, and keepers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.keeper.rig import Hold, Holder, HostKeeper
from tests.keeper.test_program import Served
from tests.support.fixtures import fixture_of
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer

collect_ignore_glob = [] if sys.platform == "linux" else ["test_[ckpt]*.py"]  # keepers need Linux

fork_server = fixture_of(lambda: ForkServer("tests.keeper.holder"), "module")


@pytest.fixture
def hold(fork_server: ForkServer, redis_server: RedisServer) -> Iterator[Hold]:
    started: list[Holder] = []

    def start(act: str, *, where: str = "child", delay: float = 0.0, url: str = "") -> Holder:
        started.append(Holder(*fork_server.start_heard(url or redis_server.url, where, act, str(delay))))
        return started[-1]

    yield start
    for holder in started:
        holder.close()


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis_server.admin


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[HostKeeper]:
    keeper = HostKeeper(tmp_path)
    keeper.start()
    yield keeper
    keeper.kill()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.end()
