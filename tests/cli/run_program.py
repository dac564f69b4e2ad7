"""``wheel-lock`` as a program that a fork server forks.

The first argument says which standard streams are closed, such as ``2``, or is ``-``.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import redirect_stdout

from wheel_lock.cli import main as run_command_line
from wheel_lock.cli.run import acquiring

with redirect_stdout(io.StringIO()):
    run_command_line(["run", "--help"])  # imports all that a command needs, before the fork

acquiring._LATE_S = 2.0  # a busy machine needs its time to say who holds a lock

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
