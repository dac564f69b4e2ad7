"""gevent and eventlet as they are: each scene is a process of its own, because what they patch stays patched.

Those in which it matters how a program ends are started from nothing. The others are forked from one that has imported what
all of them need, and for "early" has patched before: it has no thread and no hub, so this is where any program is by then.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from tests.greenlets.stall_detector import BUSY
from tests.support.fork_server import ForkServer
from tests.support.programs import ENVIRONMENT, ROOT
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.slow

# Each scene, and the times of the patch for which it is run: "running" is as late as "late", so few need both.
SCENES = {
    "a_lock_outlives_a_greenlet_that_computes": "early late running",
    "only_the_greenlet_that_waits_is_suspended": "early running",
    "a_wait_that_is_cancelled_leaves_nothing": "early running",
    "each_greenlet_is_an_owner": "early late running",
    "the_main_greenlet_is_one_owner_before_and_after_there_is_a_hub": "early late running",
    "a_lease_ends_with_its_greenlet": "early running",
    "a_callback_uses_locks": "early late",
    "several_hubs_wait": "early",
    "connections_are_made_anew_while_a_greenlet_computes": "early running",
    "a_connection_ends_beside_a_greenlet_that_computes_with_what_its_end_waits_for": "early running",
    "an_attempt_at_a_connection_is_ended_by_a_time_limit": "early running",
    "the_one_thread_runs_nothing_that_waits": "early late running",
    "records_are_logged_from_a_thread_and_from_greenlets": "early running",
    "a_forked_child_starts_anew": "early running",
    "a_signal_releases_a_lock": "early",
    "all_kinds_of_calls": "early late",
}
ENDS = {
    "it_ends_while_it_holds": "early late running",
    "it_ends_without_its_server": "early running",
    "it_ends_while_a_thread_clears_up": "early running",
}
ALLOWED_S = 5.0  # a second by design; the rest is for a busy machine
LIMIT_S = 100.0  # only a deadlock takes longer
STRICT = ("-W", "error")
TRIES = 8  # attempts to run a program that the machine starves


def cases(scenes: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("scene", "when"), [(scene, when) for scene, whens in scenes.items() for when in whens.split()]
    )


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


class Ended(NamedTuple):
    """How a program has ended, what it wrote, and when it was gone."""

    status: int
    printed: str
    said: str
    at: float


def started(module: str, *arguments: str) -> Ended:
    """Run a program from its very start to its end."""
    command = [sys.executable, *STRICT, "-m", f"tests.greenlets.{module}", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=LIMIT_S)
    return Ended(result.returncode, result.stdout, result.stderr, time.monotonic())


def forked(fork_server: ForkServer, *arguments: str) -> Ended:
    """Run a program to its end that has imported already what it needs."""
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        child = fork_server.start(*arguments, stdout=printed.fileno(), stderr=said.fileno())
        try:
            assert child.ends_within(LIMIT_S), f"{arguments} does not end"
            ended = time.monotonic()
            status = child.wait()
        finally:
            child.kill()
        for file in (printed, said):
            file.seek(0)
        return Ended(status, printed.read(), said.read(), ended)


def right(server: RedisServer, program: Callable[[], Ended]) -> Ended:
    """Run a program that has to end well.

    It is run again where the machine has kept every thread of it from running, which says nothing about ours.
    """
    for _ in range(TRIES):
        ended = program()
        if ended.status != BUSY:
            break
        with server.client() as client:
            client.flushall()
    assert ended.status == 0, ended.said
    # gevent itself says that in a forked child, from Python 3.13 on, of threads that it has found when it patched.
    assert "Exception ignored" not in re.sub(
        r"Exception ignored in(:| atfork callback) <bound method _ForkHooks", "", ended.said
    )
    assert "failed" not in ended.said.replace("failed with WrongThread", "")
    return ended


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], ForkServer]]:
    """Where to fork the program for each WHEN."""
    with ExitStack() as stack:

        @functools.cache
        def fork_server(early: bool) -> ForkServer:
            return stack.enter_context(
                ForkServer("tests.greenlets.program", "early" if early else "later", options=STRICT)
            )

        yield lambda when: fork_server(when == "early")


@needs("gevent")
@cases(SCENES)
def test_under_gevent(redis_server: RedisServer, servers: Callable[[str], ForkServer], scene: str, when: str) -> None:
    url = f"redis://localhost:{redis_server.port}/0"
    right(redis_server, lambda: forked(servers(when), when, scene, url))


@needs("gevent")
@cases(ENDS)
def test_under_gevent_a_program_ends_at_once(fresh_redis: RedisServer, scene: str, when: str) -> None:
    ended = right(fresh_redis, lambda: started("program", when, scene, fresh_redis.url))
    assert ended.at - float(ended.printed) < ALLOWED_S
    if scene == "it_ends_while_it_holds":
        assert not fresh_redis.client().exists("order", "another")


@needs("gevent")
@pytest.mark.parametrize("when", ["early", "running"])
@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_other_transports(
    request: pytest.FixtureRequest, servers: Callable[[str], ForkServer], transport: str, when: str
) -> None:
    server: RedisServer = request.getfixturevalue(f"{transport}_redis")
    right(server, lambda: forked(servers(when), when, "server_and_transport_do_not_matter", server.url))


@needs("eventlet")
def test_under_eventlet(redis_server: RedisServer) -> None:
    right(redis_server, lambda: started("eventlet_program", redis_server.url))
