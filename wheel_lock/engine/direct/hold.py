"""One lock on the direct path; see path.py."""

from __future__ import annotations

import math
from typing import Protocol, cast

from wheel_lock.engine.direct.connection import DirectConnection
from wheel_lock.engine.waiting.first_try import FirstTry
from wheel_lock.lease import Group, Lease


class HoldOwner(Protocol):
    """The path, as its holds see it."""

    def give_up(self, hold: DirectHold) -> None: ...


class DirectHold:
    """One lock on the direct path, from its acquire to its release, or until the timer's thread takes it over.

    Attributes:
        wait: The caller's wait, which the engine continues if the path cannot.
        lease: Its lease.
        connection: The connection of its requests.
        number: Its number, to recognise it in the next look.
        over: True if it is no longer on the path. Written by the timer's thread.
        sent_at: When its acquire was about to be sent, in seconds of the timer's clock.
        took_s: The seconds until it was granted.
    """

    __slots__ = ("connection", "lease", "number", "over", "path", "sent_at", "took_s", "wait")

    def __init__(self, path: HoldOwner, wait: FirstTry, connection: DirectConnection) -> None:
        self.path: HoldOwner = path
        self.wait: FirstTry = wait
        self.lease: Lease = wait.leases[0]
        self.connection: DirectConnection = connection
        self.number: int = -1
        self.over: bool = False
        self.sent_at: float = math.inf
        self.took_s: float = 0.0

    def begin(self) -> None:
        """Have the engine begin the wait instead. Timer's thread only."""
        self.wait.begin()

    def give_up(self) -> None:
        """End the wait, or the lease, of a caller that was interrupted. Timer's thread only."""
        self.path.give_up(self)


CLOSING: DirectHold = DirectHold.__new__(DirectHold)
"""Claims the path for the end of a connection."""
CLOSING.lease = Lease("", b"", cast(Group, None))
CLOSING.over = True
CLOSING.number = -1
