"""The site: what its own checks find, and that the reference has every public name."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import wheel_lock
from tests.site.pages import ROOT


def script(name: str) -> ModuleType:
    """A program of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site(folder: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    return folder


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "index.html").write_text('<h2 id="here">x</h2><a href="../#top">up</a>')
    folder = site(
        tmp_path,
        index="""<h1 id="top">x</h1> <a href="guide/#here">good</a> <a href="https://example.org/">elsewhere</a>
            <a href="guide/#there">no anchor</a> <a href="gone.html">no file</a> <img src="plot.svg">
            <script src="https://example.org/x.js"></script>""",
    )
    assert script("site_links").faults(folder) == [
        "index.html: loads https://example.org/x.js",
        "index.html: guide/#there: there is no such anchor",
        "index.html: gone.html: there is no such file",
        "index.html: plot.svg: there is no such file",
    ]


def test_a_site_without_faults_has_none(tmp_path: Path) -> None:
    site_links = script("site_links")
    assert site_links.main([str(tmp_path)]) == 1  # there is no page at all
    assert site_links.main([str(site(tmp_path, index='<a name="x"></a><a href="#x">here</a>'))]) == 0


def test_roles_in_docstrings_become_code() -> None:
    pytest.importorskip("griffe")
    as_markdown = script("site_docstrings").as_markdown
    assert as_markdown("Raises :class:`~wheel_lock.LockLost`; see :meth:`close`.") == "Raises `LockLost`; see `close`."
    assert as_markdown("Text.\n\n    Example:\n        >>> 1\n") == "Text.\n\n    Examples:\n        >>> 1\n"
    assert as_markdown("Text.\n\n>>> f()\n1\n\nMore.") == "Text.\n\n```pycon\n>>> f()\n1\n```\n\nMore."


def test_a_sequence_diagram_is_drawn_with_all_its_texts() -> None:
    drawing = script("site_sequence").Drawing("""
        sequenceDiagram
            participant A as the caller
            participant B as a node
            A->>B: SET <name>
            alt it is free
                B-->>A: OK
            else it is not
                Note over A,B: a refusal
                B->>B: nothing
            end
    """)
    svg = drawing.svg()
    for text in (
        "the caller",
        "a node",
        "SET &lt;name&gt;",
        "alt: it is free",
        "else: it is not",
        "OK",
        "a refusal",
        "nothing",
    ):
        assert f">{text}</text>" in svg
    assert svg.count('class="reply"') == 1


@pytest.mark.parametrize(
    "source",
    ["graph TD", "sequenceDiagram\nparticipant A as a\nA->>A: x\nloop y", "sequenceDiagram\nparticipant A as a\nopt x"],
)
def test_what_is_not_drawn_is_an_error(source: str) -> None:
    with pytest.raises(ValueError, match="diagram"):
        script("site_sequence").Drawing(source)


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    found = set(re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE))
    wanted = {f"wheel_lock.{name}" for name in wheel_lock.__all__}
    wanted |= {f"wheel_lock.asyncio.{name}" for name in wheel_lock.asyncio.__all__}
    wanted |= {f"wheel_lock.redis_lock.{name}" for name in wheel_lock.redis_lock.__all__}
    wanted |= {
        f"wheel_lock.testing.{name}" for name in ("EmbeddedServer", "FakeContext", "ManualClock", "fake_context")
    }
    assert wanted - found == set()
    assert {name for name in found if not name.startswith("wheel_lock.")} == set()


def test_the_readme_has_links_that_lead_somewhere_from_a_package_index() -> None:
    links = re.findall(r"\]\(([^)]*)\)", (ROOT / "README.md").read_text())
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    for link in links:
        if found := re.match(
            r"https://(?:github\.com|raw\.githubusercontent\.com)/wheel-lock/wheel-lock/(?:blob/)?main/(.*)", link
        ):
            assert (ROOT / found[1]).exists(), link
        elif found := re.match(r"https://wheel-lock\.github\.io/wheel-lock/([^#]*)", link):
            page = ROOT / "docs" / found[1]
            assert page.with_suffix(".md").is_file() or (page / "index.md").is_file(), link
