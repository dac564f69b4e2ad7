"""The commands ``demo`` and ``hold``: their arguments, the validation of these, and their output."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from typing import Annotated

import typer

from wheel_lock import WheelLockError, __version__
from wheel_lock.cli import output, server, target
from wheel_lock.cli.arguments import (
    INTERRUPTED,
    USAGE,
    AsJson,
    RedisUrl,
    Refusal,
    checked,
    count_option,
    seconds_option,
)
from wheel_lock.cli.demo import report
from wheel_lock.cli.demo.display import LiveWatch, explanation
from wheel_lock.cli.demo.outcome import Outcome
from wheel_lock.cli.demo.run import Plan, Run, Watch, conduct
from wheel_lock.cli.demo.watch import PlainWatch, QuietWatch
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
    plan = _plan("wheel-lock-demo", locks, timeout, None, seconds)
    console = output.console()
    with ExitStack() as stack:
        if redis is None:
            url, where = stack.enter_context(_embedded_server()).url, "on fakeredis inside this process"
        else:
            url, where = redis, "on {}"
        run = Run(target.find(url), plan)
        headline = f"{plan.locks:,} locks, one thread, {where.format(run.target.address)}"
        watch: Watch
        if output.pretty(console):
            watch = LiveWatch(console, headline)
        else:
            print(f"wheel-lock {__version__}: {headline}\n{explanation(plan)}", flush=True)
            watch = PlainWatch()
        outcome = _conduct(run, watch)
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
    plan = _plan("hold", locks, timeout, renew_every, seconds)
    outcome = _conduct(Run(target.find(redis), plan), QuietWatch())
    if as_json:
        print(report.to_json(outcome))
    else:
        report.show(output.console(), outcome, embedded=False)
    raise typer.Exit(outcome.exit_status)


def _plan(prefix: str, locks: int, timeout: float, renew_every: float | None, seconds: float) -> Plan:
    with checked("--"):
        options = lock_options(timeout, renew_every=renew_every)
    assert options.renew_every_s is not None
    return Plan(prefix, locks, options.timeout_s, options.renew_every_s, seconds)


def _embedded_server() -> EmbeddedServer:
    missing = [name for name in ("fakeredis", "lupa") if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"for a server of its own the demo needs {' and '.join(missing)}: pip install 'wheel-lock[demo]', "
            "or name a server with --redis URL",
            USAGE,
        )
    return EmbeddedServer()


def _conduct(run: Run, watch: Watch) -> Outcome:
    run.context.close_on_signals()  # a script may end it by SIGTERM
    try:
        with output.logged_to(watch.log):
            return conduct(run, watch)
    except WheelLockError as error:
        sentence = f"cannot acquire {run.plan.locks:,} locks on {run.target.address}: {server.one_line(error)}"
        raise Refusal(sentence) from None
    except KeyboardInterrupt:
        left = f"interrupted again: what is not released yet expires within {run.plan.timeout_s:g} s"
        raise Refusal(left, INTERRUPTED) from None
    finally:
        watch.done()
        run.target.close()
