"""The commands ``demo`` and ``hold``: their arguments, the validation of these, and their output."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from typing import Annotated

import typer

from wheel_lock import __version__
from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import USAGE, AsJson, RedisUrl, Refusal, checked, count_option, seconds_option
from wheel_lock.cli.demo import display, report
from wheel_lock.cli.demo.report import Outcome
from wheel_lock.cli.demo.run import Run, conduct
from wheel_lock.options import lock_options
from wheel_lock.testing import EmbeddedServer

_Count = Annotated[int, count_option("locks", "How many locks to hold.", least=1)]
_Timeout = Annotated[float, seconds_option("timeout", "Their time-to-live.")]
_Duration = Annotated[float, seconds_option("seconds", "How long to hold them.", above=0.0)]


def demo(
    redis: Annotated[
        str | None, typer.Option(metavar="URL", help="A Redis server; without it, fakeredis runs in this process.")
    ] = None,
    locks: _Count = 2000,
    timeout: _Timeout = 3.0,
    seconds: _Duration = 10.0,
) -> None:
    """Hold many locks and watch the wheel renew them.

    Ends with status 0 only if nothing was lost and the server says that every key was still ours at the end.
    """
    console = output.console()
    with ExitStack() as stack:
        if redis is None:
            url, where = stack.enter_context(_embedded_server()).url, "on fakeredis inside this process"
        else:
            url, where = redis, "on {}"
        run = _run(url, "wheel-lock-demo", locks, timeout, None, seconds)
        headline = f"{locks:,} locks, one thread, {where.format(run.target.address)}"
        if output.pretty(console):
            live = stack.enter_context(output.replaced_line(console))
            screen = display.Screen(live, run, headline)
            outcome = conduct(run, lambda what: live.update(f"  {what} ...", refresh=True), screen.show)
        else:
            output.line(f"wheel-lock {__version__}: {headline}\n{display.explanation(run.outcome)}")
            outcome = conduct(run, output.line, display.show_lines)
    report.show(console, outcome, embedded=redis is None)
    raise typer.Exit(outcome.exit_status)


def hold(
    redis: RedisUrl,
    locks: _Count = 2000,
    timeout: _Timeout = 3.0,
    seconds: _Duration = 10.0,
    renew_every: Annotated[
        float | None, seconds_option("renew-every", "Between renewals of one; a third of the timeout by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold many locks, for scripts and benchmarks: no picture, all the numbers.

    Ends with status 0 only if nothing was lost and the server says that every key was still ours at the end.
    """
    run = _run(redis, "hold", locks, timeout, renew_every, seconds)
    with output.replaced_line(output.console(stderr=True)) as live:
        outcome = conduct(run, lambda what: live.update(what, refresh=True), display.show_nothing)
    if as_json:
        print(outcome.to_json())
    else:
        report.show(output.console(), outcome, embedded=False)
    raise typer.Exit(outcome.exit_status)


def _run(url: str, prefix: str, locks: int, timeout: float, renew_every: float | None, seconds: float) -> Run:
    with checked("--"):
        options = lock_options(timeout, renew_every=renew_every)
    assert options.renew_every_s is not None
    found = target.find(url)
    outcome = Outcome(
        server=found.address,
        redis_server=found.version,
        locks=locks,
        timeout_s=options.timeout_s,
        renew_every_s=options.renew_every_s,
        seconds=seconds,
    )
    return Run(found, prefix, outcome)


def _embedded_server() -> EmbeddedServer:
    missing = [name for name in ("fakeredis", "lupa") if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"for a server of its own the demo needs {' and '.join(missing)}: pip install 'wheel-lock[demo]', "
            "or name a server with --redis URL",
            USAGE,
        )
    return EmbeddedServer()
