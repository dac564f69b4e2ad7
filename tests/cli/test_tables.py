"""Tables that fit the terminal: what gives way, and what is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from wheel_lock.cli.locks import show
from wheel_lock.cli.locks.looking import Found
from wheel_lock.cli.output import FittedTable
from wheel_lock.cli.top import screen
from wheel_lock.holder import Holder
from wheel_lock.lock_types.holders import LockState

NAME = "order:2026-11-23:customer:1"
OWNER = "billing@host-7:4711:write-report"


def printed(table: object, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, legacy_windows=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def locks() -> FittedTable:
    holder = Holder(OWNER, "db1d17b3", 21.8, 1, "exclusive")
    return show.table([Found(NAME.encode(), LockState("exclusive", "string", (holder,), remaining_s=21.8))])


@pytest.mark.parametrize("width", [60, 70, 80])
def test_a_narrow_terminal_has_the_whole_name_and_the_holder_in_one_line(width: int) -> None:
    title, line = printed(locks(), width)
    assert title.split() == ["NAME", "HOLDER", "REMAINING"]
    assert line.startswith(f"{NAME}  billing@host-7")
    assert line.endswith("21.8 s")
    assert len(line) <= width


def test_a_name_is_cut_if_nothing_else_is_left() -> None:
    lines = printed(locks(), 40)
    assert len(lines) == 2
    assert lines[1].startswith("order:2026-")
    assert lines[1].count("…") == 2


def test_the_slowest_locks_of_top_keep_their_names() -> None:
    lock = {
        "name": NAME, "token_id": "db1d17b3", "state": "held", "overdue": True, "late_s": 1.0, "remaining_s": 2.0,
        "held_s": 3.0, "renewals": 4,
    }  # fmt: skip
    figures = dict.fromkeys(("p50", "p99", "p1", "min", "max"), 0.0)
    stats = dict.fromkeys(("held", "overdue", "waiting", "acquired", "released", "lost", "renewed", "unknown"), 0)
    state = {
        "label": "billing", "pid": 1, "stats": stats, "lag": figures, "time_left": figures,
        "slack": figures, "acquire": figures,
        "health": {"ok": True, "reasons": [], "nodes": [], "overdue_most": 0, "longest_wait_s": None},
        "locks": [lock], "waits": [],
    }  # fmt: skip
    assert any(line.startswith(f"'{NAME}'") for line in printed(screen(state), 60))
