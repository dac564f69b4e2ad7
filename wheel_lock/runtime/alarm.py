"""Alarms: the library's own timed actions on the wheel."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wheel_lock.runtime.failures import FailureDomain, guarded
from wheel_lock.wheel import WheelEntry


class Alarm(WheelEntry):
    """A timed action, called with the current time on the loop's thread, up to a tick early."""

    __slots__ = ("action", "domain", "group")

    def __init__(self, action: Callable[[float], object], domain: FailureDomain | None) -> None:
        self.tick = -1
        self.group: AlarmGroup = _ALARMS
        self.action: Callable[[float], object] = action
        self.domain: FailureDomain | None = domain

    def disarm(self) -> None:
        """Remove the action: a cancelled alarm may have come due in the same step of the wheel."""
        self.action = _nothing


def _nothing(now: float) -> None:
    pass


class AlarmGroup:
    """Calls the actions of due alarms."""

    def due(self, entries: list[Alarm], now: float) -> None:
        """Call the action of each of ``entries``, also if another one fails."""
        for alarm in entries:
            guarded(alarm.domain, alarm.action, now)

    def domains(self, entries: list[Alarm]) -> Iterable[FailureDomain | None]:
        return [alarm.domain for alarm in entries]


_ALARMS = AlarmGroup()
