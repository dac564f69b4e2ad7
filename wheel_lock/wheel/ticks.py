"""Seconds to ticks and back: the one statement of rounding.

Renewals and deadlines must not be late: they round down, and are early by less than a tick (``floor``). Users' timeouts
must not be early: they round up, as in Netty (``ceil``).
"""

from __future__ import annotations

import math

_SLOP = 1e-6  # share of a tick: 0.3 s are 30 ticks of 10 ms, although 0.3 / 0.01 is not 30 in binary


class TickScale:
    """The ticks of one timer.

    Args:
        tick_ms: Length of a tick in milliseconds, 1 to 1000.
        origin_s: The instant of tick 0, in seconds of the timer's clock.

    Raises:
        ValueError: ``tick_ms`` is out of range.

    >>> scale = TickScale(10, origin_s=100.0)
    >>> scale.floor(100.019), scale.ceil(100.019), scale.floor(100.3), scale.seconds(30)
    (1, 2, 30, 100.3)
    """

    __slots__ = ("origin_s", "tick_s")

    def __init__(self, tick_ms: int, origin_s: float = 0.0) -> None:
        if isinstance(tick_ms, bool) or not isinstance(tick_ms, int) or not 1 <= tick_ms <= 1000:
            raise ValueError(f"tick_ms must be a whole number from 1 to 1000, not {tick_ms!r}")
        self.tick_s: float = int.__index__(tick_ms) / 1000
        self.origin_s: float = origin_s

    def floor(self, seconds: float) -> int:
        """Return the last tick at or before ``seconds``."""
        return math.floor((seconds - self.origin_s) / self.tick_s + _SLOP)

    def ceil(self, seconds: float) -> int:
        """Return the first tick at or after ``seconds``."""
        return math.ceil((seconds - self.origin_s) / self.tick_s - _SLOP)

    def seconds(self, tick: int) -> float:
        """Return the instant of ``tick``, in seconds of the timer's clock."""
        return self.origin_s + tick * self.tick_s

    def span(self, duration_s: float) -> int:
        """Return the number of whole ticks in ``duration_s``, at least 1."""
        return max(1, self.most(duration_s))

    def most(self, duration_s: float) -> int:
        """Return the number of whole ticks in ``duration_s``; negative if that is."""
        return math.floor(duration_s / self.tick_s + _SLOP)
