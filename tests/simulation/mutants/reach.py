"""Which histories and which tests come to which lines: only those can find a mutant.

The package is copied with a call before each statement of a function, `_reached("engine/leases.py:117")`. A script is
reached when it is called.
"""

from __future__ import annotations

import ast
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from tests.simulation.mutants.mutant import lua_of

reached: Counter[str] = Counter()  # how often


def mark(place: str) -> None:
    reached[place] += 1


_IMPORT = "from tests.simulation.mutants.reach import mark as _reached\n"


class _Marks(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self._name = name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._mark(node)
        return node

    def _mark(self, node: ast.AST) -> None:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, field, None)
            if not isinstance(inner, list):
                continue
            for each in inner:
                self._mark(each)
            if field not in ("handlers", "cases"):
                setattr(node, field, [new for each in inner for new in self._marked(each)])

    def _marked(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, ast.Global | ast.Nonlocal):
            return [statement]
        mark = ast.parse(f"_reached('{self._name}:{statement.lineno}')").body[0]
        return [mark, statement]


def instrument(package: Path, paths: list[str]) -> None:
    """Have the modules of a copied package note what is reached."""
    for name in paths:
        path = package / name
        tree = _Marks(name).visit(ast.parse(path.read_text()))
        lines = ast.unparse(ast.fix_missing_locations(tree)).replace(
            "from __future__ import annotations\n", f"from __future__ import annotations\n{_IMPORT}", 1
        )
        path.write_text(lines)


def place_of(package: Path, path: str, line: int) -> str | None:
    """Return what notes that a line is reached; None for a line outside of functions, which all come to."""
    if path.endswith(".lua"):
        return path
    best = None
    for node in ast.walk(ast.parse((package / path).read_text())):
        if isinstance(node, ast.FunctionDef):
            for statement in (each for each in ast.walk(node) if isinstance(each, ast.stmt) and each is not node):
                assert statement.end_lineno is not None
                if statement.lineno <= line <= statement.end_lineno and (best is None or statement.lineno > best):
                    best = statement.lineno
    return None if best is None else f"{path}:{best}"


def watch_scripts() -> None:
    """Note the files of scripts that are called in a simulation."""
    from tests.simulation import server_rules  # imported in the copy that is watched only

    files = lua_of()
    arrives = server_rules.ServerRules.command_arrives

    def command_arrives(self: Any, wire: Any, words: list[bytes], sent_at: float) -> None:
        name = server_rules.NAMES.get(words[1]) if len(words) > 1 else None
        if name is not None:
            reached.update(files.get(name.partition(",")[0], ()))
        arrives(self, wire, words, sent_at)

    server_rules.ServerRules.command_arrives = command_arrives  # type: ignore[method-assign]


# -- as a plugin of pytest: what each test reaches ---------------------------------------------------------------------

tests: dict[str, list[str]] = {}


def pytest_runtest_setup(item: Any) -> None:
    reached.clear()


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" and report.passed:
        tests[report.nodeid] = [f"{report.duration:.3f}", *reached]


def pytest_sessionfinish(session: Any) -> None:
    Path(os.environ["REACHED"]).write_text(json.dumps(tests))
