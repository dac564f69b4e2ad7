"""The simulation can fail: `make mutants` shows for how many mistakes, and here is one of them."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from tests.simulation import keepers
from tests.simulation.mutants.__main__ import Stage, known_survivors
from tests.simulation.mutants.by_hand import BY_HAND, OLD_BUGS
from tests.simulation.mutants.mutant import PACKAGE, by_hand
from tests.simulation.mutants.operators import chosen, keys, of_text
from tests.simulation.scheduler import Tape
from tests.simulation.world import settings_from


def test_mistakes_have_names_of_their_own() -> None:
    names = [mutant.name for mutant in (*BY_HAND, *OLD_BUGS)]
    assert len(names) == len(set(names)) >= 75


@pytest.mark.parametrize("mutant", [*BY_HAND, *OLD_BUGS], ids=lambda mutant: mutant.name)
def test_a_mistake_by_hand_leaves_a_program(mutant: object) -> None:
    assert mutant.text != (PACKAGE / mutant.path).read_text()  # type: ignore[attr-defined]
    if mutant.path.endswith(".py"):  # type: ignore[attr-defined]
        ast.parse(mutant.text)  # type: ignore[attr-defined]


def test_a_mistake_whose_place_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times"):
        by_hand("a mistake", "lease.py", "a text that is not there", "")


def test_the_same_seed_chooses_the_same_mutants() -> None:
    assert chosen(PACKAGE, 1, 5) == chosen(PACKAGE, 1, 5) != chosen(PACKAGE, 2, 5)


def test_the_others_stay_chosen_when_some_code_has_changed(tmp_path: Path) -> None:
    changed = Path(shutil.copytree(PACKAGE, tmp_path / "changed"))
    with (changed / "lease.py").open("a") as file:
        file.write("\n\ndef more(a: int, b: int) -> bool:\n    return a + 1 < b and a > 0\n")
    before, after = ({mutant.key for mutant in chosen(package, 1, 100)} for package in (PACKAGE, changed))
    assert len(before - after) <= 3


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("a = b < c", {"<->>=", "<-><="}),
        ("a = b is not c", {"is not->is"}),
        ("a = b and not c", {"and->or", "not ->"}),
        ("a = b + 1", {"+->-"}),
        ("a = max(b, c)", {"max->min"}),
        ("def f(a):\n    a.b = c(d, e)", {"a.b = c(d, e)->pass", "d, e->e, d"}),
        ("def f(a):\n    logger.info(a, 1 + 2)", set()),
        ("def f(a):\n    raise ValueError(a + 1)", {"raise ValueError(a + 1)->pass"}),
    ],
)
def test_what_operators_change_in_python(text: str, changes: set[str]) -> None:
    places = of_text("a.py", text)
    assert {f"{text[start:end]}->{new}" for _, start, end, new in places} == changes


def test_what_operators_change_in_scripts() -> None:
    text = "-- a == b\nif a ~= 'x == y' then\n  redis.call('del', a)\nend\n"
    changes = {f"{text[start:end]}->{new}" for _, start, end, new in of_text("a.lua", text)}
    assert changes == {"~=->==", "redis.call('del', a)->"}


def test_known_survivors_are_places_that_are_there() -> None:
    assert set(known_survivors()) <= {*keys(PACKAGE), *(mutant.key for mutant in (*BY_HAND, *OLD_BUGS))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "theme", "rule"),
    [
        ("a loss is reported twice", "stops", "S5"),
        ("a grant is accepted too late to be lost in time", "stops", "S5"),
        ("a master that has lost its data votes at once", "restarts", "S2"),
        ("a quiet release without a follow-up wakes no waiter", "interruptions", "wake-up"),
        ("a wake-up between two waits is lost", "overtakings", "wake-up"),
        ("a forked child uses the record of its parent", "crashes", "crash"),
    ],
)
def test_a_mistake_is_found(name: str, theme: str, rule: str) -> None:
    [mutant] = [mutant for mutant in BY_HAND if mutant.name == name]
    stage = Stage()
    stage.plant(mutant)
    assert stage.histories(list(islice(_seeds_of(theme), 20)), 60.0)["rule"] == rule


def _seeds_of(theme: str) -> Iterator[int]:
    """Return the seeds whose histories are about one mechanism."""
    for seed in count(1):
        tape = Tape(seed)
        settings = settings_from(tape.stream("world").draw)
        keepers.choose(settings, tape.stream("keeper").draw())
        if settings.theme == theme:
            yield seed
