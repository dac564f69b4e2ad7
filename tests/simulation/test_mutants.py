"""The simulation can fail: `make mutants` shows for how many mistakes, and here is one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.mutants import BY_HAND, Mutant
from tests.simulation.mutants.__main__ import found_by

_PACKAGE = Path(__file__).parents[2] / "wheel_lock"


@pytest.mark.parametrize("mutant", BY_HAND, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_a_text_that_is_there_once(mutant: Mutant) -> None:
    assert (_PACKAGE / mutant.path).read_text().count(mutant.old) == 1


@pytest.mark.slow
def test_a_mistake_is_found() -> None:
    [mutant] = [mutant for mutant in BY_HAND if mutant.name == "one permit too many"]
    said, _ = found_by(mutant, 60.0)
    assert said is not None
    assert "permits" in said
