"""How often wake-ups are followed by a try: anybody who may publish can wake, and each try costs the server a script.
(What Sentinels tell of failovers is followed at such a pace, too.)

The first wake-ups are followed at once, and so are those of a lock that changes hands. Where nothing has changed since the
last ones, one try a tick is what they are worth.
"""

from __future__ import annotations

_IN_VAIN = 8  # tries in a row that found everything as it was, after which wake-ups are believed less


class Pace:
    """What has come of the wake-ups of one lock so far.

    Args:
        tick_s: What lies between two tries when wake-ups come to nothing, in seconds.
    """

    __slots__ = ("_expiry", "_in_vain", "_tick_s", "_tried_at")

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._in_vain = 0
        self._tried_at = 0.0
        self._expiry = 0.0

    def allows(self, now: float) -> bool:
        """Whether a wake-up is to be followed by a try at once."""
        if self._in_vain >= _IN_VAIN and now - self._tried_at < self._tick_s:
            return False
        self._in_vain += 1
        return True

    def tried(self, now: float) -> None:
        """A try is begun, for whatever reason."""
        self._tried_at = now

    def granted(self) -> None:
        """A try was granted, so the wake-ups are worth something."""
        self._in_vain = 0
        self._expiry = 0.0

    def refused(self, now: float, retry_ms: int | None) -> None:
        """A try was refused, and the holder has so much time left: another time than before if it is another holder."""
        if retry_ms is not None:
            expiry = now + retry_ms / 1000
            if abs(expiry - self._expiry) > self._tick_s:
                self._expiry = expiry
                self._in_vain = 0
