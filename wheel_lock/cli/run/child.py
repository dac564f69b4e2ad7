"""The command as a process group of its own, the terminal that it may need, and its guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from wheel_lock.cli.arguments import Refusal
from wheel_lock.cli.run.guard_program import runs_in_group

NOT_EXECUTABLE = 126
NOT_FOUND = 127

_GUARD = Path(__file__).with_name("guard_program.py")
_FOR_THE_COMMAND = (signal.SIGUSR1, signal.SIGUSR2)  # most programs, and so its children, end at these
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Child:
    """A running command.

    Args:
        command: The program and its arguments.
        environment: Its environment.
        guard: The process id of its guard, which does not count as a process of the group; -1 if it has none.

    Attributes:
        pid: Its process id, which is also the id of its group.
        status: Its exit status as a shell reports it, 128 + n if signal n has ended it; None while it runs.

    Raises:
        Refusal: There is no such program, or it cannot be executed; with the status that a shell reports for it.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], guard: int = -1) -> None:
        self._guard = guard
        try:
            self._process = subprocess.Popen(command, env=environment, process_group=0)
        except FileNotFoundError as error:
            raise Refusal(f"cannot run {command[0]!r}: {error.strerror}", NOT_FOUND) from error
        except (OSError, ValueError) as error:  # ValueError: a null character
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Refusal(f"cannot run {command[0]!r}: {reason}", NOT_EXECUTABLE) from error
        self.pid: int = self._process.pid
        self.status: int | None = None
        self._terminal = _Terminal()

    def forward(self, number: int) -> None:
        """Send a signal on that this process has got: to the whole group, or to the command alone if users send it."""
        send = self._send_to_command if number in _FOR_THE_COMMAND else self.send
        send(number)

    def send(self, number: int) -> None:
        """Send a signal to the whole group, and to a command that has left it. One to what has ended is dropped."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left of it, or only what runs as another user
        if self.status is None and os.getpgid(self.pid) != self.pid:
            self._send_to_command(number)

    def _send_to_command(self, number: int) -> None:
        # Not Popen.send_signal(), which reaps a command that has just ended, and so takes its status from look(). The
        # process id stays the command's until look() has reaped it.
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except PermissionError:
                pass  # it runs as another user

    @property
    def group_is_left(self) -> bool:
        """True if processes of the group run after the command itself has ended."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return runs_in_group(self.pid, self._guard)

    def look(self) -> bool:
        """Notice the end of the command; return True if it is stopped, and this process should stop with it.

        The terminal is given to a command that asks for it, if it is this process's to give.
        """
        # The first process of a container is the parent of all orphans there, and the only one to reap them.
        which = -1 if os.getpid() == 1 else self.pid
        while self.status is None:
            pid, found = os.waitpid(which, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return False
            if pid != self.pid:
                continue  # an orphan
            if os.WIFSTOPPED(found):
                number = os.WSTOPSIG(found)
                if number in _WANTS_TERMINAL and self._terminal.give(self.pid):
                    self.send(signal.SIGCONT)
                else:
                    return self._terminal.exists and number in (*_WANTS_TERMINAL, signal.SIGTSTP)
            else:
                code = os.waitstatus_to_exitcode(found)
                self._process.returncode = code  # it has been reaped
                self.status = code if code >= 0 else 128 - code
                self._terminal.close()
        return False

    def stop_with(self) -> None:
        """Stop this process, for the shell that started it to go on; return when it is continued."""
        self._terminal.take_back()
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            # Without a shell that controls jobs the system ignores this.
            os.kill(os.getpid(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, before)
        self._terminal.give(self.pid, again=True)


class _Terminal:
    """The controlling terminal, if there is one. It belongs to one process group at a time.

    Attributes:
        exists: True if there is one.
    """

    def __init__(self) -> None:
        try:
            self._fd = os.open(os.ctermid(), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        self.exists: bool = self._fd >= 0
        self._lent = False

    def give(self, group: int, *, again: bool = False) -> bool:
        """Make ``group`` the one that reads from the terminal; return False if it is not this process's to give.

        Args:
            again: True to do so only if it has been given before.
        """
        if (again and not self._lent) or not self._set(os.getpgrp(), group):
            return False
        self._lent = True
        return True

    def take_back(self) -> None:
        """Give it back to the group of this process."""
        if self._lent:
            self._set(None, os.getpgrp())

    def close(self) -> None:
        self.take_back()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _set(self, expected: int | None, group: int) -> bool:
        """Set the foreground group; return whether it is set. Nothing happens if another than ``expected`` has it."""
        if self._fd < 0:
            return False
        try:
            if expected is not None and os.tcgetpgrp(self._fd) != expected:
                return False
            os.tcsetpgrp(self._fd, group)
            return True
        except OSError:
            return False  # the terminal has been closed


class Guard:
    """A process that waits for the end of this one, in the group of the command. See guard_program.py.

    There is none on a system without /proc and pidfd, or if it cannot be started.

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
                [sys.executable, "-I", "-S", os.fspath(_GUARD)],
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

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes the pipe, and waits
