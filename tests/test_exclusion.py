"""Mutual exclusion that an interruption leaves behind nowhere, and the sources, which have no other form of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.background import Background
from tests.support.interruptions import LIBRARY, Interrupted, Interruption, at_every_place
from wheel_lock.exclusion import exclusively
from wheel_lock.runtime.native import RLock

WITHOUT_A_CALL = {
    ("decorator.py", "lock"): "a lock object of this package, whose __enter__ is written in Python",
    ("cli/doctor/rights.py", "lock"): "the same",
    ("cli/benchmark/command.py", "progress"): "a display",
    ("cli/doctor/command.py", "progress"): "the same",
    ("net/sentinel_reports.py", "self._guard"): "taken on helper threads only, at which no exception is aimed",
}


def is_free(lock: RLock) -> bool:
    def take_it() -> bool:
        taken = lock.acquire(False)
        if taken:
            lock.release()
        return taken

    return Background(take_it).result()


def test_the_result_and_an_exception_of_the_work_reach_the_caller() -> None:
    lock = RLock()
    assert exclusively(lock, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        exclusively(lock, divmod, 7, 0)
    assert is_free(lock)


@pytest.mark.parametrize("again_after", [None, 0, 1])
def test_the_lock_is_free_wherever_an_exception_is_raised(again_after: int | None) -> None:
    lock, places = RLock(), list[str]()

    def scene(interruption: Interruption) -> None:
        try:
            interruption.begin()
            exclusively(lock, list[int])
        except Interrupted:
            pass
        finally:
            interruption.end()
        places.extend(interruption.where)
        assert is_free(lock), interruption.where

    for _ in at_every_place(scene, again_after=again_after):
        pass
    assert len(places) > 2


def test_a_handler_may_come_by_the_same_lock_anywhere() -> None:
    lock, runs = RLock(), list[int]()

    def scene(interruption: Interruption) -> None:
        interruption.begin()
        exclusively(lock, list[int])
        interruption.end()
        assert is_free(lock), interruption.where

    for _ in at_every_place(scene, meanwhile=lambda: exclusively(lock, runs.append, 1), raises=False):
        pass
    assert len(runs) > 2


def bare(tree: ast.Module, path: str) -> Iterator[str]:
    """The statements that take a lock such that an interruption can leave it taken."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                expression = ast.unparse(item.context_expr)
                if not isinstance(item.context_expr, ast.Call) and (path, expression) not in WITHOUT_A_CALL:
                    yield f"{path}:{node.lineno}: with {expression}"
        for statements in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            if isinstance(statements, list):
                for before, behind in pairwise(statements):
                    simple = isinstance(before, ast.Expr | ast.Assign | ast.AnnAssign)
                    if simple and isinstance(behind, ast.Try) and ".acquire(" in ast.unparse(before):
                        yield f"{path}:{before.lineno}: {ast.unparse(before)}"


KEEPERS = ("keeper/burial.py", "keeper/crew.py", "keeper/program.py")
"""A process of its own, in which no handler of a signal and no other thread raises an exception."""


def test_the_sources_take_locks_in_one_way() -> None:
    found: list[str] = []
    for file in sorted(Path(LIBRARY).rglob("*.py")):
        path = file.relative_to(LIBRARY).as_posix()
        if path not in KEEPERS:
            found += bare(ast.parse(file.read_text()), path)
    assert not found, "call wheel_lock.exclusion.exclusively instead"


@pytest.mark.parametrize(
    "source",
    [
        "with self._lock:\n    pass",
        "with lock, open(name):\n    pass",
        "lock.acquire()\ntry:\n    pass\nfinally:\n    lock.release()",
        "if True:\n    taken = lock.acquire(timeout=1.0)\n    try:\n        pass\n    finally:\n        lock.release()",
    ],
)
def test_the_reader_of_the_sources_sees(source: str) -> None:
    assert list(bare(ast.parse(source), "some.py"))
