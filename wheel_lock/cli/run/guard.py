"""The guard of a command: a process that ends the command if ``wheel-lock`` itself is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

_PROGRAM = Path(__file__).with_name("guard_program.py")


class Guard:
    """A process that waits for the end of this one, in the group of the command. See guard_program.py.

    The end of the ``with`` block ends it. There is none on a system without /proc and pidfd, or if it cannot be started.

    Attributes:
        pid: Its process id; -1 if there is none.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.pid: int = -1
        if not (hasattr(os, "pidfd_open") and os.path.exists("/proc/self/stat")):
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            # Of a group of its own until it joins that of the command: a shell kills the whole group of a job.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", os.fspath(_PROGRAM)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                process_group=0,
            )
        except OSError:
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.pid = self._process.pid

    def watch(self, pid: int, number: int, grace_s: float) -> None:
        """Have the command with the number ``pid`` get signal ``number``, and SIGKILL ``grace_s`` seconds later."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has been killed
                self._process.stdin.write(b"%d %d %r\n" % (pid, number, grace_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipe, and waits
