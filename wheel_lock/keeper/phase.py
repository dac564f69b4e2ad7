"""The phases of a process's session with its keeper. The whole of what the session's state decides is this table."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """A phase of the session."""

    ABSENT = enum.auto()  # there is none, and nothing to pass
    REACHING = enum.auto()  # a helper thread opens it, or passes servers in it
    KEPT = enum.auto()  # the keeper has all that it needs
    PAUSING = enum.auto()  # the keeper lacks a server, and gets a connection after a pause; it has the others
    MISSING = enum.auto()  # the keeper cannot be reached, or has ended; another attempt comes after a pause
    RETRYING = enum.auto()  # the same as REACHING, after that
    CLOSED = enum.auto()


class Sign(enum.Enum):
    """An event after which the session may be in another phase."""

    DUE = enum.auto()  # a server is to be passed, or another is not used any more
    ALARM = enum.auto()  # the pause is over
    PASSED = enum.auto()  # the attempt has succeeded
    LACKING = enum.auto()  # the attempt has succeeded, but for servers that cannot be connected to now
    FAILED = enum.auto()  # the attempt has failed: there is no session
    LOST = enum.auto()  # the keeper has lost its connection to a server
    ENDED = enum.auto()  # the keeper has ended
    RETIRED = enum.auto()  # nothing is held, or all of it is lost
    CLOSED = enum.auto()


ATTEMPTING = (Phase.REACHING, Phase.RETRYING)
"""The phases in which a helper thread has the session."""

# What has no line here changes nothing.
NEXT: dict[tuple[Phase, Sign], Phase] = {
    (Phase.ABSENT, Sign.DUE): Phase.REACHING,
    (Phase.REACHING, Sign.PASSED): Phase.KEPT,
    (Phase.REACHING, Sign.LACKING): Phase.PAUSING,
    (Phase.REACHING, Sign.FAILED): Phase.MISSING,
    (Phase.KEPT, Sign.DUE): Phase.REACHING,
    (Phase.KEPT, Sign.LOST): Phase.PAUSING,
    (Phase.KEPT, Sign.ENDED): Phase.MISSING,
    (Phase.PAUSING, Sign.DUE): Phase.REACHING,
    (Phase.PAUSING, Sign.LOST): Phase.PAUSING,
    (Phase.PAUSING, Sign.ALARM): Phase.REACHING,
    (Phase.PAUSING, Sign.ENDED): Phase.MISSING,
    (Phase.MISSING, Sign.DUE): Phase.RETRYING,
    (Phase.MISSING, Sign.ALARM): Phase.RETRYING,
    (Phase.RETRYING, Sign.PASSED): Phase.KEPT,
    (Phase.RETRYING, Sign.LACKING): Phase.PAUSING,
    (Phase.RETRYING, Sign.FAILED): Phase.MISSING,
}
for _phase in set(Phase) - {Phase.CLOSED}:
    NEXT[_phase, Sign.RETIRED] = Phase.ABSENT
    NEXT[_phase, Sign.CLOSED] = Phase.CLOSED
