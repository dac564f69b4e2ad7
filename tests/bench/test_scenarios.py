"""Each scenario of the benchmark suite runs, with tiny numbers; its figures are checked for errors only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import guarded, kept
from bench.rivals import Rival, in_python
from bench.scenarios import Record, Run, held, load, losses, saturated, values_of
from bench.scenarios.losses import CASES, Case
from bench.workers import ROOT
from tests.support.redis_server import RedisServer, require_redis_server, require_tracking

MEASURED = ["slack", "losses", "round_trips", "pairs", "handover", "crowd", "saturated", "churn", "cluster"]
RIVALS = {rival.name: rival for rival in in_python()}
OURS = RIVALS["wheel_lock"]


def program(name: str, text: str, *arguments: str, most_held: int = 1_000_000) -> Rival:
    return Rival(name, lambda: [sys.executable, "-c", text, *arguments], most_held=most_held, cluster=True)


BROKEN = program("broken", "print('failed it is broken')")
CARELESS = """
import sys
print("up", flush=True)
for line in sys.stdin:
    print('result {"renewed": null, "lost": 0, "heap": null}', flush=True)
"""
"""A worker that holds nothing, and does not know."""


def measured(name: str, rivals: list[Rival], folder: Path) -> list[Record]:
    """Measure a scenario, show and draw it, and return the records."""
    require_redis_server()
    scenario = load(name)
    records = list(scenario.measure(Run(rivals, tiny=True, rounds=1)))
    assert json.loads(json.dumps(records)) == records
    mine = [record for record in records if record["rival"] == OURS.name]
    assert mine
    assert all("values" in record for record in mine), mine
    theirs = [record for record in records if record["rival"] == BROKEN.name]
    assert not any("values" in record for record in theirs)
    text = scenario.tables(records)
    assert OURS.name in text
    assert BROKEN.name in text or not theirs
    drawn = scenario.draw(records, folder)
    assert drawn
    for file, sentence in drawn.items():
        assert (folder / file).read_text().startswith("<?xml")
        assert sentence
    return records


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_a_scenario_is_measured_shown_and_drawn(name: str, tmp_path: Path) -> None:
    measured(name, [OURS, BROKEN], tmp_path)


@pytest.mark.slow
def test_locks_that_are_gone_are_counted_and_what_is_not_tried_says_why(tmp_path: Path) -> None:
    rivals = [OURS, BROKEN, program("careless", CARELESS), program("small", CARELESS, most_held=20)]
    records = measured("held", rivals, tmp_path)
    assert values_of(records, OURS.name, "gone") == [0, 0]
    assert values_of(records, "careless", "gone") == [20, 50]
    assert [(one["rival"], one["skipped"]) for one in records if "skipped" in one] == [
        (BROKEN.name, "failed with 20"),
        ("small", "not tried above 20"),
    ]
    longer = [record | {"case": record["case"] | {"timeout_s": 30.0}} for record in records]
    assert "all 20 gone | all 50 gone" in " ".join(held.tables([*records, *longer]).split())


def test_the_look_at_keys(fresh_redis: RedisServer) -> None:
    client = fresh_redis.client()
    assert client.eval(held.LOOK, 0, "*held:*") == [0, -1]
    client.set("held:0", "token", px=60_000)
    client.set("a package's prefix:held:1", "token", px=30_000)
    client.set("another", "token", px=10_000)
    kept, least = client.eval(held.LOOK, 0, "*held:*")
    assert kept == 2
    assert 10_000 < least <= 30_000


def test_a_machine_without_redis_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    require_redis_server()
    monkeypatch.setattr(saturated, "redis_benchmark", lambda: None)
    records = list(saturated.measure(Run([OURS], tiny=True)))
    assert [record["rival"] for record in records] == ["redis-benchmark", "wheel_lock"]
    assert "skipped: no redis-benchmark" in saturated.tables(records)
    assert list(saturated.measure(Run([RIVALS["redis-py, pipeline"]], tiny=True))) == []


# Its keys last, whatever the machine does meanwhile, and it reports the first lock only.
STUB = """
import json, re, socket, sys, time
port, options = int(re.search(r":(\\d+)", sys.argv[-2])[1]), json.loads(sys.argv[-1])
server = socket.create_connection(("127.0.0.1", port))
for number in range(options["locks"]):
    server.sendall(b"SET %b%d mine EX 60\\r\\n" % (options["prefix"].encode(), number))
    assert server.recv(100) == b"+OK\\r\\n"
print("up", flush=True)
for line in sys.stdin:
    print("Traceback (most recent call last):", file=sys.stderr, flush=True)
    print("lost 0", time.monotonic(), "of a stub")
    print("result {}", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case_of_a_loss_happens(case: Case) -> None:
    require_redis_server()
    (record,) = losses.together([program("stub", STUB)], case, 0.2, 3)
    values = record["values"]
    assert losses.counts(values) == (1, 0, 2)
    assert values["reasons"] == {"of a stub": 1}
    assert values["stderr_traceback"]
    assert values["kept"] == (3 if case.harmless else None)
    assert all(50 < left_s <= 60 for left_s in values["left_s"])


PYTEST = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--benchmark-disable"]
TINY = ["--locks", "200", "--deleted", "20", "--timeout", "4", "--seconds", "0.3"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ([*PYTEST, "bench/bench_operations.py"], []),
        (["bench.watched", *TINY], ["| False |", "| True |"]),
        (["bench.crashed", "--kills", "3", "--locks", "1", "20"], ["| 1 |  | 3 |", "| 20 |  | 3 |"]),
    ],
    ids=["operations", "watched", "crashed"],
)
def test_a_program_of_its_own_measures(command: list[str], rows: list[str]) -> None:
    require_redis_server()
    if command[0] == "bench.watched":
        require_tracking()
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert [row for row in rows if done.stdout.count(f"\n{row}") != 1] == []


@pytest.mark.slow
def test_the_cost_of_a_guard_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded.main(["--transactions", "2", "--rounds", "1"]) == 0
    assert [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()[4:]] == [
        "| " + name for name in guarded.DATABASES
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="keepers need Linux")
def test_the_cost_of_a_keeper_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert kept.main(["--tiny", "--rounds", "1", "--locks", "200"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert {row[0] for row in rows} >= {"| 1 thread", "| renewals of 200 locks", "| 200 locks in a call"}
    assert all(len(row) == 5 for row in rows)
