"""What a mutant is: a file of the package with one mistake in it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[3] / "wheel_lock"
_INCLUDE = re.compile(r"^-- include: (\w+)$", re.MULTILINE)


class Mutant(NamedTuple):
    """A mistake.

    Attributes:
        name: What is wrong, and where.
        path: The file, below the package.
        text: The file with the mistake.
        lines: The lines that are changed, of the file without the mistake.
        operator: How it was made.
        key: Names it even if lines move; its name if it is by hand.
    """

    name: str
    path: str
    text: str
    lines: tuple[int, ...]
    operator: str
    key: str


def digest(*more: object) -> str:
    """Return a text that changes with the package."""
    digest = hashlib.sha256(repr(more).encode())
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in (".py", ".lua")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def by_hand(name: str, path: str, *changes: str, operator: str = "by hand") -> Mutant:
    """Return a mutant that replaces texts of a file: an old one, which is there once, its new one, and so on."""
    text = (PACKAGE / path).read_text()
    lines = []
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        if text.count(old) != 1:
            raise ValueError(f"{name}: this is {text.count(old)} times in {path}, and not once: {old}")
        lines.append(text.count("\n", 0, text.index(old)) + 1)
        text = text.replace(old, new)
    return Mutant(name, path, text, tuple(lines), operator, name)


def lua_of() -> dict[str, list[str]]:
    """Return the files of each script, with those that it includes."""
    root = PACKAGE / "protocol" / "lua"

    def files(path: Path) -> list[str]:
        included = _INCLUDE.findall(path.read_text())
        inner = [name for each in included for name in files(root / "include" / f"{each}.lua")]
        return [str(path.relative_to(PACKAGE)), *inner]

    return {path.stem: files(path) for path in root.glob("*.lua")}
