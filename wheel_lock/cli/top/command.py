"""The command ``wheel-lock top``."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from wheel_lock.cli import output
from wheel_lock.cli.arguments import SERVER_TROUBLE, AsJson, Refusal, count_option, options_checked, seconds_option
from wheel_lock.cli.top.client import Client, Ended, find
from wheel_lock.cli.top.view import lines, screen
from wheel_lock.diagnostics.debug_socket import DEFAULT_NAMES, MAX_NAMES
from wheel_lock.options import count, seconds

_ENDED = "the process has ended, or has closed its context"


def top(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[PATH|PID]", help="The socket, or the process; without it the only one of this user."),
    ] = None,
    every: Annotated[float, seconds_option("Between two polls, on a terminal.")] = 1.0,
    names: Annotated[int, count_option("How many locks to name at most.")] = DEFAULT_NAMES,
    as_json: AsJson = False,
) -> None:
    """Show what a running process holds: locks held and overdue, lag, time left, waiting callers, the slowest locks.

    The process has called context.serve_debug(). On a terminal the view is live until Ctrl-C; elsewhere, and with --json,
    it is printed once. Overdue locks come first, behind them those that have been held for the longest time.

    Ends with status 0; 1 if there is no such socket, or it does not answer; 2 if the command line is wrong, or several
    sockets are meant; 130 after Ctrl-C.
    """
    with options_checked():
        count("names", names, least=0, most=MAX_NAMES)
        seconds("every", every, above=0.0)
    console = output.console()
    try:
        with closing(Client(find(target))) as client:
            if as_json:
                output.line(output.to_json(client.state(names)))
            elif output.pretty(console):
                _live(console, client, every, names)
            else:
                output.line("\n".join(lines(client.state(names))))
    except Ended:
        raise Refusal(_ENDED, SERVER_TROUBLE) from None


def _live(console: Console, client: Client, every_s: float, names: int) -> None:
    """Show the state until the process ends."""
    with Live(screen(client.state(names)), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(screen(client.state(names)), refresh=True)
        except Ended:
            pass
    print(f"wheel-lock: {_ENDED}", file=sys.stderr)
