"""The statements of a syntax tree, without their expressions: a tenth of its nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what stands right under a node: statements, and the parts of a ``try`` or a ``match`` that have some."""
    for block in BLOCKS:
        below = getattr(node, block, None)
        if isinstance(below, list):
            yield from below


def all_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node, and all that stands under it."""
    waiting = [node]
    while waiting:
        yield (node := waiting.pop())
        waiting += statements(node)
