"""Mutants by operators: small changes of expressions and statements, wherever the syntax has a place for one.

A change that cannot be seen is not planted: in docstrings, annotations, messages and logs, `__repr__`, slots, protocols.
What else is equivalent survives, and is listed with its reason in `survivors.txt`.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tests.simulation.mutants.mutant import Mutant

PLACES = ("lease.py", "block.py", "engine", "quorum", "protocol", "lock_types")
_UNSEEN_FILES = ("engine/interfaces.py", "lock_types/__init__.py")
_ELSEWHERE = ("engine/direct/",)  # real sockets and threads, which tests/direct tests on a real server
# Output for people only.
_UNSEEN_NAMES = re.compile(
    r"^(__repr__|__str__|describe|_?log\w*|_?warn\w*|\w*(message|quoted|shown|call_site|spans?)\w*)$"
)
_UNSEEN_CALLS = re.compile(r"\b(logger|warnings|NOTIFIER|log_fields|counters?|counts?|spans?|quoted|super)\b")

_COMPARE = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "is": "is not", "is not": "is"}
_COMPARE |= {"in": "not in", "not in": "in"}
_BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*"}


def _type_of(operator: str) -> type[ast.AST]:
    node: Any = ast.parse(f"a {operator} b", mode="eval").body
    return type(node.ops[0] if isinstance(node, ast.Compare) else node.op)


_OPERATORS = {_type_of(operator): operator for operator in (*_COMPARE, *_ARITHMETIC)}
_Place = tuple[str, int, int, str]  # the operator, from and to which byte, and what stands there instead


class _Walk(ast.NodeVisitor):
    """The places of one module."""

    def __init__(self, text: str) -> None:
        self._data = text.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.places: list[_Place] = []
        self._constructs = False
        self.visit(ast.parse(text))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._data[start:end].decode()

    def _add(self, operator: str, start: int, end: int, new: str) -> None:
        self.places.append((operator, start, end, new))

    def _between(self, operator: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace an operator, which stands alone between its operands but for parentheses and blanks."""
        start, end = self._span(left)[1], self._span(right)[0]
        found = re.search(rf"(?<!\w){re.escape(old)}(?!\w)".replace(r"\ ", r"\s+"), self._data[start:end].decode())
        if found is not None:
            self._add(operator, start + found.start(), start + found.end(), new)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            unseen = _UNSEEN_NAMES.match(node.name) is not None
            if unseen or (isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in node.bases)):
                return
            before, self._constructs = self._constructs, node.name in ("__init__", "__new__")
            for each in node.body:
                self.visit(each)
            self._constructs = before
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.stmt):
            self._statement(node)
            if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
                return
            if isinstance(node, ast.Expr) and _UNSEEN_CALLS.search(self._text(node)):
                return
            if isinstance(node, ast.AnnAssign):
                if node.value is not None:
                    self.visit(node.value)
                return
        if isinstance(node, ast.JoinedStr):
            return
        super().visit(node)

    def _statement(self, node: ast.stmt) -> None:
        effect = isinstance(node, ast.Assign | ast.AugAssign) and not any(
            isinstance(target, ast.Name | ast.Tuple)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )
        effect = effect or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        effect = effect or isinstance(node, ast.Raise | ast.Delete | ast.Continue | ast.Break)
        effect = effect or (isinstance(node, ast.Return) and node.value is None)
        # A constructor that leaves out a field fails at once, and shows nothing.
        if effect and node.col_offset and not self._constructs and not _UNSEEN_CALLS.search(self._text(node)):
            self._add("statement", *self._span(node), "pass")
        if isinstance(node, ast.AugAssign) and type(node.op) in _OPERATORS:
            old = _OPERATORS[type(node.op)]
            self._between("arithmetic", node.target, node.value, f"{old}=", f"{_ARITHMETIC[old]}=")

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            old = _OPERATORS[type(operator)]
            self._between("compare", left, right, old, _COMPARE[old])
            if old in _BOUNDARY:
                self._between("boundary", left, right, old, _BOUNDARY[old])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._between("boolean", node.values[0], node.values[1], old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, _ = self._span(node)
            self._add("boolean", start, start + len("not "), "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add("boolean", *self._span(node), str(not node.value))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        texts = any(
            isinstance(each, ast.Constant | ast.JoinedStr) and not isinstance(getattr(each, "value", ""), int | float)
            for each in (node.left, node.right)
        )
        if type(node.op) in _OPERATORS and not texts:
            old = _OPERATORS[type(node.op)]
            self._between("arithmetic", node.left, node.right, old, _ARITHMETIC[old])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _UNSEEN_CALLS.search(self._text(node.func)):
            return
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            self._add("arithmetic", *self._span(node.func), "min" if node.func.id == "max" else "max")
        elif len(node.args) >= 2 and not any(
            isinstance(each, ast.Starred | ast.GeneratorExp) for each in node.args[:2]
        ):
            first, second = node.args[0], node.args[1]
            named = not (
                isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "getattr", "cast", "partial")
            )
            if named and self._text(first) != self._text(second):
                between = self._data[self._span(first)[1] : self._span(second)[0]].decode()
                new = f"{self._text(second)}{between}{self._text(first)}"
                self._add("argument", self._span(first)[0], self._span(second)[1], new)
        self.generic_visit(node)


