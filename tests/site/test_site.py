"""The site: what its own checks find, and that the reference has every public name."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import wheel_lock
from tests.site.pages import ROOT

PACKAGE = "wheel_lock"


def script(name: str) -> ModuleType:
    """A program of scripts/."""
    return import_module(f"scripts.{name}")


def test_links_that_lead_nowhere_and_mangled_code_are_found(tmp_path: Path) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "index.html").write_text('<h2 id="here">x</h2><a href="../#top">up</a>')
    (tmp_path / "index.html").write_text(
        """<h1 id="top">x</h1> <a href="guide/#here">good</a> <a href="https://example.org/">elsewhere</a>
            <a href="guide/#there">no anchor</a> <a href="gone.html">no file</a> <img src="plot.svg">
            <script src="https://example.org/x.js"></script> <code>&amp;<strong>redis</strong>:x</code> <em>x</em>""",
    )
    assert script("site_links").faults(tmp_path) == [
        "index.html: emphasis within code",
        "index.html: loads https://example.org/x.js",
        "index.html: guide/#there: there is no such anchor",
        "index.html: gone.html: there is no such file",
        "index.html: plot.svg: there is no such file",
    ]


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
    wanted |= {f"wheel_lock.guards.{name}" for name in ("Fence", "create", "fence_of", "guard", "redis.Guarded")}
    wanted |= {
        f"wheel_lock.testing.{name}" for name in ("EmbeddedServer", "FakeContext", "ManualClock", "fake_context")
    }
    assert wanted - found == set()
    assert {name for name in found if not name.startswith("wheel_lock.")} == set()


ADDRESS = re.compile(r"https://(?:github\.com|raw\.githubusercontent\.com|wheel-lock\.github\.io)/wheel-lock[\w./-]*")


def test_the_addresses_of_the_project_stand_in_its_settings_only() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "wheel_lock", "scripts", "bench", ".")
        for path in (ROOT / folder).glob("*" if folder == "." else "**/*")
        if path.suffix in (".md", ".py", ".toml", ".yml", ".json") and ADDRESS.search(path.read_text(encoding="utf-8"))
    }
    assert found <= {"pyproject.toml", "mkdocs.yml", "CHANGELOG.md", "docs/operations/alerts.yml"}


def test_the_addresses_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    site, source = project["project"]["urls"]["Documentation"], project["project"]["urls"]["Source"]
    texts = [(ROOT / name).read_text() for name in ("pyproject.toml", "mkdocs.yml", "docs/operations/alerts.yml")]
    raw = source.replace("github.com", "raw.githubusercontent.com")
    for address in {address for text in texts for address in ADDRESS.findall(text)}:
        assert address.startswith((site, f"{source}/", f"{raw}/main/")) or address in (source, raw), address


def test_a_link_of_the_package_description_leads_to_the_site_or_the_repository() -> None:
    fancy = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (ROOT / "README.md").read_text()
    relative = re.findall(r"\]\(([^)]*)\)", text)
    assert len(relative) > 10
    for link in relative:
        assert (ROOT / link.partition("#")[0]).is_file(), link
    for change in fancy["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(change["pattern"], change["replacement"], text)
    rewritten = re.findall(r"\]\(([^)]*)\)", text)
    assert [link for link in rewritten if not ADDRESS.fullmatch(link.partition("#")[0])] == []
    home = "https://wheel-lock.github.io/wheel-lock/"
    assert [f"{home}#what-no-redis-lock-can-promise", f"{home}guide/waiting/"] == [
        rewritten[relative.index(link)]
        for link in ("docs/index.md#what-no-redis-lock-can-promise", "docs/guide/waiting.md")
    ]


def test_a_link_to_a_file_outside_of_the_site_leads_to_the_repository() -> None:
    pytest.importorskip("mkdocs")
    relinked = script("site_checkout").relinked
    text = "[a](../faq.md#x) [b](../../bench/page.py) [c](../../SECURITY.md) [d](https://e.org) [e](#f)\n```\n[g](h)\n```\n"
    assert relinked(text, "docs/guide/many.md", "https://r") == (
        "[a](../faq.md#x) [b](https://r/bench/page.py) [c](../security.md) [d](https://e.org) [e](#f)\n```\n[g](h)\n```\n"
    )
    with pytest.raises(Exception, match="leads to no file"):
        relinked("[a](gone.md)", "docs/faq.md", "https://r")


def test_no_page_installs_from_a_package_index_where_the_package_is_not() -> None:
    from_an_index = re.compile(r"pip install (?:\S+ )*'?wheel[-_]lock\b")
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    assert [page.name for page in pages if from_an_index.search(page.read_text())] == []


def test_each_runnable_example_is_included_in_their_page() -> None:
    page = (ROOT / "docs" / "guide" / "examples.md").read_text()
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "examples").glob("*.py")}
    assert set(re.findall(r'^--8<-- "(.+)"$', page, re.MULTILINE)) == files


PATH = re.compile(r"`((?:[\w.]+/)*[\w.]+\.(?:py|lua|tsv|txt)|(?:[\w.]+/)+)`")
FOLDERS = ("wheel_lock/", "tests/", "docs/", "bench/", "scripts/")


def test_each_path_in_the_pages_for_maintainers_exists() -> None:
    design, contributing = (ROOT / name for name in ("docs/design.md", "CONTRIBUTING.md"))
    paths = {path for path in PATH.findall(contributing.read_text()) if path.startswith(FOLDERS)}
    paths |= set(PATH.findall(design.read_text()))
    assert len(paths) > 100
    places = (ROOT, ROOT / PACKAGE, ROOT / PACKAGE / "protocol/lua")
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in places)] == []


def test_each_concept_has_its_files() -> None:
    _, _, rest = (ROOT / "docs/design.md").read_text().partition("| concept | files |\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    assert len(rows) > 30
    assert [row for row in rows if not PATH.search(row)] == []


def test_each_method_that_the_architecture_names_exists() -> None:
    source = "".join(path.read_text() for path in (ROOT / PACKAGE).rglob("*.py"))
    named = re.findall(r"\b([A-Z][a-z]\w+)\.([a-z_]\w+)", (ROOT / "docs/design.md").read_text())
    assert len(named) > 30
    classes = set(re.findall(r"^class (\w+)", source, re.MULTILINE))
    members = set(re.findall(r"^    (?:async )?(?:def )?(\w+)", source, re.MULTILINE))
    members |= set(re.findall(r"\bself\.(\w+)(?=.* = )", source))
    assert [f"{name}.{member}" for name, member in named if name not in classes or member not in members] == []


def test_no_page_has_the_marks_of_a_merge() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)] == []
