"""The picture of the wheel: a ring drawn in half blocks, or a strip of blocks if there is no room or no colour.

A pure function of the entries per slot and the position of the hand.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.style import Style
from rich.text import Text

SECTORS = 64
_TURN = 2 * math.pi
_RIM = 0.60  # inner radius of the ring, as a share of the outer one
_HUB = 0.14

_Pixel = tuple[float, float]  # distance from the middle, as a share of the radius; angle, clockwise from the top

_SPARSE = ColorTriplet(0, 135, 155)
_DENSE = ColorTriplet(95, 255, 255)
_FRESH = ColorTriplet(0, 215, 95)
_FADED = ColorTriplet(28, 58, 52)

HAND = "#ffd75f"
AHEAD = "#5fffff"
BEHIND = "#00d75f"
TRACK = "#4e4e4e"


@functools.lru_cache(maxsize=8)
def _pixels(diameter: int) -> list[_Pixel]:
    """Return the pixels of a square, row by row from the top. Pixels are as high as they are wide."""
    radius = diameter / 2
    offsets = [position + 0.5 - radius for position in range(diameter)]
    return [
        (math.hypot(right, down) / radius, math.atan2(right, -down) % _TURN)
        for down, right in itertools.product(offsets, repeat=2)
    ]


class Picture:
    """The state of the animation, and its frames.

    Ahead of the hand are the renewals scheduled in each slot; behind it, the numbers of each slot when the hand passed,
    which fade until it passes again.
    """

    def __init__(self) -> None:
        self._ahead = [0] * SECTORS
        self._behind = [0] * SECTORS
        self._hand = -1

    def update(self, slots: Sequence[int], hand: float) -> None:
        """Update the state: ``slots`` are the entries in each slot, ``hand`` is its position as a share of a turn."""
        counts = [0] * SECTORS
        for slot, count in enumerate(slots):
            counts[slot * SECTORS // len(slots)] += count
        sector = int(hand * SECTORS) % SECTORS
        passed = 0 if self._hand < 0 else (sector - self._hand) % SECTORS
        for step in range(passed):
            left = (self._hand + step) % SECTORS
            self._behind[left] = self._ahead[left]
            self._ahead[left] = 0
        counts[sector] = max(counts[sector], self._ahead[sector])  # being emptied: its last count is kept
        self._ahead = counts
        self._hand = sector

    def _look(self, sector: int, most: int) -> tuple[float, str]:
        """Return the level of a sector, 0 to 1, and its colour."""
        ahead, behind = self._ahead[sector], self._behind[sector]
        if ahead:
            return ahead / most, blend_rgb(_SPARSE, _DENSE, ahead / most).hex
        age = (self._hand - sector) % SECTORS / SECTORS
        return behind / most, blend_rgb(_FRESH, _FADED, age).hex

    def ring(self, diameter: int) -> list[Text]:
        """Return a ring of ``diameter`` columns, an even number, and half as many lines; thicker where more is due."""
        most = max(*self._ahead, *self._behind, 1)
        looks = [self._look(sector, most) for sector in range(SECTORS)]
        hand = (self._hand + 0.5) / SECTORS * _TURN
        pixels = [self._colour(pixel, hand, diameter / 2, looks) for pixel in _pixels(diameter)]
        rows = [pixels[start : start + diameter] for start in range(0, len(pixels), diameter)]
        lines = []
        for upper, lower in zip(rows[::2], rows[1::2], strict=True):
            line = Text()
            for (above, below), run in itertools.groupby(zip(upper, lower, strict=True)):
                width = len(list(run))
                if above is None:
                    line.append((" " if below is None else "▄") * width, Style(color=below))
                else:
                    line.append("▀" * width, Style(color=above, bgcolor=below))
            lines.append(line)
        return lines

    def _colour(self, pixel: _Pixel, hand: float, radius: float, looks: Sequence[tuple[float, str]]) -> str | None:
        away, angle = pixel
        if away > 1.0:
            return None
        beside = math.sin(angle - hand) * away * radius
        if away < _HUB or (abs(beside) < 0.6 and math.cos(angle - hand) > 0):
            return HAND
        if away < _RIM:
            return None
        level, colour = looks[int(angle / _TURN * SECTORS) % SECTORS]
        depth = (away - _RIM) / (1 - _RIM)
        if level and depth <= 0.15 + 0.85 * level:
            return colour
        return TRACK if depth * radius * (1 - _RIM) <= 1.2 else None

    def strip(self) -> list[Text]:
        """Return two lines with one character per sector: the hand, and the level of each sector."""
        most = max(*self._ahead, *self._behind, 1)
        text = Text()
        for sector in range(SECTORS):
            level, colour = self._look(sector, most)
            shown = level if self._ahead[sector] else 0.0  # passed slots look like scheduled ones
            text.append("·▁▂▃▄▅▆▇█"[math.ceil(shown * 8)], Style(color=colour if shown else TRACK))
        return [Text(" " * self._hand + "▼", style=HAND), text]
