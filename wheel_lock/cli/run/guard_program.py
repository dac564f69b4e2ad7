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
    _, parent, _ = _stat(pid)
    if parent != str(os.getppid()) and not joined:
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
    if command >= 0 and (not joined or _stat(group)[2] != str(group)):
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
    return joined and runs_in_group(group, os.getpid())


def runs_in_group(group: int, guard: int) -> bool:
    """Return whether a process of a group runs, but for its guard. A zombie has ended; killpg() does not distinguish it."""
    try:
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return True  # this system does not tell it
    others = map(_stat, (pid for pid in processes if pid != guard))
    return any(its_group == str(group) and state not in ("Z", "X") for state, _, its_group in others)


def _stat(pid: int) -> list[str]:
    """Return state, parent and group of a process; empty texts if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent, group = file.read().rpartition(b")")[2].split()[:3]
            return [state.decode(), parent.decode(), group.decode()]
    except (OSError, ValueError):
        return ["", "", ""]


def _say(text: str) -> None:
    """Write a line, unless that would block: what reads the messages may have ended, too."""
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode())
    except OSError:
        pass


if __name__ == "__main__":
    main()
