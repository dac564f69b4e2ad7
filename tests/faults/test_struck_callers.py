"""Callers that are struck anywhere by exceptions from outside, or cancelled: they break no rule, and leave nothing.

Threads and tasks of two processes contend for a few names through two contexts each. Threads are struck as by the time
limits of job frameworks (PyThreadState_SetAsyncExc), in acquires, blocks and releases; tasks are cancelled. STRUCK_SEED
chooses what is done, STRUCK_S for how long.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.checker import Belief, History, Violation, check
from tests.faults.monitor import Monitor
from tests.faults.server_log import Called, Released, ServerLog
from tests.support.nursery import Nursery
from tests.support.redis_server import RedisServer

PROCESSES, THREADS, TASKS = 2, 4, 3  # threads and tasks of each of two contexts
DURATION_S, LIMIT_S = 2.0, 30.0
STUCK_S = 120.0  # a process that takes longer is beyond telling what it is stuck in
SLACK_S = 0.02  # some servers read their clock once for several commands
ENOUGH = 10  # strikes in each phase and process
TIMEOUT_S = 120.0  # no lock that is left behind expires while the test runs
NAMES = [f"struck:{number}" for number in range(8)]


@pytest.mark.slow
def test_struck_callers_break_no_rule_and_leave_nothing(fresh_redis: RedisServer, tmp_path: Path) -> None:
    seed = os.environ.get("STRUCK_SEED") or str(random.randrange(1 << 32))
    print("seed", seed)
    with Monitor(fresh_redis) as monitor, Nursery("tests.faults.struck") as nursery:
        children = []
        for number in range(PROCESSES):
            settings = {
                "url": fresh_redis.url,
                "names": NAMES,
                "timeout": TIMEOUT_S,
                "duration": float(os.environ.get("STRUCK_S", DURATION_S)),
                "limit": LIMIT_S,
                "enough": ENOUGH,
                "threads": THREADS,
                "tasks": TASKS,
                "seed": seed,
                "number": number,
                "path": str(tmp_path / f"{number}.json"),
            }
            children.append(nursery.start(json.dumps(settings)))
        try:
            assert all(child.ends_within(STUCK_S) for child in children), f"a process is stuck, seed {seed}"
            assert [child.wait() for child in children] == [0] * PROCESSES, f"seed {seed}"
        finally:
            for child in children:
                child.kill()
    parts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert [part["left"] for part in parts] == [[]] * PROCESSES, f"seed {seed}"
    log = ServerLog(NAMES, monitor.calls())
    beliefs = [Belief(*belief) for part in parts for belief in part["beliefs"]]
    released = [Released(*released) for part in parts for released in part["released"]]

    violations = [*check(History(beliefs, log.tenures), slack_s=SLACK_S), *log.violations, *log.named_after(released)]
    assert violations == [], f"seed {seed}"
    assert log.left == [], f"seed {seed}"
    assert [part["troubles"] for part in parts] == [[]] * PROCESSES, f"seed {seed}"
    # They were struck, and have worked.
    for part in parts:
        struck = Counter(part["struck"])
        print(dict(struck), len(part["places"]), "places,", len(part["released"]), "releases")
        assert min(struck[phase] for phase in ("acquire", "release", "block", "task")) >= ENOUGH, struck
        assert len(part["released"]) > 20
    assert log.changes > len(beliefs)


# The checker of what the server did, with histories that break a rule


def called(at: float, text: str, *, of_script: bool = False) -> Called:
    return Called(at, of_script, tuple(text.encode().split()))


ACQUIRED = called(1.0, "SET a one NX PX 1000")
RELEASE = called(2.0, "EVALSHA 0 1 a one channel")
DELETED = called(2.0, "del a", of_script=True)


def broken(calls: list[Called], released: list[Released] | None = None) -> list[str]:
    log = ServerLog(["a", "b"], calls)
    found: list[Violation] = [*log.violations, *log.named_after(released or [])]
    return [violation.rule for violation in found]


def test_a_history_that_breaks_no_rule() -> None:
    log = ServerLog(["a"], [ACQUIRED, called(1.5, "SET a two NX PX 1000"), RELEASE, DELETED])
    assert log.violations == []
    assert [tuple(tenure) for tenure in log.tenures] == [("a", "one", 1.0, 2.0)]
    assert log.left == []
    assert list(log.named_after([Released("one", 2.5)])) == []


@pytest.mark.parametrize("verb", ["del a", "pexpire a 1000", "set a two"])
def test_a_call_that_touches_anothers_key(verb: str) -> None:
    assert broken([ACQUIRED, called(2.0, "EVALSHA 0 1 a two"), called(2.0, verb, of_script=True)]) == ["S4"]


def test_a_client_that_touches_anothers_key_itself() -> None:
    assert broken([ACQUIRED, called(2.0, "DEL a")]) == ["S4"]


def test_a_renewal_after_the_release() -> None:
    calls = [ACQUIRED, RELEASE, DELETED, called(3.0, "EVALSHA 0 0 1000 b two a one")]
    assert broken(calls, [Released("one", 2.5)]) == ["S6"]
    assert broken(calls, [Released("one", 3.5)]) == []


def test_a_name_that_stays_taken() -> None:
    log = ServerLog(["a"], [ACQUIRED])
    assert log.left == ["a"]
    assert [
        violation.rule for violation in check(History([Belief("a", "two", 1, 1.0, 2.0, None, "running")], log.tenures))
    ] == ["S1"]
