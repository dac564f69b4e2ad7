"""The command ``watch``: the changes of locks between two polls of a server."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from wheel_lock.cli import output, target
from wheel_lock.cli.arguments import TERMINATED, RedisUrl, seconds_option
from wheel_lock.cli.locks import show
from wheel_lock.cli.locks.looking import Found, key_of, look_at, look_for
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.cli.target import Target
from wheel_lock.holder import Holder
from wheel_lock.lock_types.holders import LockState

Event = Literal["held", "free", "acquired", "released", "count", "changed", "unreadable"]
"""``held`` and ``free`` are what the first poll finds, also the first that can read the key again; ``released`` includes
expiries; ``count`` is another hold count; ``changed`` another number of holders, where there are too many to compare."""

_FREE = LockState("free", "none")
_MOST_HOLDERS = 1000
_LEAST_INTERVAL_S = 0.05
_PAUSE_SHARE = 4  # after polling very many locks, the pause is this multiple of the poll's duration
_CURSOR = b"\x1b[?25h\n"  # shows the cursor
_RECENT = 10  # number of changes shown on a terminal
_COLOURS = {"acquired": "green", "held": "green", "released": "yellow", "unreadable": "red"}


class Change(NamedTuple):
    """One change of a lock, as a poll has found it."""

    at: datetime  # of the poll
    event: Event
    name: bytes
    state: LockState  # what is under the name now; of a lock that was released, what was
    holder: Holder | None  # whom the change is about; None if it is about none or several


_Show = Callable[[Sequence[Found], Sequence[Change]], None]


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


def watch(
    redis: RedisUrl,
    name: Annotated[
        str, typer.Argument(metavar="NAME|PATTERN", help="A lock's name, or a pattern as for SCAN: with *, ? or [.")
    ],
    interval: Annotated[float, seconds_option("interval", "Between two polls.", least=_LEAST_INTERVAL_S)] = 0.5,
    seconds: Annotated[
        float | None, seconds_option("seconds", "How long to watch; without it until Ctrl-C.", above=0.0)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each change.")] = False,
) -> None:
    """Show locks as they are acquired and released, live on a terminal, as one line for each change elsewhere.

    The server is asked at intervals, so a lock that is held between two polls only does not show. A line has six columns,
    separated by tabs: time, event, name, kind, holder, remaining time. If the server goes away it is asked until it is
    back.

    Ends with status 0 after --seconds; 1 if the first poll fails, or the one key cannot be read; 2 if the command
    line is wrong; 130 or 143 if it was ended by Ctrl-C or SIGTERM.
    """
    key = None if set("*?[") & set(name) else key_of(name)  # a pattern for SCAN
    console = output.console()
    on_terminal = not as_json and output.pretty(console)
    with _terminated(on_terminal), ExitStack() as stack:
        display: _Show = partial(_print, as_json)
        if on_terminal:
            display = _Screen(console, stack.enter_context(Live(console=console, auto_refresh=False)), name).show
        _watch(redis, Watcher(key, name), display, interval, seconds, alone=key is not None)


def _watch(
    url: str, watcher: Watcher, show_them: _Show, interval_s: float, seconds: float | None, *, alone: bool
) -> None:
    """Poll and show until the time is over. Raises ServerTrouble only if the first poll fails."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    found: Target | None = None
    trouble: str | None = None
    first = True
    try:
        while True:
            began = time.monotonic()
            try:
                found = found or target.find(url)
                states, changes = watcher.look(found)
            except ServerTrouble as error:
                if first:
                    raise
                if found is not None:
                    found.close()
                    found = None  # a cluster may have other masters when it is back
                if trouble is None:
                    output.complain(f"{error.sentence}; trying again")
                trouble = error.sentence
            else:
                if trouble is not None:
                    output.complain(f"the server {found.address} answers again")
                    trouble = None
                if first and alone and states[0].state.kind == "unreadable":
                    raise show.unreadable(states[0])
                show_them(states, changes)
                first = False
            now = time.monotonic()
            pause = max(interval_s, (now - began) * _PAUSE_SHARE)
            time.sleep(max(min(pause, end - now), 0.0))
            if now + pause > end:
                return
    finally:
        if found is not None:
            found.close()


def _print(as_json: bool, found: Sequence[Found], changes: Sequence[Change]) -> None:
    """Print a line for each change."""
    for change in changes:
        output.line(json.dumps(_fields(change)) if as_json else "\t".join(_columns(change)))


class _Screen:
    """A table of the locks that are held, and the latest changes, drawn on a terminal."""

    def __init__(self, console: Console, live: Live, title: str) -> None:
        self._console = console
        self._live = live
        self._title = title
        self._recent: deque[Change] = deque(maxlen=_RECENT)

    def show(self, found: Sequence[Found], changes: Sequence[Change]) -> None:
        self._recent.extend(change for change in changes if change.event != "held")
        room = max(self._console.height - _RECENT - 5, 3)
        table = show.table(found[:room])
        more = Text(f"... and {len(found) - room:,} more" if len(found) > room else "", style="dim")
        lines = [Text("  ".join(_columns(change)), style=_COLOURS.get(change.event, "")) for change in self._recent]
        title = Text(f"{output.printable(self._title)}: {len(found):,} watched", style="bold")
        self._live.update(Group(title, table, more, *lines), refresh=True)


def _columns(change: Change) -> tuple[str, ...]:
    state, holder = change.state, change.holder
    at = change.at.isoformat(" ", "milliseconds")
    gone = holder is None or change.event == "released"
    return (
        at,
        change.event,
        show.name_text(change.name),
        show.kind_text(state),
        "-" if holder is None else show.holder_text(holder),
        "-" if holder is None or gone else show.remaining_text(holder.remaining_s),
    )


def _fields(change: Change) -> dict[str, Any]:
    return {
        "at": change.at.isoformat("T", "milliseconds"),
        "event": change.event,
        "name": change.name.decode("utf-8", "backslashreplace"),
        "kind": change.state.kind,
        "holder": None if change.holder is None else asdict(change.holder),
        "problem": change.state.problem,
    }


@contextmanager
def _terminated(on_terminal: bool) -> Iterator[None]:
    """Have SIGTERM end the process with status 143, and give the terminal its cursor back."""

    def end(number: int, frame: object) -> None:
        # No exception: a finaliser that it strikes would swallow it. Each line is flushed already.
        try:
            if on_terminal:
                os.write(sys.stdout.fileno(), _CURSOR)
        finally:
            os._exit(TERMINATED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
