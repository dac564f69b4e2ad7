"""What a lock that many want costs the server: for each grant a script and a SET, and messages only to those they help."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import LockContext

NAME = "order:42"
CHANNEL = "wheel_lock:wake:{order:42}"
TIMES = 20


def calls(real: Backend) -> dict[str, int]:
    """How often the server has executed each command since the last CONFIG RESETSTAT."""
    stats: Any = real.view.info("commandstats")
    return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}


def crowd(real: Backend, contexts: list[LockContext], threads: int, work: Callable[[], object]) -> dict[str, int]:
    """Have the threads of each context take the lock so many times each; return what the server has executed."""

    def take_turns(context: LockContext) -> None:
        lock = context.lock(NAME, timeout=30.0)
        for _ in range(TIMES):
            with lock:
                work()

    with contexts[0].lock(NAME, timeout=30.0):
        wanting = [Background(partial(take_turns, context)) for context in contexts for _ in range(threads)]
        eventually(lambda: all(context.stats().waiting == threads for context in contexts), LONG_S)
        eventually(lambda: not any(context._engine.busy for context in contexts), LONG_S)
        real.view.config_resetstat()
    for one in wanting:
        one.result(60.0)
    return calls(real)


def test_within_a_process_a_grant_is_a_release_and_a_set_and_hardly_a_message(real: Backend) -> None:
    threads = 30
    grants = threads * TIMES
    executed = crowd(real, [real.context(fallback_interval=60.0)], threads, lambda: None)
    assert executed["del"] == grants + 1
    assert executed["evalsha"] <= 1.1 * grants
    assert executed["set"] <= 1.1 * grants
    assert executed["publish"] <= 0.1 * grants


@pytest.mark.parametrize("processes", [2, 3])
def test_others_are_woken_where_they_have_a_chance_and_all_get_their_turn(real: Backend, processes: int) -> None:
    # Contexts with timers of their own are to each other as processes are.
    contexts = [real.context(timer=real.timer(), fallback_interval=60.0) for _ in range(processes)]
    inside: list[int] = []

    def work() -> None:
        inside.append(1)
        assert inside == [1]
        inside.pop()

    threads = 10
    grants = processes * threads * TIMES
    executed = crowd(real, contexts, threads, work)
    assert executed["del"] == grants + 1
    assert executed["publish"] <= 0.25 * grants
    assert executed["evalsha"] + executed["set"] <= (2.5 + 0.3 * processes) * grants


def test_what_is_passed_on_within_a_process_is_no_news_to_another(real: Backend) -> None:
    context = real.context(fallback_interval=60.0)
    go_on = threading.Semaphore(0)

    def take_turn() -> None:
        with context.lock(NAME, timeout=30.0):
            assert go_on.acquire(timeout=LONG_S)

    with context.lock(NAME, timeout=30.0):
        waiting = [Background(take_turn) for _ in range(10)]
        eventually(lambda: context.stats().waiting == 10, LONG_S)
        eventually(lambda: not context._engine.busy, LONG_S)
        listener = real.view.pubsub(ignore_subscribe_messages=True)
        listener.subscribe(CHANNEL)
        eventually(lambda: dict(real.view.pubsub_numsub(CHANNEL))[CHANNEL.encode()] == 2, LONG_S)
    for _ in waiting:
        go_on.release()
    for one in waiting:
        one.result(LONG_S)
    real.view.publish(CHANNEL, "the last")
    heard: list[bytes] = []

    def listen() -> bool:
        message = listener.get_message(timeout=0.1)
        if message is not None:
            heard.append(message["data"])
        return heard[-1:] == [b"the last"]

    eventually(listen, LONG_S)
    assert heard == [b"0", b"0", b"the last"], "of the first release, and of the last, behind which nobody waits"
