"""The command line: ``main``, and the message for installations without the extra ``cli``.

typer and rich are not imported before ``command_line`` is called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

_FROM_THE_EXTRA = ("typer", "rich", "click", "shellingham", "pygments", "markdown_it")


def command_line() -> Callable[[Sequence[str] | None], int]:
    """Import the commands; return the function that runs one command line and returns its exit status."""
    if os.name != "posix":  # signals, process groups and terminals of `run`, unix sockets of `top`
        print("wheel-lock: the command line needs a POSIX system, such as Linux or macOS", file=sys.stderr)
        return lambda argv: 2
    try:
        from wheel_lock.cli.app import run_command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _FROM_THE_EXTRA:
            raise
        print(
            f"wheel-lock: {error.name} is not installed; the command line needs: pip install 'wheel-lock[cli]' "
            "(and 'wheel-lock[demo]' for the embedded server of `wheel-lock demo`)",
            file=sys.stderr,
        )
        return lambda argv: 2
    return run_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``wheel-lock`` with ``argv``, by default the process's own arguments, and return the exit status."""
    return command_line()(argv)
