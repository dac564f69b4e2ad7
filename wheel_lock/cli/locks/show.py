"""Locks as text and as JSON: names, holders, times, rows of tables. No token is shown, only its id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wheel_lock.cli.arguments import Refusal
from wheel_lock.cli.locks.looking import Found
from wheel_lock.cli.output import FittedTable, Row, printable
from wheel_lock.holder import Holder
from wheel_lock.lock_types.holders import LockState

_COLUMNS = ("NAME", "KIND", "HOLDER", "REMAINING", "COUNT")


def name_text(name: bytes) -> str:
    """Return a key's name for a terminal: UTF-8, with escapes for all that is not printable."""
    return printable(name.decode("utf-8", "backslashreplace"))


def holder_text(holder: Holder) -> str:
    """Return the owner, if the token names one, and the token's id."""
    return holder.token_id if holder.owner is None else f"{holder.owner} ({holder.token_id})"


def remaining_text(remaining_s: float | None) -> str:
    """Return a remaining time.

    >>> remaining_text(12.345), remaining_text(7200.0), remaining_text(None)
    ('12.3 s', '2 h 0 min', 'no expiry')
    """
    if remaining_s is None:
        return "no expiry"
    if remaining_s < 600:
        return f"{remaining_s:.1f} s"
    minutes = round(remaining_s / 60)
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"{minutes // (24 * 60):,} days"


def kind_text(state: LockState) -> str:
    """Return the kind of lock; of a foreign key with its type."""
    return f"foreign ({state.key_type})" if state.kind == "foreign" else state.kind


def row(found: Found) -> tuple[str, str, str, str, str]:
    """Return the line of a table about one name; see _COLUMNS."""
    state = found.state
    holders = state.holders if state.is_held else ()
    text = holder_text(holders[0]) if holders else "-"
    others = len(holders) - 1 + state.left_out
    if holders and others:
        text += f" and {others:,} more"
    if state.kind == "unreadable":
        return name_text(found.name), "cannot be read", "-", "-", "-"
    count = sum(holder.count for holder in holders) + state.left_out
    remaining = "-" if state.kind == "free" else remaining_text(state.remaining_s)
    return name_text(found.name), kind_text(state), text, remaining, str(count) if holders else "-"


def unreadable(found: Found) -> Refusal:
    """Return the refusal for a command about a key that the user may not read."""
    return Refusal(f"{name_text(found.name)} cannot be read: {found.state.problem or 'no right to it'}")


def table(found: Sequence[Found]) -> FittedTable:
    """Return the table about several names."""
    name, kind, holder, remaining, count = range(len(_COLUMNS))
    rows = [row(one) for one in found]
    return FittedTable(
        titles=_COLUMNS, rows=rows, gives_way=[count, kind], is_cut=[holder, name], right=[remaining, count]
    )


def fields(found: Found) -> dict[str, Any]:
    """Return what is known about one name, for JSON."""
    state = found.state
    return {
        "name": found.name.decode("utf-8", "backslashreplace"),
        "kind": state.kind,
        "key_type": state.key_type,
        "held": state.is_held,
        "holders": [asdict(holder) for holder in state.holders],
        "left_out": state.left_out,
        "remaining_s": state.remaining_s,
        "permits": state.permits,
        "waiters": state.waiters,
        "listeners": state.listeners,
        "fence": state.fence,
        "problem": state.problem,
    }


def details(state: LockState) -> list[Row]:
    """Return the table about one lock: title, value, meaning."""
    rows: list[Row] = [("kind", kind_text(state), "")]
    if state.kind not in ("free", "unreadable"):
        renewed = ", unless it is renewed" if state.is_held else ""
        rows.append(("remaining", remaining_text(state.remaining_s), f"until the key expires{renewed}"))
    for holder in state.holders if state.is_held else ():
        times = "" if holder.count == 1 else f", hold count {holder.count}"
        rows.append((_TITLES[holder.mode], holder_text(holder), f"{remaining_text(holder.remaining_s)}{times}"))
    if state.left_out:
        rows.append(("", f"{state.left_out:,} more", "holders, which expire later"))
    readers = sum(holder.mode == "read" for holder in state.holders)
    if readers > 1 and not state.left_out:
        rows.append(("readers", f"{readers:,}", ""))
    if state.kind == "semaphore":
        held = len(state.holders) + state.left_out
        of = "" if state.permits is None else f"of {state.permits:,}, the number set for all callers"
        rows.append(("permits", f"{held:,} held", of))
    if state.waiters is not None:
        rows.append(("waiters", f"{state.waiters:,}", "registered at the server"))
    if state.listeners is not None:
        rows.append(("listeners", f"{state.listeners:,}", "connections that a release wakes"))
    if state.fence is not None:
        rows.append(("fence", str(state.fence), "the last one drawn"))
    return rows


_TITLES = {"exclusive": "holder", "read": "reader", "write": "writer", "permit": "permit"}
