"""The recipes of docs/guide/redis-py.md as modules: what users are advised to write is what is tested."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "redis-py.md"


def recipe(path: str) -> str:
    """The code whose first line says that it goes into the file `path`."""
    found = re.search(rf"```python\n(# {re.escape(path)}\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, f"{PAGE.name} has no code for {path}"
    return found[1]


@contextmanager
def as_module(path: str, replace: dict[str, str] | None = None) -> Iterator[ModuleType]:
    """That code as the module it would be, importable within the block; `replace` puts a test's own server into it."""
    source = recipe(path)
    for old, new in (replace or {}).items():
        assert old in source
        source = source.replace(old, new)
    name = path.removesuffix(".py").replace("/", ".")
    package, module = ModuleType(name.partition(".")[0]), ModuleType(name)
    package.__path__ = []
    before = dict(sys.modules)
    sys.modules.setdefault(package.__name__, package)
    sys.modules[name] = module
    try:
        exec(compile(source, str(PAGE), "exec"), module.__dict__)
        yield module
    finally:
        for added in sys.modules.keys() - before.keys():
            if added.partition(".")[0] == package.__name__:
                del sys.modules[added]
