"""The command ``top``: a view of what a running process holds, read from the socket that ``context.serve_debug()`` opens.

A screen on a terminal, plain lines elsewhere.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from wheel_lock.cli import output
from wheel_lock.cli.arguments import USAGE, AsJson, Refusal, count_option, seconds_option
from wheel_lock.cli.output import FittedTable, duration, number, printable
from wheel_lock.diagnostics.debug_socket import DEFAULT_NAMES, MAX_NAMES, directories
from wheel_lock.errors import quoted
from wheel_lock.options import MAX_SOCKET_PATH_BYTES

_ANSWER_S = 10.0


def top(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[PATH|PID]", help="The socket, or the process; without it the only one of this user."),
    ] = None,
    every: Annotated[float, seconds_option("every", "Between two polls, on a terminal.", above=0.0)] = 1.0,
    names: Annotated[
        int, count_option("names", "How many locks to name at most.", least=0, most=MAX_NAMES)
    ] = DEFAULT_NAMES,
    as_json: AsJson = False,
) -> None:
    """Show what a running process holds: locks held and overdue, lag, time left, waiting callers, the slowest locks.

    The process has called context.serve_debug(). On a terminal the view is live until Ctrl-C; elsewhere, and with --json,
    it is printed once. Overdue locks come first, behind them those that have been held for the longest time.

    Ends with status 0; 1 if there is no such socket, or it does not answer; 2 if the command line is wrong, or several
    sockets are meant; 130 after Ctrl-C.
    """
    console = output.console()
    with closing(Client(find(target))) as client:
        if as_json:
            output.line(output.to_json(client.state(names)))
        elif output.pretty(console):
            _live(console, client, every, names)
        else:
            output.line("\n".join(lines(client.state(names))))


def _live(console: Console, client: Client, every_s: float, names: int) -> None:
    """Show the state until the process ends."""
    with Live(screen(client.state(names)), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(screen(client.state(names)), refresh=True)
        except Ended as ended:
            sentence = ended.sentence
    output.complain(sentence)


class Ended(Refusal):
    """The process has closed the socket."""

    def __init__(self) -> None:
        super().__init__("the process has ended, or has closed its context")


def find(target: str | None) -> str:
    """Return the path of the socket that ``target`` means: a path, the number of a process, or None for the only one.

    Raises:
        Refusal: There is none, or there are several.
    """
    if target is not None and not target.isdigit():
        if len(os.fsencode(target)) > MAX_SOCKET_PATH_BYTES:
            raise Refusal(f"the path of a socket has at most {MAX_SOCKET_PATH_BYTES} bytes", USAGE)
        return target
    found = list(_sockets(target))
    if len(found) == 1:
        return found[0]
    whose = "this user" if target is None else f"process {target}"
    if found:
        raise Refusal(f"there are several sockets of {whose}, name one of them: {' '.join(found)}", USAGE)
    raise Refusal(
        f"there is no socket of {whose}: a process opens one by context.serve_debug(), which returns its path"
    )


def _sockets(pid: str | None) -> Iterator[str]:
    """Yield the sockets of a process, or of all processes of this user, that are served."""
    uid = os.geteuid()
    if pid is not None:
        with suppress(OSError):  # it has ended, or the system has no such files
            uid = os.stat(f"/proc/{pid}").st_uid
    for directory in dict.fromkeys(directories(uid)):
        try:
            if os.lstat(directory).st_uid != uid:
                continue  # any user can make it, and answer there
        except OSError:
            continue
        start = os.path.join(glob.escape(directory), "*" if pid is None else pid)
        for path in sorted({*glob.glob(f"{start}.sock"), *glob.glob(f"{start}-*.sock")}):
            with suppress(Refusal):  # the process has ended
                Client(path).close()
                yield path


class Client:
    """A connection to a debug socket.

    Args:
        path: The path of the socket.

    Raises:
        Refusal: The socket is not served, or may not be used.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise Refusal(f"cannot connect to {path}: {error.strerror or error}") from None
        self._file = self._socket.makefile("rb")

    def state(self, names: int) -> dict[str, Any]:
        """Return the state of the context, with at most ``names`` names.

        Raises:
            Ended: The process has closed the socket.
            Refusal: It does not answer, or answers something else.
        """
        try:
            self._socket.sendall(json.dumps({"get": "state", "names": names}).encode() + b"\n")
            line = self._file.readline()
        except TimeoutError:
            raise Refusal(f"{self._path} does not answer within {_ANSWER_S:g} s") from None
        except OSError:
            line = b""
        if not line:
            raise Ended
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "health" not in answer:
            raise Refusal(f"{self._path} is not the socket of a context")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()


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
    pairs = _figures(state)
    half = (len(pairs) + 1) // 2
    for left, right in zip_longest(pairs[:half], pairs[half:], fillvalue=("", "")):
        figures.add_row(*left, *right)
    nodes = _table("node", "state")
    for node in health["nodes"]:
        nodes.add_row(Text(printable(node["node"])), Text(_node(node), style="red" if node["trouble"] else ""))
    parts += ["", figures, "", nodes]
    if state["locks"]:
        titles = ["slowest locks", *(what for what, _ in _lock(state["locks"][0]))]
        rows = [[quoted(lock["name"]), *(value for _, value in _lock(lock))] for lock in state["locks"]]
        styles = ["red" if lock["overdue"] else "" for lock in state["locks"]]
        give_way = [titles.index(what) for what in ("renewals", "token", "held", "state")]
        parts += [
            "",
            FittedTable(
                titles=titles,
                rows=rows,
                gives_way=give_way,
                is_cut=[0],
                right=range(1, len(titles)),
                styles=styles,
            ),
        ]
    if state["waits"]:
        waits = _table("waited for", "callers", "longest")
        for wait in state["waits"]:
            waits.add_row(Text(quoted(wait["name"])), str(wait["callers"]), duration(wait["longest_s"]))
        parts += ["", waits]
    return Group(*parts)


def _table(*titles: str) -> Table:
    return Table(*titles, box=None, header_style="dim", padding=(0, 2, 0, 0))


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
