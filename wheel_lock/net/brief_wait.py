"""Waiting for a reply with the GIL held, where a wait without it would be much longer.

Beside threads that compute, a thread that waits for a reply loses the GIL, and then waits 5 to 15 ms for it although the
reply came after 50 us. So after a reply that was late the next ones are waited for with the GIL held, 100 us at most each,
while nothing else is unanswered on the connection. The thread sleeps meanwhile. A server that is slow or far away costs
three of these waits per thousand replies. There is at most one in a turn, however many connections there are: the handlers
of the reply may send again within the turn, and what is due waits for its end.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable

from wheel_lock.runtime.held_calls import reply_waiter

_LATE_S = (
    0.002  # far more than a server on the same machine takes, and less than the interval at which the GIL changes hands
)
_WAITS = 100  # number of waits after a late reply
_MOST_MISSED = 3  # limit of failed waits in a row
_REPLIES_BETWEEN = 1000  # replies before the next trial


class BriefWait:
    """Decides when to wait for a reply with the GIL held, and waits. All times are seconds of one clock.

    Args:
        sock: The connection's socket.
        may_wait: Says whether there may be a wait in this turn; called only where one is to follow at once.

    Attributes:
        possible: False if this system, or this socket, does not allow such waits.
    """

    __slots__ = ("_asked_at", "_left", "_may_wait", "_missed", "_wait", "possible")

    def __init__(self, sock: socket.socket, may_wait: Callable[[], bool]) -> None:
        self._may_wait = may_wait
        self._wait = reply_waiter(sock)
        self.possible: bool = self._wait is not None
        self._asked_at = math.inf  # when the only unanswered request was written; infinite if there are several
        self._left = 0  # waits that are left; if negative, replies until they are tried again
        self._missed = 0  # waits without a reply since the last one that saw a reply

    def after_write(self, unanswered: int, now: float) -> bool:
        """Wait for the reply to the only request that is unanswered; return whether there is something to read."""
        if unanswered != 1:
            self._asked_at = math.inf
            return False
        self._asked_at = now
        if self._left <= 0 or self._wait is None or not self._may_wait():
            return False
        self._left -= 1
        if self._wait():
            self._missed = 0
            return True
        self._missed += 1
        if self._missed == _MOST_MISSED:
            self._left = -_REPLIES_BETWEEN
        return False

    def before_read(self, now: float) -> None:
        """Note that something is to be read without such a wait: if it is late, the thread may have waited for the GIL."""
        if self._left < 0:
            self._left += 1
        elif self._left == 0 and now - self._asked_at > _LATE_S:
            self._left, self._missed = _WAITS, 0
