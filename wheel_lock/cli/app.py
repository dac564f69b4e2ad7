"""The commands: their arguments, the validation of these, and their output. run.py does the work."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

from wheel_lock import WheelLockError, __version__
from wheel_lock.cli import bench as benchmark
from wheel_lock.cli import figures, report, server, target
from wheel_lock.cli.display import LiveWatch, explanation
from wheel_lock.cli.outcome import INTERRUPTED, Outcome
from wheel_lock.cli.progress import watch_for
from wheel_lock.cli.run import Plan, Run, Watch, conduct
from wheel_lock.cli.watch import PlainWatch, QuietWatch, logged_to
from wheel_lock.options import count, lock_name, lock_options, seconds
from wheel_lock.testing import EmbeddedServer

# typer does not export the base class of its usage errors, and its module depends on the version.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

app: typer.Typer = typer.Typer(
    name="wheel-lock",
    help="Very many Redis locks, every one of them kept alive from one thread.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Refusal(Exception):
    """An error of the command line. Its arguments are a sentence for stderr, and the exit status."""


def run_command(argv: Sequence[str] | None) -> int:
    """Run one command line and return its exit status."""
    try:
        status = app(args=None if argv is None else list(argv), prog_name="wheel-lock", standalone_mode=False)
        return int(status or 0)
    except Refusal as refusal:
        return _refuse(*refusal.args)
    except _UsageError as error:
        return _refuse(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse("interrupted", INTERRUPTED)


def _refuse(sentence: str, status: int) -> int:
    print(f"wheel-lock: {' '.join(sentence.split())}", file=sys.stderr)
    return status


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number") from None


# typer has parsers, too, but not all versions of it show the invalid text.
_Count = Annotated[int, typer.Option(parser=_whole_number, metavar="NUMBER", help="How many locks to hold.")]
_Timeout = Annotated[float, typer.Option(parser=_number, metavar="SECONDS", help="Their time-to-live.")]
_Duration = Annotated[float, typer.Option(parser=_number, metavar="SECONDS", help="How long to hold them.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"wheel-lock {__version__}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
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
    console = Console(highlight=False)
    with ExitStack() as stack:
        if redis is None:
            url, where = stack.enter_context(_embedded_server()).url, "on fakeredis inside this process"
        else:
            url, where = redis, "on {}"
        run = _start(url, plan)
        headline = f"{plan.locks:,} locks, one thread, {where.format(server.address(run.client))}"
        watch: Watch
        if report.pretty(console):
            watch = LiveWatch(console, headline)
        else:
            print(f"wheel-lock {__version__}: {headline}\n{explanation(plan)}", flush=True)
            watch = PlainWatch()
        outcome = _conduct(run, watch)
    report.show(console, outcome, embedded=redis is None)
    raise typer.Exit(outcome.exit_status)


@app.command()
def hold(
    redis: Annotated[str, typer.Option(metavar="URL", help="The Redis server.")],
    locks: _Count,
    timeout: _Timeout,
    seconds: _Duration,
    renew_every: Annotated[
        float | None,
        typer.Option(
            parser=_number, metavar="SECONDS", help="Between renewals of one; a third of the timeout by default."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Hold many locks, for scripts and benchmarks: no picture, all the numbers.

    Ends with status 0 only if nothing was lost and the server says that every key was still ours at the end.
    """
    plan = _plan("hold", locks, timeout, renew_every, seconds)
    outcome = _conduct(_start(redis, plan), QuietWatch())
    if as_json:
        print(report.to_json(outcome))
    else:
        report.show(Console(highlight=False), outcome, embedded=False)
    raise typer.Exit(outcome.exit_status)


