"""Due entries of the wheel go to their groups, each group's together; alarms are the library's own timed actions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from wheel_lock.runtime.failures import FailureDomain, contain_all, guarded
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


def dispatch(due: list[Any], now: float) -> None:
    """Hand each of the ``due`` entries to its group, and drop all references to them.

    Users' callbacks are among them: a group that empties its list has the only references. The failure of a group does not
    prevent the others.
    """
    groups = _by_group(due)
    for group, entries in groups.items():
        try:
            group.due(entries, now)
        except Exception as error:
            contain_all(group.domains(entries), group.due, error)


def _by_group(due: list[Any]) -> dict[Any, list[Any]]:
    """Return the entries of each group, in order. ``due`` is the list of the only group, or empty."""
    first = due[0].group
    for entry in due:
        if entry.group is not first:
            break
    else:
        return {first: due}
    groups: dict[Any, list[Any]] = {}
    last: object = None
    append: Callable[[Any], None] = due.append  # always replaced by the first entry
    for entry in due:
        group = entry.group
        if group is not last:
            last = group
            bucket = groups.get(group)
            if bucket is None:
                groups[group] = bucket = []
            append = bucket.append
        append(entry)
    due.clear()
    return groups
