"""Long waits: one WARNING, with the holder, for the names for which callers have waited for ten seconds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from operator import attrgetter

from wheel_lock.engine.future import Future
from wheel_lock.engine.state import EngineState
from wheel_lock.engine.waiting.waiter import Waiter
from wheel_lock.errors import counted, quoted
from wheel_lock.lock_types.holders import LockState
from wheel_lock.observe.log_fields import log_fields
from wheel_lock.runtime.alarm import Alarm
from wheel_lock.runtime.failures import guarded
from wheel_lock.runtime.notifier import NOTIFIER

logger: logging.Logger = logging.getLogger("wheel_lock")

_LONG_S = 10.0
_LEAST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 2.0  # between two looks at the waits; none follows when there are no more
_LOOK_S = 1.0  # the longest time for which the holder of a lock is asked for
_NAMES_IN_LOG = 5

Look = Callable[["list[str | bytes]", float, Future[list[LockState]]], object]


class LongWaits:
    """Watches the waits of one engine as long as there are any. Timer's thread only.

    A name is reported once for as long as a caller has waited for it for that long.

    Args:
        state: The state of the engine.
        first: Returns the longest wait for each name.
        look: Queries the states of locks, see ``look_at``; None if no holder can be asked for.
    """

    def __init__(self, state: EngineState, first: Callable[[], Iterable[Waiter]], look: Look | None = None) -> None:
        self._state = state
        self._first = first
        self._look = look
        self._alarm: Alarm | None = None
        self._reported: set[str | bytes] = set()

    def watch(self) -> None:
        """Begin to watch, unless that has begun. Called when a wait begins."""
        if self._alarm is None or self._alarm not in self._state.timer.wheel:
            self._watch_later(_LONGEST_PAUSE_S)

    def _watch_later(self, pause_s: float) -> None:
        timer = self._state.timer
        self._alarm = timer.call_at(timer.now + pause_s, self._check, domain=None)  # nothing is in doubt

    def _check(self, now: float) -> None:
        waits, long = self._waits()
        new = [wait.name for wait in long if wait.name not in self._reported]
        self._reported = {wait.name for wait in long}
        if new:
            self._ask(new)
        if waits:
            next_at = min((wait.began_at for wait in waits if wait.name not in self._reported), default=now)
            self._watch_later(min(max(next_at + _LONG_S - now, _LEAST_PAUSE_S), _LONGEST_PAUSE_S))

    def _waits(self) -> tuple[Collection[Waiter], list[Waiter]]:
        """Return the longest wait for each name, and those of them that are long."""
        timer = self._state.timer
        waits = {wait.name: wait for wait in self._first()}.values()
        long_since = timer.now + timer.scale.tick_s - _LONG_S  # alarms are up to a tick early
        long = [wait for wait in waits if wait.began_at <= long_since]
        return waits, sorted(long, key=attrgetter("began_at"))

    def _ask(self, names: list[str | bytes]) -> None:
        """Query the holder of the lock with the longest wait, and log."""
        if self._look is None:
            self._log(names, None)
        else:
            asked: Future[list[LockState]] = Future(lambda: guarded(None, self._log, names, asked))
            self._look(names[:1], _LOOK_S, asked)

    def _log(self, names: list[str | bytes], asked: Future[list[LockState]] | None) -> None:
        """Log the waits for ``names`` that go on."""
        still = [wait for wait in self._waits()[1] if wait.name in names]
        if not still:
            return
        known = asked is not None and asked.error is None and still[0].name == names[0]
        states = asked.result() if asked is not None and known else []
        holder = next((state.holders[0] for state in states if state.holders), None)
        held = "its holder is not known" if holder is None else f"held by {holder}"
        waited_s = self._state.timer.now - still[0].began_at
        among = "" if len(still) == 1 else f"{counted(len(still))}, among them "
        fields = log_fields(
            "long_wait",
            names=[wait.name for wait in still[:_NAMES_IN_LOG]],
            locks=len(still),
            reason=held,
            token_id=None if holder is None else holder.token_id,
            context=self._state.label,
        )
        log = partial(logger.warning, extra=fields)
        NOTIFIER.post(log, "waiting for %s%s for %.1f s: %s", among, quoted(still[0].name), waited_s, held)
