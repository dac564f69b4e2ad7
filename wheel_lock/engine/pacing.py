"""How often wake-ups are followed by a try: any user who may publish can wake, and each try costs the server a script.
(Announcements of failovers by Sentinels are followed at such a pace, too.)

The first wake-ups are followed at once, and so are those of a lock that changes hands. If tries find nothing changed,
wake-ups cause one try per tick.
"""

from __future__ import annotations

_IN_VAIN = 8  # tries in a row that found nothing changed, after which wake-ups are followed once per tick


class Pace:
    """The results of earlier wake-ups of one lock.

    Args:
        tick_s: Pause between two tries after wake-ups in vain, in seconds.
    """

    __slots__ = ("_expiry", "_in_vain", "_tick_s", "_tried_at")

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._in_vain = 0
        self._tried_at = 0.0
        self._expiry = 0.0

    def allows(self, now: float) -> bool:
        """Count a wake-up; return whether it is followed by a try at once."""
        if self._in_vain >= _IN_VAIN and now - self._tried_at < self._tick_s:
            return False
        self._in_vain += 1
        return True

    def tried(self, now: float) -> None:
        """Note the begin of a try, whatever its cause."""
        self._tried_at = now

    def granted(self) -> None:
        """Note a grant: wake-ups are followed at once again."""
        self._in_vain = 0
        self._expiry = 0.0

    def refused(self, now: float, retry_ms: int | None) -> None:
        """Note a refusal. Another expiry than before means that the holder, or its lease, has changed."""
        if retry_ms is not None:
            expiry = now + retry_ms / 1000
            if abs(expiry - self._expiry) > self._tick_s:
                self._expiry = expiry
                self._in_vain = 0