@app.command()
def bench(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="The Redis server: redis://[user:password@]host:6379/0, rediss:// or unix://. A node stands for its "
            "cluster, a Sentinel for its only master.",
        ),
    ],
    seconds: Annotated[
        float, typer.Option(parser=_number, metavar="SECONDS", help="About how long to measure.")
    ] = 20.0,
    locks: Annotated[
        int, typer.Option(parser=_whole_number, metavar="NUMBER", help="How many locks to hold at most.")
    ] = 10_000,
    timeout: Annotated[
        float,
        typer.Option(parser=_number, metavar="SECONDS", help="The time-to-live for which to say how many can be held."),
    ] = 30.0,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="What all names begin with; a random id follows.")
    ] = "wheel-lock-bench:",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure what it costs to keep locks alive on a server of your own.

    For about a fifth of the time the server is kept as busy as this client can. No key but those of the prefix and a
    random id is touched, and none is left behind: what a failure leaves expires within 30 seconds.

    Ends with status 0 if all was measured; 1 if the server is not there, refuses, fails, or a lock was lost, with a
    sentence on stderr; 2 if the command line is wrong; 130 or 143 if it was interrupted by Ctrl-C or SIGTERM.
    """
    plan = _bench_plan(locks, timeout, seconds, prefix)
    console = Console(highlight=False)
    with _server_errors(), closing(target.find(url)) as found:
        watch = watch_for(Console(stderr=True) if as_json else console, quiet=as_json)
        try:
            with logged_to(watch), watch:
                measured = benchmark.Bench(found, plan, watch).run()
        except KeyboardInterrupt:
            sentence = f"interrupted again: what is not released yet expires within {figures.TTL_S:g} s"
            raise Refusal(sentence, INTERRUPTED) from None
    if measured.trouble is not None:
        print(f"wheel-lock: {measured.trouble}", file=sys.stderr)
    if as_json:
        print(figures.to_json(measured))
    else:
        figures.show(console, measured)
    raise typer.Exit(measured.exit_status)


def _bench_plan(locks: int, timeout: float, seconds_in_all: float, prefix: str) -> benchmark.Plan:
    try:
        count("locks", locks, least=1)
        options = lock_options(timeout)
        seconds("seconds", seconds_in_all, above=0.0)
        lock_name(prefix + "0" * 32)  # what follows is shorter
        if "{" in prefix:
            raise ValueError(f"prefix must not contain a brace, or all names share one slot of a cluster: {prefix!r}")
    except ValueError as error:
        raise Refusal(f"--{str(error).replace('a lock name', 'prefix', 1)}", 2) from None
    return benchmark.Plan(locks, options.timeout_s, seconds_in_all, prefix)


def _plan(prefix: str, locks: int, timeout: float, renew_every: float | None, seconds_to_hold: float) -> Plan:
    try:
        count("locks", locks, least=1)
        options = lock_options(timeout, renew_every=renew_every)
        seconds("seconds", seconds_to_hold, above=0.0)
    except ValueError as error:
        raise Refusal(f"--{str(error).replace('renew_every', 'renew-every')}", 2) from None
    assert options.renew_every_s is not None
    return Plan(prefix, locks, options.timeout_s, options.renew_every_s, seconds_to_hold)


def _embedded_server() -> EmbeddedServer:
    missing = [name for name in ("fakeredis", "lupa") if importlib.util.find_spec(name) is None]
    if missing:
        raise Refusal(
            f"for a server of its own the demo needs {' and '.join(missing)}: pip install 'wheel-lock[demo]', "
            "or name a server with --redis URL",
            2,
        )
    return EmbeddedServer()


def _start(url: str, plan: Plan) -> Run:
    with _server_errors():
        return Run(server.connect(url), plan)


@contextmanager
def _server_errors() -> Iterator[None]:
    """Turn the errors about a server into refusals."""
    try:
        yield
    except server.BadUrl as error:
        raise Refusal(str(error), 2) from None
    except server.ServerTrouble as error:
        raise Refusal(str(error), 1) from None


def _conduct(run: Run, watch: Watch) -> Outcome:
    try:
        with logged_to(watch):
            return conduct(run, watch)
    except WheelLockError as error:
        sentence = f"cannot acquire {run.plan.locks:,} locks on {server.address(run.client)}: {server.one_line(error)}"
        raise Refusal(sentence, 1) from None
    except KeyboardInterrupt:
        left = f"interrupted again: what is not released yet expires within {run.plan.timeout_s:g} s"
        raise Refusal(left, INTERRUPTED) from None
    finally:
        watch.done()
        run.client.close()
