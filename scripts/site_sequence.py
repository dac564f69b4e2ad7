"""Draws the sequence diagrams of the pages as SVG while the site is built, so that a page needs no script to show them.

They are written in a subset of Mermaid's language, which GitHub draws: participants, messages, notes over participants,
``alt``, ``else`` and ``opt``. Anything else is an error of the build.
"""

from __future__ import annotations

import re
from html import escape
from textwrap import wrap
from typing import Any, NamedTuple

COLUMN = 200  # px between two lifelines
MARGIN = 100  # px left of the first and right of the last one
LINE = 16  # px per line of text
CHARACTER = 6.4  # px, about, at the font's size of 12 px
BOX = 170  # px, the width of a participant's box

_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(--?>>)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,\s*(\w+))?: (.+)")
_BLOCK = re.compile(r"(alt|opt|else) (.+)")


class _Open(NamedTuple):
    """A block that has not ended yet."""

    top: float
    depth: int


def on_config(config: Any) -> Any:
    """Have MkDocs draw the blocks of the language ``mermaid``."""
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "mermaid", "class": "sequence", "format": fence}]
    return config


def fence(source: str, language: str, css_class: str, options: Any, md: Any, **more: Any) -> str:
    """Return the HTML of one block, as pymdownx.superfences asks for it."""
    return f'<figure class="{css_class}" tabindex="0">{Drawing(source).svg()}</figure>'


class Drawing:
    """One sequence diagram.

    Args:
        source: Its text.

    Raises:
        ValueError: A line of the text is none of this subset.
    """

    def __init__(self, source: str) -> None:
        self._x: dict[str, float] = {}
        self._titles: list[str] = []
        self._parts: list[str] = []
        self._blocks: list[_Open] = []
        self._y = 0.0
        lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
        if not lines or lines[0] != "sequenceDiagram":
            raise ValueError(f"only sequence diagrams are drawn, and this is {lines[:1]}")
        rest = []
        for line in lines[1:]:
            if found := _PARTICIPANT.fullmatch(line):
                self._x[found[1]] = MARGIN + COLUMN * len(self._titles)
                self._titles.append(found[2])
            else:
                rest.append(line)
        self.width = 2 * MARGIN + COLUMN * (len(self._titles) - 1) + 60
        heads = [_wrapped(title, BOX - 10) for title in self._titles]
        self._head = LINE * max(len(head) for head in heads) + 14
        self._heads = heads
        self._y = self._head + 14.0
        for line in rest:
            self._add(line)
        if self._blocks:
            raise ValueError("a block of the diagram has no end")
        self.height = self._y + 10

    def _add(self, line: str) -> None:
        if found := _MESSAGE.fullmatch(line):
            self._message(self._x[found[1]], self._x[found[3]], found[4], dashed=found[2] == "-->>")
        elif found := _NOTE.fullmatch(line):
            self._note(self._x[found[1]], self._x[found[2] or found[1]], found[3])
        elif found := _BLOCK.fullmatch(line):
            self._block(found[1], found[2])
        elif line == "end":
            top, depth = self._blocks.pop()
            self._y += 6
            inset = 6 + 6 * depth
            self._parts.append(
                f'<rect class="block" x="{inset}" y="{top:g}" width="{self.width - 2 * inset}" height="{self._y - top:g}"/>'
            )
            self._y += 10
        else:
            raise ValueError(f"this line of a diagram is none that is drawn: {line!r}")

    def _message(self, start: float, end: float, text: str, *, dashed: bool) -> None:
        line = f'class="{"reply" if dashed else "call"}" marker-end="url(#arrow)"'
        if start == end:
            lines = _wrapped(text, COLUMN - 24 if start < self.width - MARGIN - 60 else MARGIN + 40)
            top = self._y + 4
            self._text(start + 22, top + LINE - 4, lines, "start")
            bottom = max(top + LINE * len(lines), top + 18)
            self._parts.append(f'<path {line} d="M{start:g} {top + 4:g} h14 V{bottom - 4:g} h-12"/>')
            self._y = bottom + 6
            return
        lines = _wrapped(text, abs(end - start) - 14)
        self._text((start + end) / 2, self._y + LINE - 4, lines, "middle")
        self._y += LINE * len(lines) + 4
        gap = 2 if end > start else -2
        self._parts.append(f'<path {line} d="M{start:g} {self._y:g} H{end - gap:g}"/>')
        self._y += 10

    def _note(self, first: float, last: float, text: str) -> None:
        width = max(BOX, abs(last - first) + BOX - 20)
        lines = _wrapped(text, width - 12)
        middle = (first + last) / 2
        height = LINE * len(lines) + 8
        self._parts.append(
            f'<rect class="note" x="{middle - width / 2:g}" y="{self._y:g}" width="{width:g}" height="{height}" rx="3"/>'
        )
        self._text(middle, self._y + LINE, lines, "middle")
        self._y += height + 8

    def _block(self, kind: str, text: str) -> None:
        if kind == "else":
            depth = self._blocks[-1].depth
            inset = 6 + 6 * depth
            self._y += 4
            self._parts.append(f'<path class="else" d="M{inset} {self._y:g} H{self.width - inset}"/>')
        else:
            depth = len(self._blocks)
            inset = 6 + 6 * depth
            self._blocks.append(_Open(self._y, depth))
        lines = _wrapped(f"{kind}: {text}", self.width - 2 * inset - 20)
        self._text(inset + 8, self._y + LINE, lines, "start", "condition")
        self._y += LINE * len(lines) + 8

    def _text(self, x: float, y: float, lines: list[str], anchor: str, css_class: str = "label") -> None:
        self._parts.append(_text(x, y, lines, anchor, css_class))

    def svg(self) -> str:
        """Return the drawing. Its colours are those of the page, see docs/site.css."""
        parts = []
        for x, head in zip(self._x.values(), self._heads, strict=True):
            parts.append(f'<path class="life" d="M{x:g} {self._head} V{self.height:g}"/>')
            parts.append(f'<rect class="head" x="{x - BOX / 2:g}" y="1" width="{BOX}" height="{self._head}" rx="4"/>')
            parts.append(_text(x, LINE + 3, head, "middle", "title"))
        marker = (
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            '<path class="head-of-arrow" d="M0 0 L8 4 L0 8 z"/></marker></defs>'
        )
        label = escape("Sequence diagram: " + ", ".join(self._titles), quote=True)
        return (
            f'<svg role="img" aria-label="{label}" width="{self.width}" height="{self.height:g}" '
            f'viewBox="0 0 {self.width} {self.height:g}">{marker}{"".join(parts)}{"".join(self._parts)}</svg>'
        )


def _wrapped(text: str, width: float) -> list[str]:
    return wrap(text, max(12, int(width / CHARACTER)), break_long_words=False)


def _text(x: float, y: float, lines: list[str], anchor: str, css_class: str) -> str:
    start = f'<text class="{css_class}" text-anchor="{anchor}" x="{x:g}"'
    return "".join(f'{start} y="{y + LINE * number:g}">{escape(line)}</text>' for number, line in enumerate(lines))
