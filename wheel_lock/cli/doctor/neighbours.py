"""The check of the keys that exist below a prefix: what is not a lock of this library blocks the name of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

from wheel_lock.cli.doctor.findings import Result, Severity, unknown, user_of
from wheel_lock.cli.doctor.rights import escaped
from wheel_lock.cli.locks.looking import Found, look_for
from wheel_lock.cli.locks.show import name_text
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.cli.target import Target

MOST_KEYS = 10_000
"""The most keys that are looked at."""


# The first of these that there is makes the result.
_NO_LOCKS = (
    (
        "foreign",
        Severity.WARNING,
        "are not locks of this library",
        "A lock of such a name is never granted, or belongs to another client. Give locks a prefix of their own.",
    ),
    (
        "endless",
        Severity.WARNING,
        "locks never expire",
        "If their holders are gone: wheel-lock release --force --all NAME",
    ),
    (
        "unreadable",
        Severity.UNKNOWN,
        "may not be read",
        "Name the prefix of the locks in use with --prefix, or run this as a user who may read all keys.",
    ),
)


def result_of(target: Target, prefix: str, advance: Callable[[float], object]) -> Result:
    """Return what the keys below ``prefix`` mean for locks; ``advance`` gets the share of them that have been seen."""
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    try:
        for found in islice(look_for(target, f"{escaped(prefix)}*", advance), MOST_KEYS):
            kind = _kind(found)
            kinds[kind] += 1
            examples.setdefault(kind, name_text(found.name))
    except ServerTrouble as trouble:
        return unknown("their check by SCAN and EVAL", trouble.__cause__ or trouble, user_of(target.masters[0]))
    looked_at = kinds.total()
    seen = f"of {looked_at:,} keys" + (" (there are more)" if looked_at == MOST_KEYS else "")
    for kind, severity, what, advice in _NO_LOCKS:
        if kinds[kind]:
            return severity, f"{seen} {kinds[kind]:,} {what}, such as {examples[kind]}", advice
    return Severity.OK, f"{seen} all are locks" if looked_at else "there is no key below the prefix yet", ""


def _kind(found: Found) -> str:
    state = found.state
    if state.kind in ("foreign", "unreadable"):
        return state.kind
    return "endless" if state.is_held and state.remaining_s is None else "lock"