_LUA_TOKEN = re.compile(r"--[^\n]*|'[^'\n]*'|\"[^\"\n]*\"|[=~<>]=|\.\.|\w+(?:\.\w+)*|[^\s\w]")
_LUA_EFFECT = re.compile(r"^ +((?:redis\.p?call\(.*\)|[\w.\[\] +]+ = (?!function).*[^{(,])|return)$", re.MULTILINE)
_LUA_SWAP = re.compile(r"\b(?!format|pcall|call|function\b)\w+\((?=([\w.\[\]]+), ([\w.\[\]]+)[,)])")
_LUA_BOOLEAN = {"and": "or", "or": "and", "true": "false", "false": "true", "not": ""}


def _of_lua(text: str) -> Iterator[_Place]:
    """Return the places of a script: of its tokens outside of comments and strings."""
    compare = {**_COMPARE, "~=": "==", "==": "~="}
    for found in _LUA_TOKEN.finditer(text):
        token, start, end = found[0], *found.span()
        if token in compare and token not in ("in", "is"):
            yield "compare", start, end, compare[token]
        if token in _BOUNDARY:
            yield "boundary", start, end, _BOUNDARY[token]
        if token in _LUA_BOOLEAN:
            yield "boolean", start, end, _LUA_BOOLEAN[token]
        if token in ("+", "-", "*", "/") and text[start - 1] == " " == text[end]:
            yield "arithmetic", start, end, _ARITHMETIC[token]
        if token in ("math.min", "math.max"):
            yield "arithmetic", start, end, "math.min" if token == "math.max" else "math.max"
    for found in _LUA_EFFECT.finditer(text):
        yield "statement", *found.span(1), ""
    for line in re.finditer(r"^(?!--|local function).*$", text, re.MULTILINE):
        for found in _LUA_SWAP.finditer(line[0]):
            if found[1] != found[2]:
                start, end = line.start() + found.end(), line.start() + found.end(2)
                yield "argument", start, end, f"{found[2]}, {found[1]}"


def of_text(name: str, text: str) -> list[_Place]:
    """Return the places of a file, in order."""
    return sorted(set(_Walk(text).places if name.endswith(".py") else _of_lua(text)))


def places(package: Path) -> Iterator[tuple[str, _Place]]:
    """Return all places for a mutant, each with the path of its file below the package."""
    for place in PLACES:
        root = package / place
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.lua")] if root.is_dir() else [root]):
            name = str(path.relative_to(package))
            if name not in _UNSEEN_FILES and not name.startswith(_ELSEWHERE):
                yield from ((name, each) for each in of_text(name, path.read_text()))


def _keyed(package: Path) -> Iterator[tuple[str, str, _Place]]:
    """Return the key of each mutant by operators, the path of its file, and its place."""
    data = {name: (package / name).read_bytes() for name in {name for name, _ in places(package)}}
    return ((_key(data[name], name, place), name, place) for name, place in places(package))


def keys(package: Path) -> Iterator[str]:
    return (key for key, _, _ in _keyed(package))


def _key(data: bytes, name: str, place: _Place) -> str:
    """Return what names a mutant even if lines move: its file, what is changed, and the line around."""
    operator, start, end, new = place
    line = data[data.rfind(b"\n", 0, start) + 1 :].partition(b"\n")[0].decode().strip()
    return f"{name}: {operator}: {_short(data[start:end].decode())} -> {_short(new) or '(nothing)'}, in: {line}"


def chosen(package: Path, seed: int, count: int) -> list[Mutant]:
    """Return ``count`` mutants by operators, chosen by ``seed``; when some code has changed the others stay the same."""
    ranked = sorted(_keyed(package), key=lambda each: hashlib.sha256(f"{seed} {each[0]}".encode()).digest())
    mutants = filter(None, (_mutant(package, name, place) for _, name, place in ranked))
    return sorted(islice(mutants, count))


def _mutant(package: Path, name: str, place: _Place) -> Mutant | None:
    """Return a mutant; None if that change is none, or leaves no program."""
    operator, start, end, new = place
    data = (package / name).read_bytes()
    changed = (data[:start] + new.encode() + data[end:]).decode()
    if name.endswith(".py"):
        try:
            if ast.dump(ast.parse(data)) == ast.dump(ast.parse(changed)):
                return None
        except SyntaxError:
            return None
    line, column = data.count(b"\n", 0, start) + 1, start - data.rfind(b"\n", 0, start)
    what = f"{_short(data[start:end].decode())} -> {_short(new) or '(nothing)'}"
    where = f"{name}:{line}:{column}: {operator}: {what}"
    return Mutant(where, name, changed, (line,), operator, _key(data, name, place))


def _short(text: str) -> str:
    return " ".join(text.split())[:60]
