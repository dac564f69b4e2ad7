"""Every example of the documentation runs as it stands, against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site.pages import blocks, pages
from tests.support.fixtures import fixture_of
from tests.support.fork_server import ForkServer
from tests.support.redis_server import RedisServer

forks = fixture_of(lambda: ForkServer("tests.site.page_program"), "module")


@pytest.mark.parametrize("page", pages(), ids=str)
def test_the_examples_of_a_page_run(page: Path, forks: ForkServer, redis_server: RedisServer, tmp_path: Path) -> None:
    with open(tmp_path / "output", "w+") as output:
        child = forks.start(str(page), redis_server.url, stdout=output.fileno(), stderr=output.fileno())
        status = child.wait()
        output.seek(0)
        assert status == 0, output.read()


def test_a_block_is_run_unless_its_page_gives_a_reason() -> None:
    text = """
```python
a = 1
```
<!-- test: run
b = 2
-->
<!-- test: skip: needs a cluster -->
```python
c = 3
```

    ```python title="x"
    d = 4
    ```

```python
# shop/settings.py
e = 5
```
"""
    found = [(block.line, block.code.strip(), block.module) for block in blocks(text)]
    assert found == [
        (3, "a = 1", None),
        (5, "b = 2", None),
        (14, "d = 4", None),
        (18, "# shop/settings.py\ne = 5", "shop.settings"),
    ]
    with pytest.raises(ValueError, match="gives no reason"):
        list(blocks("<!-- test: skip -->\n```python\na\n```\n"))
    assert list(blocks("<!-- test: page: no server -->\n```python\na\n```\n")) == []
