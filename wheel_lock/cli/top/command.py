"""The command ``wheel-lock top``."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from wheel_lock.cli import output
from wheel_lock.cli.arguments import AsJson, count_option, seconds_option
from wheel_lock.cli.top.client import Client, Ended, find
from wheel_lock.cli.top.view import lines, screen
from wheel_lock.diagnostics.debug_socket import DEFAULT_NAMES, MAX_NAMES


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
