"""The pages show the code that is tested."""

from __future__ import annotations

import re

import pytest

from tests.frameworks.programs import EXAMPLES, ROOT

PAGES = ROOT / "docs" / "frameworks"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_a_page_shows_the_example_as_it_is(example: str) -> None:
    _, _, code = (EXAMPLES / example).read_text().partition("from __future__ import annotations\n\n")
    shown = [block for page in PAGES.glob("*.md") for block in BLOCK.findall(page.read_text())]
    assert shown.count(code) == 1


def test_the_code_of_the_pages_can_be_compiled() -> None:
    for page in PAGES.glob("*.md"):
        for block in BLOCK.findall(page.read_text()):
            compile(block, str(page), "exec")
