"""The scenarios of held locks, and of renewals without a pause, with tiny numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.rivals import Rival, in_python
from bench.scenarios import Record, Run, held, saturated, values_of
from tests.support.redis_server import RedisServer, require_redis_server

pytestmark = pytest.mark.slow

RIVALS = {rival.name: rival for rival in in_python()}
OURS = RIVALS["wheel_lock"]
PIPELINE = RIVALS["redis-py, pipeline"]

CARELESS = """
import sys
print("up", flush=True)
for line in sys.stdin:
    print('result {"renewed": null, "lost": 0, "heap": null}', flush=True)
"""
"""A worker that holds nothing, and does not know."""


def program(name: str, text: str, most_held: int = 1_000_000) -> Rival:
    return Rival(name, lambda: [sys.executable, "-c", text], most_held=most_held)


def shown(records: Sequence[Record]) -> list[list[str]]:
    """Return the cells of all tables, by lines."""
    lines = held.tables(records).splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]


def test_held_locks(tmp_path: Path) -> None:
    require_redis_server()
    rivals = [
        OURS,
        PIPELINE,
        program("failing", "print('failed it is broken')"),
        program("careless", CARELESS),
        program("small", CARELESS, most_held=20),
    ]
    records = list(held.measure(Run(rivals, tiny=True)))
    assert json.loads(json.dumps(records)) == records
    for rival in (OURS, PIPELINE):
        for locks in (20, 50):
            case = {"locks": locks, "timeout_s": 3.0}
            assert values_of(records, rival.name, "gone", **case) == [0]
            assert values_of(records, rival.name, "least_ttl_s", **case)[0] > 0
            assert values_of(records, rival.name, "renewals_per_s", **case)[0] > 0
            for key in ("client_s_per_renewal", "server_s_per_renewal", "bytes_in_per_renewal", "rss", "threads"):
                assert values_of(records, rival.name, key, **case)[0] > 0
    assert values_of(records, "careless", "gone") == [20, 50]
    assert [record["failed"] for record in records if "failed" in record] == [
        f"{Path(sys.executable).name}: it is broken"
    ]
    assert [(one["rival"], one["skipped"]) for one in records if "skipped" in one] == [
        ("failing", "failed with 20"),
        ("small", "not tried above 20"),
    ]

    table = shown(records)
    assert {len(row) for row in table} == {9}
    rows = {row[0]: row[1:] for row in table[2:7]}
    assert next(iter(rows)) == OURS.name
    assert rows.keys() == {rival.name for rival in rivals}
    assert rows["failing"][0].startswith("failed: ")
    assert rows["careless"][-2:] == ["20", "0"]

    longer = [record | {"case": record["case"] | {"timeout_s": 30.0}} for record in records]
    summary = {row[0]: row[1:] for row in shown([*records, *longer]) if len(row) == 3}
    assert summary[""] == ["20", "50"]
    assert summary["careless"] == ["all 20 gone", "all 50 gone"]

    for name, sentence in held.draw(records, tmp_path).items():
        assert (tmp_path / name).read_text().startswith("<?xml")
        assert sentence


def test_the_look_at_keys(fresh_redis: RedisServer) -> None:
    client = fresh_redis.client()
    assert client.eval(held.LOOK, 0, "*held:*") == [0, -1]
    client.set("held:0", "token", px=60_000)
    client.set("a package's prefix:held:1", "token", px=30_000)
    client.set("another", "token", px=10_000)
    kept, least = client.eval(held.LOOK, 0, "*held:*")
    assert kept == 2
    assert 10_000 < least <= 30_000


def test_the_most_renewals(tmp_path: Path) -> None:
    require_redis_server()
    records = list(saturated.measure(Run([OURS, PIPELINE], tiny=True)))
    assert not any("failed" in record for record in records), records
    assert values_of(records, "wheel_lock", "renewals_per_s")[0] > 0
    assert OURS.name in saturated.tables(records)
    if saturated.redis_benchmark() is not None:
        assert saturated.share(records, 200)[0] > 0
    for name in saturated.draw(records, tmp_path):
        assert (tmp_path / name).exists()


def test_a_machine_without_redis_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    require_redis_server()
    monkeypatch.setattr(saturated, "redis_benchmark", lambda: None)
    records = list(saturated.measure(Run([OURS], tiny=True)))
    assert [record["rival"] for record in records] == ["redis-benchmark", "wheel_lock"]
    assert "skipped: no redis-benchmark" in saturated.tables(records)


def test_the_most_renewals_are_not_measured_without_the_library() -> None:
    assert list(saturated.measure(Run([PIPELINE], tiny=True))) == []
