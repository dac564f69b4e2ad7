"""Losses are counted before and after the end of a lease, and shown in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.__main__ import read, save
from bench.rivals import Rival
from bench.scenarios import Run, failed, losses


def stub() -> Rival:
    return Rival("stub", list)


def test_reports_are_counted_from_the_end_of_the_lease() -> None:
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
    reported = silent | {"reasons": {"a|b": 1}}
    records = [
        failed(stub(), key, "no JDK"),
        {"rival": "b", "case": key, "round": 1, "values": silent | {"told_s": [None] * 2, "left_s": [2.0] * 2}},
        {"rival": "wheel_lock", "case": key, "round": 1, "values": reported | {"told_s": [1.0], "left_s": [2.0]}},
        {"rival": "wheel_lock", "case": key, "round": 2, "values": reported | {"told_s": [1.5], "left_s": [2.0]}},
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


def test_a_killed_holder_has_a_table_of_its_own(tmp_path: Path) -> None:
    key = {"case": losses.CRASHED, "timeout_s": 3.0}
    records = [
        {"rival": losses.KEPT, "case": key, "round": 1, "values": {"next_grant_s": 0.005}},
        {"rival": "wheel_lock", "case": key, "round": 1, "values": {"next_grant_s": 2.5}},
        failed(stub(), key, "no JDK"),
    ]
    assert losses.tables(records).splitlines()[-3:] == [
        "| wheel_lock | 2.50 |",
        "| wheel_lock, release_on_crash=True | 0.005 |",
        "| stub | failed: no JDK |",
    ]
    assert losses.draw(records, tmp_path) == {}


def test_what_is_not_measured_now_stays(tmp_path: Path) -> None:
    path, cases = tmp_path / "losses.json", ("gone", losses.CRASHED)
    records = [{"rival": "a", "case": {"case": case}, "round": 1, "values": {}} for case in cases]
    save(path, Run(()), records, 1.0)
    again = failed(Rival("a", list), {"case": losses.CRASHED}, "no server")
    save(path, Run((), cases=(losses.CRASHED,)), [again], 1.0)
    assert read(path)["records"] == [records[0], again]
    assert len(read(path)["runs"]) == 2
