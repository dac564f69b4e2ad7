"""The picture of the wheel."""

from __future__ import annotations

import pytest

from wheel_lock.cli.demo.ring import HAND, SECTORS, Picture

SLOTS = 1024


def picture(hand: float, **counts: int) -> Picture:
    """A picture with ``s<sector>=count``, and the hand at a share of a turn."""
    slots = [0] * SLOTS
    for sector, count in counts.items():
        slots[int(sector[1:]) * SLOTS // SECTORS] = count
    drawn = Picture()
    drawn.update(slots, hand)
    return drawn


@pytest.mark.parametrize("diameter", [22, 30, 38])
def test_a_ring_is_half_as_many_lines_as_columns(diameter: int) -> None:
    lines = picture(0.0).ring(diameter)
    assert len(lines) == diameter // 2
    assert {line.cell_len for line in lines} == {diameter}


@pytest.mark.parametrize(("hand", "column"), [(0.25, 29), (0.75, 0)])
def test_the_hand_points_at_now(hand: float, column: int) -> None:
    """At a quarter past it reaches the right end of the middle lines, at a quarter to their left end."""
    for middle in picture(hand).ring(30)[7:8]:
        here = [span for span in middle.spans if span.start <= column < span.end]
        assert HAND in str(here[0].style)


def test_it_is_thicker_where_more_is_due() -> None:
    def drawn(shown: Picture) -> int:
        return sum(character != " " for line in shown.ring(30) for character in line.plain)

    empty, some, many = picture(0.9), picture(0.9, s10=10, s20=1), picture(0.9, s10=10, s20=10)
    assert drawn(empty) < drawn(some) < drawn(many)


def test_the_strip_has_a_character_per_sector_and_the_hand_above() -> None:
    hand, strip = picture(0.5, s40=8, s41=4, s42=0).strip()
    assert hand.plain == " " * 32 + "▼"
    assert strip.plain == "·" * 40 + "█▄" + "·" * 22


def test_what_the_hand_has_passed_is_not_due_any_more() -> None:
    drawn = picture(0.0, s2=5)
    assert drawn.strip()[1].plain[2] == "█"
    drawn.update([0] * SLOTS, 3 / SECTORS)
    assert drawn.strip()[1].plain == "·" * SECTORS
