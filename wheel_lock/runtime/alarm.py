"""Alarms: actions of the library's own that wait on the wheel for their time."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.wheel import WheelEntry


class Alarm(WheelEntry):
    """An action of the library's own, called with the time on the loop's thread, up to a tick early."""

    __slots__ = ("action", "domain", "group")

    def __init__(self, action: Callable[[float], object], domain: FailureDomain | None) -> None:
        self.tick = -1
        self.group = _ALARMS
        self.action = action
        self.domain = domain

    def disarm(self) -> None:
        """Do nothing when it rings, which a cancelled alarm does that has come due in the same step."""
        self.action = _nothing


def _nothing(now: float) -> None:
    """The action of a cancelled alarm."""


class AlarmGroup:
    """Calls the actions of due alarms, each on its own account."""

    def due(self, entries: list[Alarm], now: float) -> None:
        """Ring ``entries``; one that fails does not keep the others from ringing."""
        for alarm in entries:
            guarded(alarm.domain, alarm.action, now)

    def domains(self, entries: list[Alarm]) -> Iterable[FailureDomain | None]:
        """Return what a failure costs that keeps ``entries`` from ringing."""
        return [alarm.domain for alarm in entries]


_ALARMS = AlarmGroup()
