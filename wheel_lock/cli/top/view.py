"""The views of a context's state: a screen on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from wheel_lock.cli.output import duration, number, printable
from wheel_lock.cli.tables import FittedTable
from wheel_lock.errors import quoted


def lines(state: dict[str, Any]) -> Iterator[str]:
    """Yield plain lines."""
    yield _headline(state)
    for reason in state["health"]["reasons"]:
        yield f"not ok: {printable(reason)}"
    for what, value in _figures(state):
        yield f"{what}: {value}"
    for node in state["health"]["nodes"]:
        yield f"node {printable(node['node'])}: {_node(node)}"
    for lock in state["locks"]:
        yield f"lock {quoted(lock['name'])}: " + ", ".join(f"{what} {value}" for what, value in _lock(lock))
    for wait in state["waits"]:
        yield f"wait {quoted(wait['name'])}: {wait['callers']} for {duration(wait['longest_s'])}"


def screen(state: dict[str, Any]) -> RenderableType:
    """Return the whole screen."""
    health = state["health"]
    parts: list[RenderableType] = [Text(_headline(state), style="bold green" if health["ok"] else "bold red")]
    parts += [Text(printable(reason), style="red") for reason in health["reasons"]]
    figures = Table.grid(Column(style="dim"), Column(justify="right"), Column(style="dim"), Column(justify="right"))
    figures.padding = (0, 2, 0, 0)
    pairs = [(what, value) for what, value in _figures(state)]
    half = (len(pairs) + 1) // 2
    for place in range(half):
        right = pairs[place + half] if place + half < len(pairs) else ("", "")
        figures.add_row(*pairs[place], *right)
    parts += ["", figures, ""]
    nodes = Table("node", "state", box=None, header_style="dim", padding=(0, 2, 0, 0))
    for node in health["nodes"]:
        nodes.add_row(Text(printable(node["node"])), Text(_node(node), style="red" if node["trouble"] else ""))
    parts.append(nodes)
    if state["locks"]:
        titles = ["slowest locks", *(what for what, _ in _lock(state["locks"][0]))]
        rows = [[quoted(lock["name"]), *(value for _, value in _lock(lock))] for lock in state["locks"]]
        styles = ["red" if lock["overdue"] else "" for lock in state["locks"]]
        give_way = [titles.index(what) for what in ("renewals", "token", "held", "state")]
        parts += [
            "",
            FittedTable(titles, rows, gives_way=give_way, is_cut=[0], right=range(1, len(titles)), styles=styles),
        ]
    if state["waits"]:
        waits = Table("waited for", "callers", "longest", box=None, header_style="dim", padding=(0, 2, 0, 0))
        for wait in state["waits"]:
            waits.add_row(Text(quoted(wait["name"])), str(wait["callers"]), duration(wait["longest_s"]))
        parts += ["", waits]
    return Group(*parts)


def _headline(state: dict[str, Any]) -> str:
    health = "ok" if state["health"]["ok"] else "not ok"
    return f"{printable(state['label'])} in process {state['pid']}: {health}"


def _figures(state: dict[str, Any]) -> list[tuple[str, str]]:
    stats, health, lag = state["stats"], state["health"], state["lag"]
    return [
        ("held", number(stats["held"])),
        ("overdue", number(stats["overdue"])),
        ("overdue at most", number(health["overdue_most"])),
        ("waiting", number(stats["waiting"])),
        ("longest wait", duration(health["longest_wait_s"])),
        ("acquired", number(stats["acquired"])),
        ("released", number(stats["released"])),
        ("lost", number(stats["lost"])),
        ("renewed", number(stats["renewed"])),
        ("renewals unknown", number(stats["unknown"])),
        ("lag p50", duration(lag["p50"])),
        ("lag p99", duration(lag["p99"])),
        ("lag max", duration(lag["max"])),
        ("time left p1", duration(state["time_left"]["p1"])),
        ("time left min", duration(state["time_left"]["min"])),
        ("acquire p99", duration(state["acquire"]["p99"])),
    ]


def _node(node: dict[str, Any]) -> str:
    if node["trouble"]:
        return printable(node["trouble"])
    state = "connected" if node["connected"] else "not connected"
    age = node["last_confirmation_age_s"]
    confirmed = "" if age is None else f", last confirmation {duration(age)} ago"
    return f"{state}, {node['overdue']} overdue{confirmed}"


def _lock(lock: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("token", printable(lock["token_id"])),
        ("state", printable(lock["state"])),
        ("late", duration(lock["late_s"]) if lock["overdue"] else "-"),
        ("left", duration(lock["remaining_s"])),
        ("held", duration(lock["held_s"])),
        ("renewals", number(lock["renewals"])),
    ]
