"""The pace at which wake-ups are followed by tries.

A user who may publish can wake waiters, and each try costs the server a command. The first wake-ups are followed at once,
and so are those of a lock that changes hands. Wake-ups in vain, after which the tries find nothing changed, cause one try
per tick. (The announcements of Sentinels are followed at such a pace, too.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_UNSEEN = 4  # wake-ups in vain, after which tries are to ask for the holder's expiry
_IN_VAIN = 8  # tries in a row that found nothing changed, after which wake-ups are followed once per tick


@dataclass(eq=False, repr=False, slots=True)
class Pace:
    """The results of earlier wake-ups of one lock.

    Args:
        tick_s: The pause between two tries after wake-ups in vain, in seconds.
    """

    tick_s: float
    _in_vain: int = 0
    _tried_at: float = 0.0
    _expiry: float | None = -math.inf  # of the holder's lease; None since a grant here

    @property
    def doubtful(self) -> bool:
        """True if so many wake-ups were in vain that a try should find out whether the holder has changed."""
        return self._in_vain > _UNSEEN

    def allows(self, now: float) -> bool:
        """Return True if a wake-up is followed by a try at once, and count that; else it has to pause."""
        if self._in_vain >= _IN_VAIN and now - self._tried_at < self.tick_s:
            return False
        self._in_vain += 1
        return True

    def tried(self, now: float) -> None:
        """Note the begin of a try, whatever its cause."""
        self._tried_at = now

    def granted(self) -> None:
        """Note a grant: wake-ups are followed at once again."""
        self._in_vain = 0
        self._expiry = None

    def refused(self, now: float, retry_ms: int | None) -> None:
        """Note a refusal. Another expiry than before means that the holder, or its lease, has changed."""
        if retry_ms is not None:
            before, expiry = self._expiry, now + retry_ms / 1000
            if before is None:
                self._expiry = expiry  # of the first holder since, so nothing has changed
            elif abs(expiry - before) > self.tick_s:
                self._expiry = expiry
                self._in_vain = 0
