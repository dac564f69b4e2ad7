"""The Python code of the documentation's pages: what is run, and in which order.

Every ```python block of a page is run, one after the other, in one namespace. Comments of HTML, which readers do not see,
say what else there is to do:

    <!-- test: run          code that is run at that place: what the blocks use and a reader has, or a check
    ...
    -->
    <!-- test: skip: why    the next block is not run
    <!-- test: page: why    none of the page's blocks is run

A block whose first line is the name of a file, `# shop/settings.py`, is run as the module `shop.settings`, which blocks
after it can import.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SERVER = "redis://localhost:6379"

_PIECE = re.compile(
    r"^(?P<indent>[ \t]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$"
    r"|^[ \t]*<!-- test: (?P<what>run|skip|page)(?P<why>.*?)-->",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"# ([\w/]+)\.py\b")


class Block(NamedTuple):
    """One piece of code.

    Attributes:
        line: The number of its first line in the page.
        code: Its text.
        module: The name of the module that it is, or None.
    """

    line: int
    code: str
    module: str | None


def pages() -> list[Path]:
    """Return every page that has such a block, relative to the root of the project."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page.relative_to(ROOT) for page in found if "```python" in page.read_text(encoding="utf-8")]


def blocks(text: str) -> Iterator[Block]:
    """Yield what is to be run of a page, in its order."""
    skip = False
    for piece in _PIECE.finditer(text):
        what = piece["what"]
        if what in ("skip", "page") and not piece["why"].lstrip(": ").strip():
            raise ValueError(f"<!-- test: {what} --> gives no reason")
        if what == "page":
            return
        if what == "skip":
            skip = True
            continue
        if not what and skip:
            skip = False
            continue
        start = piece.start("why" if what else "code")
        code = textwrap.dedent(piece["why"] if what else piece["code"])
        file = _FILE.match(code)
        yield Block(text.count("\n", 0, start) + 1, code, file[1].replace("/", ".") if file and not what else None)


def on_server(code: str, url: str) -> str:
    """Return code with the server at `url` in the place of the one that readers have."""
    code = code.replace("redis.Redis()", f"redis.Redis.from_url({SERVER!r})")
    code = code.replace("redis.asyncio.Redis()", f"redis.asyncio.Redis.from_url({SERVER!r})")
    return code.replace(SERVER, url)
