"""Check the links of a built site: `python scripts/site_links.py build/site`.

Every link to a file or an anchor of the site must lead somewhere, and no page may load anything from elsewhere:
scripts, styles, fonts and pictures are files of the site. No code has marks that Markdown has taken for emphasis: what is
copied from it would lack them. Ends with 1 and a line for each that is wrong.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches when it shows the page, by tag.
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "video": "src"}
LOADED_RELATIONS = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "manifest"}


class Page(HTMLParser):
    """The links and anchors of one HTML file."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.emphasis = 0  # within code
        self._codes = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        values = {name: value for name, value in attrs if value is not None}
        self._codes += tag == "code"
        self.emphasis += self._codes > 0 and tag in ("em", "strong")
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values and LOADED_RELATIONS & set(values.get("rel", "").split()):
            self.loaded.append(values["href"])
        elif tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a piece of code."""
        self._codes -= tag == "code"


def faults(site: Path) -> list[str]:
    """Return a line for each link that leads nowhere, each thing loaded from elsewhere, each page with mangled code."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        here = path.relative_to(site)
        if path.name == "404.html":
            continue  # its links are absolute, for it is shown at any address
        if page.emphasis:
            found.append(f"{here}: emphasis within code")
        for link in page.loaded:
            if urlsplit(link).netloc:
                found.append(f"{here}: loads {link}")
        for link in page.links + page.loaded:
            if fault := _fault(path, link, site, pages):
                found.append(f"{here}: {fault}")
    return found


def _fault(path: Path, link: str, site: Path, pages: dict[Path, Page]) -> str | None:
    """Return what is wrong with a link, or None."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = path
    if parts.path:
        base = site if parts.path.startswith("/") else path.parent
        target = (base / unquote(parts.path).lstrip("/")).resolve()
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            return f"{link}: there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"{link}: there is no such anchor"
    return None


def main(arguments: list[str]) -> int:
    """Check the site in the folder that is named; return the exit status."""
    site = Path(arguments[0]).resolve()
    if not (site / "index.html").is_file():
        print(f"site_links: there is no site in {site}", file=sys.stderr)
        return 1
    found = faults(site)
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
