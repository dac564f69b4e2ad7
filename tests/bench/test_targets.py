"""The programs of bench/ run, with tiny numbers, and print what they promise to; their figures are not checked."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest

from bench import page, summary
from bench.__main__ import RESULTS, read
from bench.scenarios import MODULES, load
from bench.targets import parts, table
from bench.targets.table import Figure, Round, Row, Scale
from bench.workers import ROOT, Worker, python
from tests.support.redis_server import require_redis_server

TINY = Scale(
    rounds=1,
    timeout_s=6.0,
    held=(20, 50, 100),
    most_held=200,
    most_held_by_rival=100,
    window_s=2.5,
    pairs_s=0.05,
    hand_overs=6,
    bulk_held=100,
    bulk=500,
    timers=100,
    due_s=0.2,
)
ROWS = {row.name: row for row in table.rows(TINY)}


LIKE_OTHERS = ("renew-1k", "renew-10k", "renew-100k", "pair-worker")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ROWS if name not in LIKE_OTHERS])
def test_a_row_is_measured(name: str) -> None:
    require_redis_server()
    records = table.run(ROWS[name], TINY)
    assert "failed" not in {record["side"] for record in records}, records
    lines = table.lines_of(ROWS[name], records)
    assert [line[0] for line in lines] == [f"{ROWS[name].what} {figure.what}" for figure in ROWS[name].figures]
    assert all(line[1] for line in lines)


@pytest.mark.slow
def test_the_parts_of_a_pair() -> None:
    require_redis_server()
    found = parts.look("tasks", 500)
    assert found.cpu_us.keys() == {"callers", "timer", "server"}
    assert found.calls["timer"][0] > 1
    assert found.bytes_sent > 100


def row(*rounds: Round, figure: Figure) -> Row:
    return Row("it", "it:", (figure,), lambda scale: (each for each in rounds))


def shown(row: Row, rounds: int) -> list[tuple[str, ...]]:
    return table.lines_of(row, table.run(row, Scale(rounds=rounds)))


def test_a_ratio_is_the_median_of_those_of_single_rounds() -> None:
    rounds: list[Round] = [
        {"ours": {"cost": 1.0}, "rival": {"cost": 10.0}},
        {"ours": {"cost": 6.0}, "rival": {"cost": 30.0}},
        {"ours": {"cost": 2.0}, "rival": {"cost": 4.0}},
    ]
    assert shown(row(*rounds, figure=Figure("cost", "us", 0.25)), 3) == [
        ("it: us", "2.00", "10.0", "0.20 (0.10 - 0.50)", "<= 0.25")
    ]


@pytest.mark.parametrize(
    ("figure", "target"),
    [
        (Figure("rate", "", 2.0, at_least=True), ">= 2"),
        (Figure("rate", "", 4.0, at_least=True), ">= 4 missed"),
        (Figure("rate", "", 2.0), "<= 2 missed"),
        (Figure("rate", "", 400.0, absolute=True), "<= 400"),
        (Figure("rate", "", None), ""),
    ],
)
def test_a_target_that_is_missed_is_marked(figure: Figure, target: str) -> None:
    assert shown(row({"ours": {"rate": 300.0}, "rival": {"rate": 100.0}}, figure=figure), 1)[0][-1] == target


def test_a_row_that_fails_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(scale: Scale) -> Generator[Round, None, None]:
        yield {"ours": {"rate": 1.0}}
        raise RuntimeError("the server has ended")

    failing = Row("it", "it:", (Figure("rate", "pairs/s", None),), fail)
    assert shown(failing, 2) == [("it", "failed", "", "", "RuntimeError: the server has ended")]
    assert "the server has ended" in capsys.readouterr().err


def test_a_worker_that_fails_is_quoted() -> None:
    failing = ROWS["timer-due"]._replace(measure=partial(table.timers, "calls", False))
    records = table.run(failing, Scale(rounds=1, timers=0))
    assert "bench.targets.timers: ZeroDivisionError" in str(records[0]["values"]["error"])


def test_a_page_keeps_what_is_around_the_table(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- table begins -->\nold\n<!-- table ends -->\nafter\n")
    page.write(path, "table", page.markdown(("a", "b"), [("1", "2")]))
    assert path.read_text() == (
        "before\n<!-- table begins -->\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n\n<!-- table ends -->\nafter\n"
    )
    with pytest.raises(ValueError, match="no place for parts"):
        page.write(path, "parts", "")


def test_the_pages_have_a_place_for_everything() -> None:
    pages = {name: f"benchmarks/{load(name).page}.md" for name in MODULES}
    pages |= {"targets": "benchmarks/targets.md", "parts": "benchmarks/targets.md", "summary": "performance.md"}
    for marker, name in pages.items():
        text = (ROOT / "docs" / name).read_text()
        assert f"<!-- {marker} begins -->\n" in text
        assert f"<!-- {marker} ends -->\n" in text


def test_the_figures_on_top_are_those_of_the_results() -> None:
    figures = summary.table(lambda name: read(RESULTS / f"{name}.json")["records"])
    assert figures.count("\n") == 9
    assert figures in (ROOT / "docs" / "performance.md").read_text()


@pytest.mark.slow
def test_a_worker_that_is_killed_or_silent_is_reported() -> None:
    with Worker(python("bench.targets.timers", "rival", 10, 60)) as worker:
        worker.answer()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(RuntimeError, match=r"bench\.targets\.timers: ended with -9"):
            worker.ask("calls")
    with (
        Worker(python("bench.targets.timers", "rival", 10, 60), patience_s=0.0) as worker,
        pytest.raises(RuntimeError, match=r"bench\.targets\.timers: no answer in 0 s"),
    ):
        worker.answer()
