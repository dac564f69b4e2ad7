"""The fields of the library's log records, for structured logs: the argument ``extra`` of a log call."""

from __future__ import annotations

from collections.abc import Sequence

from wheel_lock.errors import text_of


def log_fields(
    event: str,
    *,
    names: Sequence[str | bytes] = (),
    locks: int | None = None,
    reason: str | None = None,
    node: str | None = None,
    token_id: str | None = None,
    context: str | None = None,
) -> dict[str, object]:
    """Return the fields of one record. All records with fields have all of them, so a format may name any.

    Args:
        event: What has happened, in lower case and underscores.
        names: The names of locks that the text shows.
        locks: The number of locks that it is about; by default that of ``names``.
        reason: The reason, in words.
        node: The address of the node.
        token_id: The id of the token of the first lock.
        context: The label of the context.

    >>> log_fields("lost", names=[b"order:42"], reason="key gone")["lock_name"]
    'order:42'
    """
    shown = [text_of(name) for name in names]
    return {
        "event": event,
        "context": context,
        "lock_name": shown[0] if shown else None,
        "lock_names": shown,
        "locks": len(shown) if locks is None else locks,
        "reason": reason,
        "node": node,
        "token_id": token_id,
    }
