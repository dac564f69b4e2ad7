"""The scenario of losses runs with tiny numbers, and counts what was told before and after the end of a lease."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bench.rivals import Rival, in_python
from bench.scenarios import Run, failed, load, losses
from bench.scenarios.losses import CASES, Case
from tests.support.redis_server import require_redis_server

LOCKS = 3

# Its keys last, whatever the machine does meanwhile, and it tells of the first lock only.
STUB = """
import json, sys, time, redis
url, options = sys.argv[-2], json.loads(sys.argv[-1])
client = redis.Redis.from_url(url)
for number in range(options["locks"]):
    name = options["prefix"] + str(number)
    if sys.argv[1] == "hash":
        client.hset(name, "me", 1)
        client.expire(name, 60)
    elif sys.argv[1] == "majority":
        for part, seconds in enumerate((90, 30, 60)):
            client.set(f"stub:{part}:{name}", "mine", ex=seconds)
    else:
        client.set(name, "mine", ex=60)
print("up", flush=True)
for line in sys.stdin:
    print("Traceback (most recent call last):", file=sys.stderr, flush=True)
    print("lost 0", time.monotonic(), "of a stub")
    print("result {}", flush=True)
"""


def stub(kind: str = "string") -> Rival:
    return Rival("stub", lambda: [sys.executable, "-c", STUB, kind])


@pytest.mark.slow
def test_it_runs_with_tiny_numbers(tmp_path: Path) -> None:
    require_redis_server()
    ours, rival = in_python()[:2]
    records = list(losses.measure(Run([ours, rival], tiny=True)))
    assert [(record["case"]["case"], record["rival"]) for record in records] == [
        (case, one.name) for case in ("gone", "deleted") for one in (ours, rival)
    ]
    for record in records:
        if record["rival"] == ours.name:
            assert sum(losses.counts(record["values"])) == LOCKS
            assert losses.counts(record["values"])[2] == 0
    scenario = load("losses")
    text = scenario.tables(records)
    assert "**Deleted**" in text
    assert text.count(f"| {rival.name} |") == 2
    assert [(tmp_path / name).read_text()[:5] for name in scenario.draw(records, tmp_path)] == ["<?xml"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_happens(case: Case) -> None:
    require_redis_server()
    (record,) = losses.together([stub()], case, 0.2, LOCKS)
    values = record["values"]
    assert losses.counts(values) == (1, 0, 2)
    assert values["reasons"] == {"of a stub": 1}
    assert values["stderr_traceback"]
    assert values["kept"] == (LOCKS if case.harmless else None)
    assert all(50 < left_s <= 60 for left_s in values["left_s"])


def test_what_is_told_is_counted_from_the_end_of_the_lease() -> None:
    values = {"told_s": [1.0, 2.5, None, 2.0], "left_s": [2.0, 2.0, 2.0, 2.0]}
    assert losses.counts(values) == (2, 1, 1)
    assert losses.after_the_end(values) == [-1.0, 0.5, 0.0]


def test_where_no_lease_has_to_end_it_counts_what_is_still_held(tmp_path: Path) -> None:
    key = {"case": "interrupted", "timeout_s": 3.0, "locks": 3}
    values = {"told_s": [0.5, None, None], "left_s": [2.0] * 3, "kept": 2, "reasons": {"gave up": 1}}
    records = [
        {"rival": "a", "case": key, "round": 1, "values": values | {"stderr_lines": 2, "stderr_traceback": True}},
        failed(stub(), key, "no JDK"),
    ]
    assert losses.tables(records).splitlines()[-2:] == [
        "| a | 3 | 2 of 3 | 1 of 3 | gave up | a traceback |",
        "| stub | 3 | failed: no JDK |  |  |  |",
    ]
    assert losses.draw(records, tmp_path) == {}


def test_a_table_says_what_is_known_of_each(tmp_path: Path) -> None:
    key = {"case": "gone", "timeout_s": 3.0, "locks": 2}
    silent: dict[str, Any] = {"kept": None, "reasons": {}, "stderr_lines": 1, "stderr_traceback": False}
    told = silent | {"reasons": {"a|b": 1}}
    records = [
        failed(stub(), key, "no JDK"),
        {"rival": "b", "case": key, "round": 1, "values": silent | {"told_s": [None] * 2, "left_s": [2.0] * 2}},
        {"rival": "wheel_lock", "case": key, "round": 1, "values": told | {"told_s": [1.0], "left_s": [2.0]}},
        {"rival": "wheel_lock", "case": key, "round": 2, "values": told | {"told_s": [1.5], "left_s": [2.0]}},
    ]
    assert losses.tables(records).splitlines()[-3:] == [
        "| wheel_lock | 3 | 2 / 0 / 0 | 1.250, 1.500 | -0.750, -0.500 | a\\|b | 2 lines |",
        "| stub | 3 | failed: no JDK |  |  |  |  |",
        "| b | 3 | 0 / 0 / 2 |  |  |  | 1 line |",
    ]
    (name,) = losses.draw(records, tmp_path)
    first = (tmp_path / name).read_bytes()
    assert b"never" in first
    losses.draw(records, tmp_path)
    assert (tmp_path / name).read_bytes() == first
