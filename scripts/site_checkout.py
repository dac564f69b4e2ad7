"""Brings what lies beside docs/ to the site: the pages of the checkout's root, and links to its files.

In the checkout every link is relative, so it works where a page is read as a file. On the site a link to another page of it
stays relative, and a link to any other file leads to the repository, whose address is in mkdocs.yml.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the root that are pages of the site, and their names there."""

BOOST = {"start": 2.0, "guide": 3.0} | dict.fromkeys(
    ("reference", "benchmarks", "design.md", "contributing.md", "changelog.md"), 0.3
)
"""How much a hit in a folder or page counts in the search: who searches for an option wants the page that explains it."""

_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_CODE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<mark>```+)[^\n]*\n.*?^(?P=indent)(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text, "", config.extra["repository"])))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page of docs/, and say how much its hits count in the search."""
    page.meta.setdefault("search", {"boost": BOOST.get(page.file.src_uri.partition("/")[0], 1.0)})
    if page.file.src_uri in PAGES.values():
        return markdown
    return relinked(markdown, posixpath.join("docs", page.file.src_uri), config.extra["repository"])


def relinked(text: str, source: str, repository: str) -> str:
    """Return the text of a page with its links as they are on the site.

    Args:
        text: The text, in Markdown.
        source: The path of its file in the checkout, relative to the root; "" for a page of the root.
        repository: The address of the repository's files.

    Raises:
        PluginError: A link leads to no file of the checkout.
    """
    folder = posixpath.dirname(source)

    def rewritten(found: re.Match[str]) -> str:
        target, _, anchor = found[2].partition("#")
        if not target or ":" in target:
            return found[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if not (ROOT / path).exists():
            raise PluginError(f"{source}: {found[2]} leads to no file of the checkout")
        name = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if name is None:
            return f"{found[1]}{repository}/{path}{found[3]}"
        here = posixpath.dirname(source.removeprefix("docs/"))
        address = posixpath.relpath(name, here or ".") + (f"#{anchor}" if anchor else "")
        return f"{found[1]}{address}{found[3]}"

    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_LINK.sub(rewritten, text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(rewritten, text[end:])])
