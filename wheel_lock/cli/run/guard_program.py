"""The program of the guard of ``wheel-lock run``: started by its path, so it imports nothing of the package.

All signals that can be blocked are blocked in it, from before its start on: what is sent to the group of the command does
not end it. Its input ends with ``wheel-lock``, whatever ends that: no other process has the other end. (The
kernel's own PR_SET_PDEATHSIG reaches the command alone, and none of the programs that it has started.)
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

_LOOK_EVERY_S = 0.02


def main() -> None:
    """Read the number of the command, a signal and a time; when the input ends, end the group of the command."""
    parts = sys.stdin.buffer.readline().split()
    if len(parts) != 3:
        return
    pid, number, grace_s = int(parts[0]), int(parts[1]), float(parts[2])
    try:
        command = os.pidfd_open(pid)
    except OSError:
        command = -1
    try:
        # The number of a group is not given away again while a process is in it.
        os.setpgid(0, pid)
        joined = True
    except OSError:
        joined = False  # the command has left it, and nothing else is in it
    if not _started_by(pid, os.getppid()) and not joined:
        return
    sys.stdin.buffer.read()
    _send(pid, command, joined, number)
    _send(pid, command, joined, signal.SIGCONT)  # a stopped process would get the signal when it is continued
    _say(f"wheel-lock: wheel-lock was killed: sent {signal.Signals(number).name} to the command\n")
    until = time.monotonic() + grace_s
    while _runs(pid, command, joined):
        if time.monotonic() >= until:
            _say(f"wheel-lock: the command has not ended within {grace_s:g} s: sending SIGKILL\n")
            _send(pid, command, joined, signal.SIGKILL)  # ends this process, too
            return
        time.sleep(_LOOK_EVERY_S)


def _send(group: int, command: int, joined: bool, number: int) -> None:
    """Send a signal to a command that is not in its group, and to the group."""
    if command >= 0 and (not joined or _stat(group, 2) != str(group)):
        try:
            signal.pidfd_send_signal(command, number)
        except OSError:
            pass  # it has ended, or runs as another user
    if joined:
        try:
            os.killpg(group, number)
        except OSError:
            pass


def _runs(group: int, command: int, joined: bool) -> bool:
    """Return whether the command, or another process of its group, runs."""
    if command >= 0 and not select.select([command], [], [], 0)[0]:
        return True
    own = str(os.getpid())
    return joined and any(
        name.isdigit() and name != own and _stat(int(name), 2) == str(group) and _stat(int(name), 0) not in ("Z", "X")
        for name in os.listdir("/proc")
    )


def _started_by(pid: int, parent: int) -> bool:
    return _stat(pid, 1) == str(parent)


def _stat(pid: int, field: int) -> str | None:
    """Return a field of a process: 0 for its state, 1 for its parent, 2 for its group; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[field].decode()
    except (OSError, IndexError):
        return None


def _say(text: str) -> None:
    """Write a line, unless that would block: what reads the messages may have ended, too."""
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode())
    except OSError:
        pass


if __name__ == "__main__":
    main()
