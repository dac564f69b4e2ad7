"""The check of the keys that exist below a prefix: what is not a lock of this library blocks the name of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice

from wheel_lock.cli.doctor.findings import Finding, Severity
from wheel_lock.cli.doctor.refusals import unknown
from wheel_lock.cli.doctor.rights import escaped
from wheel_lock.cli.locks.looking import Found, look_for
from wheel_lock.cli.locks.show import name_text
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.cli.target import Target

MOST_KEYS = 10_000
"""The most keys that are looked at."""


def finding_of(target: Target, user: str, prefix: str, advance: Callable[[float], object]) -> Finding:
    """Return what the keys below ``prefix`` mean for locks.

    Args:
        target: The servers to check.
        user: The user's name, for the ACL SETUSER line.
        prefix: What the names of the locks in use begin with.
        advance: Called with the share of the keys that have been seen.
    """
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    try:
        for found in islice(look_for(target, f"{escaped(prefix)}*", advance), MOST_KEYS):
            kind = _kind(found)
            kinds[kind] += 1
            examples.setdefault(kind, name_text(found.name))
    except ServerTrouble as trouble:
        return unknown("keys", "their check by SCAN and EVAL", trouble.__cause__ or trouble, user)
    looked_at = kinds.total()
    seen = f"of {looked_at:,} keys" + (" (there are more)" if looked_at == MOST_KEYS else "")
    if kinds["foreign"]:
        return Finding(
            "keys",
            Severity.WARNING,
            f"{seen} {kinds['foreign']:,} are not locks of this library, such as {examples['foreign']}",
            "A lock of such a name is never granted, or belongs to another client. Give locks a prefix of their own.",
        )
    if kinds["endless"]:
        return Finding(
            "keys",
            Severity.WARNING,
            f"{seen} {kinds['endless']:,} locks never expire, such as {examples['endless']}",
            "If their holders are gone: wheel-lock release --force --all NAME",
        )
    if kinds["unreadable"]:
        return Finding(
            "keys",
            Severity.UNKNOWN,
            f"{seen} {kinds['unreadable']:,} may not be read, such as {examples['unreadable']}",
            "Name the prefix of the locks in use with --prefix, or run this as a user who may read all keys.",
        )
    return Finding(
        "keys", Severity.OK, f"{seen} all are locks" if looked_at else "there is no key below the prefix yet"
    )


def _kind(found: Found) -> str:
    state = found.state
    if state.kind in ("foreign", "unreadable"):
        return state.kind
    return "endless" if state.is_held and state.remaining_s is None else "lock"
