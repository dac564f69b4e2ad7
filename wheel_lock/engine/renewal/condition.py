"""The condition of a node: what is sent there, by what its server has last said. Pure: one table, and no I/O."""

from __future__ import annotations

import enum


class Condition(enum.Enum):
    """The condition of a node, as its renewals show it.

    Attributes:
        accepts: What is due is sent, and checked ahead of its time. Else it becomes overdue.
        probes: One call about overdue leases is sent at a time, with pauses.
    """

    AWAY = (False, False)  # there is no connection, or a silent one
    WELL = (True, False)
    REJECTING = (False, True)  # the server answers renewals with an error
    NOT_NOW = (True, True)  # a proxy: the server behind it for each call can execute nothing (BUSY, LOADING ...)

    def __init__(self, accepts: bool, probes: bool) -> None:
        self.accepts: bool = accepts
        self.probes: bool = probes


class Sign(enum.Enum):
    """A sign of the condition of a node."""

    TROUBLE = enum.auto()  # the connection was lost, or is silent
    READY = enum.auto()  # it is connected, or answers again
    REFUSED = enum.auto()  # a renewal call was refused, of a script that was not refused before
    EXECUTED = enum.auto()  # a renewal call was executed
    GRANTED = enum.auto()  # an acquire was executed
    ALL_NOT_NOW = enum.auto()  # a proxy: so was each call since the last pause refused
    OTHERWISE = enum.auto()  # a proxy: a call was answered otherwise


AWAY, WELL, REJECTING, NOT_NOW = Condition

# What has no line here changes nothing.
NEXT: dict[tuple[Condition, Sign], Condition] = {
    (AWAY, Sign.READY): WELL,
    (WELL, Sign.TROUBLE): AWAY,
    (WELL, Sign.REFUSED): REJECTING,
    (WELL, Sign.ALL_NOT_NOW): NOT_NOW,
    (REJECTING, Sign.TROUBLE): AWAY,
    (REJECTING, Sign.READY): WELL,
    (REJECTING, Sign.EXECUTED): WELL,
    (REJECTING, Sign.GRANTED): WELL,
    (NOT_NOW, Sign.TROUBLE): AWAY,
    (NOT_NOW, Sign.READY): WELL,
    (NOT_NOW, Sign.REFUSED): REJECTING,
    (NOT_NOW, Sign.OTHERWISE): WELL,
}
