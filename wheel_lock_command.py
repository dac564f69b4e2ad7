"""The program ``wheel-lock``. It is no part of the package, so that Ctrl-C is answered while the package is imported."""

from __future__ import annotations

import os
import signal

_INTERRUPTED = 130


def main() -> int:
    """Run ``wheel-lock`` with the arguments of the process; return the exit status."""
    # A process in the background of a shell ignores SIGINT, and goes on doing so.
    guarded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if guarded:
        signal.signal(signal.SIGINT, _end)
    from wheel_lock.cli import command_line

    run = command_line()
    try:
        if guarded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run(None)
    except KeyboardInterrupt:  # ahead of the first command
        return _INTERRUPTED


def _end(number: int, frame: object) -> None:
    # No exception: the import of a module may swallow one, or print it.
    try:
        os.write(2, b"wheel-lock: interrupted\n")
    finally:
        os._exit(_INTERRUPTED)
