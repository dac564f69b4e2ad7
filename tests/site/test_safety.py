"""The figures of docs/safety.md are those of docs/safety.json."""

from __future__ import annotations

import pytest

from tests.simulation.figures import PAGE, kept, tables


@pytest.mark.parametrize("marker", ["histories", "faults", "rules", "mutants", "survivors"])
def test_the_page_shows_the_figures_that_are_kept(marker: str) -> None:
    _, _, rest = PAGE.read_text().partition(f"<!-- {marker} begins -->\n")
    shown, ends, _ = rest.partition(f"<!-- {marker} ends -->\n")
    assert ends
    assert shown.strip() == tables(kept())[marker].strip()
