"""What is known about the tries of one request: may the server have executed them?

Each try begins with ``SENT``. It stays open whether the server has executed it, until a reply, or the connection, proves
that it has not. Every decision about a clean-up, and whether "gone" is a loss or the success of an earlier try, asks
nothing else.
"""

from __future__ import annotations

import enum


class Execution(enum.IntEnum):
    """Which tries of a request the server may have executed. (Integers: an index is the cheapest look-up.)"""

    NONE = 0
    LATEST = 1
    EARLIER = 2  # and certainly not the latest
    BOTH = 3  # the latest, and an earlier one


class Proof(enum.IntEnum):
    """What happens to a try."""

    SENT = 0  # a try was put into a connection
    NOT_EXECUTED = 1  # the server has certainly not executed the latest one


NONE, LATEST, EARLIER, BOTH = Execution
SENT, NOT_EXECUTED = Proof

AFTER: tuple[tuple[Execution, ...], ...] = (
    # NONE, LATEST, EARLIER, BOTH
    (LATEST, BOTH, BOTH, BOTH),  # SENT
    (NONE, NONE, EARLIER, EARLIER),  # NOT_EXECUTED
)
"""The next value, by what has happened and the value before."""
