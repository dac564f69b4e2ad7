"""The command line as a whole: the registry of the commands, and the exit status of what they raise.

Each command is a function in a module of its own, whose docstring is the command's help.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from wheel_lock import __version__
from wheel_lock.cli.arguments import INTERRUPTED, PIPE_BROKEN, SERVER_TROUBLE, USAGE, Refusal, redacted
from wheel_lock.cli.benchmark.command import bench
from wheel_lock.cli.demo.command import demo, hold
from wheel_lock.cli.doctor.command import doctor
from wheel_lock.cli.keeper import keeper
from wheel_lock.cli.locks.inspect import inspect
from wheel_lock.cli.locks.ls import ls
from wheel_lock.cli.locks.release import release
from wheel_lock.cli.locks.watch import watch
from wheel_lock.cli.output import complain, discard_stdout
from wheel_lock.cli.run.command import run
from wheel_lock.cli.top import top

COMMANDS: tuple[Callable[..., None], ...] = (run, keeper, ls, inspect, watch, release, doctor, top, demo, hold, bench)

# typer does not export the base class of its usage errors, and its module depends on the version.
_UsageError: type[Any] = typer.BadParameter.__mro__[1]

app: typer.Typer = typer.Typer(
    name="wheel-lock",
    help="Very many Redis locks, every one of them kept alive from one thread.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in COMMANDS:
    app.command()(_command)


def run_command(argv: Sequence[str] | None) -> int:
    """Run one command line and return its exit status."""
    try:
        status = app(args=None if argv is None else list(argv), prog_name="wheel-lock", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return int(status or 0)
    except Refusal as refusal:
        return _refuse(refusal.sentence, refusal.status)
    except _UsageError as error:
        return _refuse(redacted(error.format_message()), USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse("interrupted", INTERRUPTED)
    except (BrokenPipeError, SystemExit) as error:  # typer replaces some of the former by the latter
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        discard_stdout()  # its reader has had enough, as in `wheel-lock ls | head`
        return PIPE_BROKEN
    except OSError as error:  # a full disk, say
        discard_stdout()
        return _refuse(str(error), SERVER_TROUBLE)


def _refuse(sentence: str, status: int) -> int:
    complain(sentence)
    return status


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
