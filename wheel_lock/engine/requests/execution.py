"""Which tries of one request the server may have executed, and how the next one is sent.

As soon as a try is sent the server may have executed it, until a reply, or the connection, proves that it has not. Every
decision about a clean-up, and whether "gone" is a loss or the success of an earlier try, asks nothing else.
"""

from __future__ import annotations

import enum


class Execution(enum.IntEnum):
    """Which tries of a request the server may have executed. (Integers: an index is the cheapest look-up.)"""

    NONE = 0
    LATEST = 1
    EARLIER = 2  # and certainly not the latest
    BOTH = 3  # the latest, and an earlier one


NONE, LATEST, EARLIER, BOTH = Execution

# The next value by the one before:  NONE, LATEST, EARLIER, BOTH
SENT: tuple[Execution, ...] = (LATEST, BOTH, BOTH, BOTH)
"""Once another try has been put into a connection."""
NOT_EXECUTED: tuple[Execution, ...] = (NONE, NONE, EARLIER, EARLIER)
"""Once it is certain that the server has not executed the latest try."""


class Sending(enum.IntEnum):
    """How a request is sent."""

    BY_SHA1 = 0
    BY_TEXT = 1  # of its script, whose SHA-1 the server did not know
    ASKING = 2  # by text, and behind ASKING, to a node that does not own its slot yet


BY_SHA1, BY_TEXT, ASKING = Sending
