"""``wheel-lock`` as a program that a nursery forks.

The first argument says which standard streams are closed, such as ``2``, or is ``-``.
"""

from __future__ import annotations

import os
import signal
import sys

from wheel_lock.cli import app
from wheel_lock.cli import main as run_command_line

assert app.COMMANDS  # imported before the fork

# A shell that starts the tests in the background has them ignore these.
RESET = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP)


def main(closed: str, *arguments: str) -> None:
    for number in RESET:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if closed != "-":
        for fd in map(int, closed):
            os.close(fd)
        sys.stderr = None
    sys.exit(run_command_line(arguments))
