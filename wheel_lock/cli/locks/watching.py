"""The changes of locks between two polls of a server: what was acquired, and what is no longer held."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal, NamedTuple

from wheel_lock.cli.locks.looking import Found, look_at, look_for
from wheel_lock.cli.target import Target
from wheel_lock.holder import Holder
from wheel_lock.lock_types.holders import LockState

Event = Literal["held", "free", "acquired", "released", "count", "changed", "unreadable"]

_FREE = LockState("free", "none")
_MOST_HOLDERS = 1000


class Change(NamedTuple):
    """One change of a lock, as a poll has found it.

    Attributes:
        at: The time of the poll.
        event: ``held`` and ``free`` are what the first poll finds, also the first that can read the key again; ``released``
            includes expiries; ``count`` is another hold count; ``changed`` is another number of holders, where there are
            too many to compare.
        name: The lock's name.
        state: What is under the name now; of a lock that was released, what was.
        holder: The holder that the change is about; None if it is about none or several.
    """

    at: datetime
    event: Event
    name: bytes
    state: LockState
    holder: Holder | None


def is_pattern(text: str) -> bool:
    """Return whether a name on the command line is a pattern for SCAN."""
    return any(character in text for character in "*?[")


class Watcher:
    """Polls one name, or all that match a pattern, and compares each poll with the one before.

    Args:
        key: The one name; None to watch the names that match ``pattern``.
        pattern: As for SCAN.
    """

    def __init__(self, key: bytes | None, pattern: str) -> None:
        self._key = key
        self._pattern = pattern
        self._states: dict[bytes, LockState] | None = None  # None before the first poll

    def look(self, target: Target) -> tuple[list[Found], list[Change]]:
        """Return what is under each name now, sorted, and what has changed since the poll before.

        Raises:
            ServerTrouble: The server does not answer or refuses. The next poll is compared with the last successful one.
        """
        before = self._states
        if self._key is not None:
            states = {self._key: look_at(target, self._key, most=_MOST_HOLDERS)}
        else:
            found = look_for(target, self._pattern, lambda share: None)
            states = {name: state for name, state in found if state.kind not in ("free", "foreign")}
        self._states = states
        at = datetime.now().astimezone()
        changes = []
        for name in sorted({*states, *(before or ())}):
            old, new = None if before is None else before.get(name, _FREE), states.get(name, _FREE)
            for event, holder in _compare(old, new):
                about = old if event == "released" and old is not None else new
                changes.append(Change(at, event, name, about, holder))
        return [Found(name, states[name]) for name in sorted(states)], changes


def _compare(old: LockState | None, new: LockState) -> Iterator[tuple[Event, Holder | None]]:
    """Yield the changes from ``old``, None at the first poll, to ``new``."""
    if new.kind == "unreadable":
        if old is None or old.kind != "unreadable":
            yield "unreadable", None
        return
    if old is None or old.kind == "unreadable":  # what has changed meanwhile is not known
        for holder in new.holders if new.is_held else ():
            yield "held", holder
        if not new.is_held:
            yield "free", None
        return
    if old.left_out or new.left_out:
        if len(old.holders) + old.left_out != len(new.holders) + new.left_out:
            yield "changed", None
        return
    olds, news = _by_value(old), _by_value(new)
    for value, holder in olds.items():
        if value not in news:
            yield "released", holder
        elif news[value].count != holder.count:
            yield "count", news[value]
    for value, holder in news.items():
        if value not in olds:
            yield "acquired", holder


def _by_value(state: LockState) -> dict[bytes, Holder]:
    return dict(zip(state.values, state.holders, strict=True)) if state.is_held else {}
