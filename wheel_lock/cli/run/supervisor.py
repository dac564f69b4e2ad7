"""The command and its lock: signals go to the command, its status comes back, and a loss is reported to it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from wheel_lock import Lock
from wheel_lock.cli.run.child import Child, Guard
from wheel_lock.cli.run.signals import ENDING, Signals

LOST = 76

_LOOK_EVERY_S = 0.5  # polling interval, in case a SIGCHLD or the report of a loss is missed
_GROUP_EVERY_S = 0.02  # polling interval: the end of other processes of the group causes no signal


@dataclass(frozen=True, slots=True)
class Plan:
    """How the command runs."""

    command: Sequence[str]  # the program and its arguments
    environment: Mapping[str, str]
    margin_s: float  # how long before the local deadline of the lease the command is signalled
    grace_s: float  # from that signal to SIGKILL
    signal: signal.Signals


class Supervisor:
    """Runs the command of a plan while ``lock`` is held.

    Args:
        say: Shows a sentence. Never blocks.
    """

    def __init__(self, lock: Lock, plan: Plan, signals: Signals, say: Callable[[str], None]) -> None:
        self._lock = lock
        self._plan = plan
        self._signals = signals
        self._say = say
        self._signalled_at: float | None = None  # when the command was signalled, on the monotonic clock
        self._lost = False  # the reason was the lock
        self._killed = False

    def run(self) -> int:
        """Start the command and return when it has ended, with all of its group; return the exit status.

        That is its own, 128 + n if signal n has ended it, LOST if the lock was lost while it ran. If a signal has come
        before it is started, it is not started.

        Raises:
            Refusal: The program cannot be executed.
        """
        for number in self._signals.wait(0.0):
            if number in ENDING:
                return 128 + number
        with closing(Guard()) as guard:
            child = Child(self._plan.command, self._plan.environment, guard.pid)
            try:
                # Sent for a message on a terminal that is the command's, if that is set (`stty tostop`); and for giving it
                # to the command. Ignored from here on, for the command would inherit that.
                self._signals.ignore(signal.SIGTTOU)
                guard.watch(child.pid, self._plan.signal, self._plan.grace_s)
                self._supervise(child)
                self._end_group(child)
            finally:
                self._make_sure_of_the_end(child)
            return LOST if self._lost or self._lock.lost is not None else child.status or 0

    def _supervise(self, child: Child) -> None:
        """Return when the command has ended."""
        while child.status is None:
            received = self._signals.wait(self._next_s())
            self._mind_the_lock(child)
            # Forwarded after that: a command that is continued late learns first that the lock is lost.
            for number in received:
                child.forward(number)
            if child.look():
                child.stop_with()
                self._mind_the_lock(child)
                child.send(signal.SIGCONT)

    def _next_s(self) -> float:
        """Return the seconds until there may be something to do."""
        if self._killed:
            return _LOOK_EVERY_S
        if self._signalled_at is not None:
            return min(self._signalled_at + self._plan.grace_s - time.monotonic(), _LOOK_EVERY_S)
        return min(self._lock.remaining() - self._plan.margin_s, _LOOK_EVERY_S)

    def _mind_the_lock(self, child: Child) -> None:
        """Signal the command when the lock is lost or about to be lost; kill it when the grace period is over."""
        plan = self._plan
        if self._signalled_at is None:
            reason = self._lock.lost
            remaining_s = self._lock.remaining()
            if reason is None and remaining_s > plan.margin_s:
                return
            self._lost = True
            why = (
                f"the lock is lost ({reason})" if reason else f"the lock is not confirmed, {remaining_s:.3g} s are left"
            )
            self._signal(child, f"{why}: sent {plan.signal.name} to the command")
        elif not self._killed and time.monotonic() - self._signalled_at >= plan.grace_s:
            child.send(signal.SIGKILL)
            self._killed = True
            self._say(f"the command has not ended within {plan.grace_s:g} s: sent SIGKILL")

    def _signal(self, child: Child, why: str) -> None:
        child.send(self._plan.signal)
        child.send(signal.SIGCONT)  # a stopped process would get the signal when it is continued
        self._signalled_at = time.monotonic()
        self._say(why)

    def _end_group(self, child: Child) -> None:
        """End what the command has started and left: it gets the signal, and SIGKILL after the grace period.

        The lock is released behind it, so that none of it meets the next holder. What cannot be killed (it runs as another
        user, or waits for a disk) is waited for one more grace period.
        """
        if child.group_is_left and self._signalled_at is None:
            self._signal(child, f"the command has left processes: sent {self._plan.signal.name} to them")
        grace_s, killed_at = self._plan.grace_s, None
        while child.group_is_left:
            if self._killed:
                killed_at = killed_at or time.monotonic()
                if time.monotonic() - killed_at >= grace_s:
                    self._say("processes of the command are left that SIGKILL does not end")
                    return
            for number in self._signals.wait(min(self._next_s(), _GROUP_EVERY_S)):
                child.forward(number)
            self._mind_the_lock(child)

    def _make_sure_of_the_end(self, child: Child) -> None:
        """Kill the command if an error has ended the supervision: the lock must not be released before its end."""
        while child.status is None:
            child.send(signal.SIGKILL)
            child.look()
            if child.status is None:
                self._signals.wait(_GROUP_EVERY_S)
