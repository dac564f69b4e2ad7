"""The state of a context: as a text like faulthandler's, and as plain values for ``wheel-lock top``.

Tokens appear as their ids only. All of it can be called from any thread, and asks no server.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from wheel_lock.engine.engine import Engine
from wheel_lock.errors import counted, text_of
from wheel_lock.lease import Lease
from wheel_lock.observe.contexts import Reading
from wheel_lock.protocol.owners import token_id
from wheel_lock.runtime.timer import HashedWheelTimer

_LINES_AT_ONCE = 500


class TextFile(Protocol):
    """A file for text."""

    def write(self, text: str, /) -> object: ...


def dump(engine: Engine, file: TextFile | None) -> None:
    """Write the state of ``engine`` to ``file``, by default ``sys.stderr``."""
    out: Any = sys.stderr if file is None else file
    if out is None:
        return  # as without a console: sys.stderr is None
    if not callable(getattr(out, "write", None)):
        raise TypeError(f"file must be a text file, not {type(out).__name__}")
    lines = iter(_lines(engine))
    while text := "".join(f"{line}\n" for line in islice(lines, _LINES_AT_ONCE)):
        out.write(text)
    flush = getattr(out, "flush", None)
    if flush is not None:
        flush()


def dumped(engine: Engine) -> str:
    """Return the text that :func:`dump` writes."""
    return "".join(f"{line}\n" for line in _lines(engine))


def _lines(engine: Engine) -> Iterator[str]:
    """Yield the lines of a dump. The held leases are those of one moment, in order of acquisition."""
    health, stats, timer = engine.health(), engine.stats(), engine.timer
    status = "ok" if health.ok else "not ok: " + "; ".join(health.reasons)
    yield f"wheel_lock context {engine.label} in process {os.getpid()}: {status}"
    yield (
        f"  {counted(health.held)} held, {health.overdue} overdue, {health.waiting} waiting; "
        f"{timer.name} is {'stopped' if timer.stopped else 'running' if timer.running else 'not started'}, "
        f"{health.timer_late_s:.3f} s late"
    )
    yield "Nodes:"
    for node in health.nodes:
        age = "never" if node.last_confirmation_age_s is None else f"{node.last_confirmation_age_s:.3f} s ago"
        state = "connected" if node.connected else "not connected"
        trouble = "" if node.trouble is None else f"; {node.trouble}"
        yield f"  {node.node}: {state}, {node.overdue} overdue, last confirmation {age}{trouble}"
    yield "Counters:"
    for name, value in _plain(asdict(stats)).items():
        yield f"  {name}: {value}"
    yield "Waiting (name: callers, longest wait):"
    for wait in _waits(engine):
        yield f"  {wait['name']!r}: {wait['callers']}, {wait['longest_s']:.3f} s"
    yield "Held (name: token id, state, held for, time left, timeout, renewals):"
    now, overdue = timer.clock.now(), engine.overdue_leases()
    for lease in engine.held:
        row = _row(timer, lease, now, lease in overdue)
        late = f", late by {row['late_s']:.3f} s" if row["late_s"] else ""
        yield (
            f"  {row['name']!r}: {row['token_id']}, {row['state']}, {row['held_s']:.3f} s, {row['remaining_s']:.3f} s, "
            f"{row['timeout_s']:g} s, {row['renewals']}{late}"
        )


def state(engine: Engine, names: int) -> dict[str, Any]:
    """Return the state of ``engine`` as plain values, fit for JSON.

    It has ``names`` names of held locks at most, and as many of locks that are waited for. Overdue leases come first, the
    latest in front; behind them those that have been held for the longest time.
    """
    reading, now = Reading(engine.label), engine.timer.clock.now()
    engine.read_into(reading)
    counters = reading.counters
    time_left = {"p1": counters.time_left.quantile(0.01), "min": counters.time_left_min_s}
    values: dict[str, Any] = _plain(
        {
            "pid": os.getpid(),
            "label": engine.label,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "health": engine.health().as_dict(),
            "stats": asdict(engine.stats()),
            "lag": {"p50": counters.lag.quantile(0.5), "p99": counters.lag.quantile(0.99), "max": counters.lag.most},
            "time_left": time_left,
            "slack": time_left,  # its former name
            "acquire": {"p50": counters.acquire.quantile(0.5), "p99": counters.acquire.quantile(0.99)},
            "locks": _slowest(engine, now, names),
            "waits": _waits(engine)[:names],
        }
    )
    return values


def _slowest(engine: Engine, now: float, most: int) -> list[dict[str, Any]]:
    overdue = sorted(engine.overdue_leases(), key=lambda lease: lease.tick)[:most]
    late, seen = [_row(engine.timer, lease, now, True) for lease in overdue], set(overdue)
    # The first of them only: a copy of a million would take long.
    others = [lease for lease in engine.longest_held(most) if lease not in seen]
    return (late + [_row(engine.timer, lease, now, False) for lease in others])[:most]


def _row(timer: HashedWheelTimer, lease: Lease, now: float, overdue: bool) -> dict[str, Any]:
    due_at = timer.scale.seconds(lease.tick) if overdue and lease.tick >= 0 else None
    return {
        "name": text_of(lease.name),
        "token_id": token_id(lease.token),
        "state": "overdue" if overdue else lease.state.name.lower(),
        "held_s": max(now - lease.acquired_at, 0.0),
        "remaining_s": max(lease.deadline - now, 0.0),
        "timeout_s": lease.group.timeout_s,
        "renewals": lease.renewals,
        "overdue": overdue,
        "late_s": 0.0 if due_at is None else max(now - due_at, 0.0),
    }


def _waits(engine: Engine) -> list[dict[str, Any]]:
    """Return the names of which callers wait for the lock, the longest wait first."""
    now, found = engine.timer.clock.now(), dict[str, tuple[int, float]]()
    for name, callers, began_at in engine.waits():
        shown = text_of(name)
        before = found.get(shown, (0, math.inf))
        found[shown] = before[0] + callers, min(before[1], began_at)
    longest_first = sorted(found.items(), key=lambda wait: wait[1][1])
    return [
        {"name": name, "callers": callers, "longest_s": max(now - began_at, 0.0)}
        for name, (callers, began_at) in longest_first
    ]


def _plain(values: Any) -> Any:
    """Return ``values`` with infinities as None, and keys and reasons as text."""
    if isinstance(values, Mapping):
        return {str(name): _plain(value) for name, value in values.items()}
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return values
    return [_plain(value) for value in values]
