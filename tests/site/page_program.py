"""Runs the code of one page: `main` is called with its path, and the URL of a server.

Which page it is turns out after the fork, so what most of them import is imported here.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
import traceback
import types
import warnings

import wheel_lock  # noqa: F401
from tests.site.pages import ROOT, Block, blocks, on_server


def main(page: str, url: str) -> None:
    warnings.simplefilter("error")
    # From 3.12 on Python warns of any fork in a process that has threads; the page about forks says so, too.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        with asyncio.Runner() as runner:
            for block in blocks((ROOT / page).read_text(encoding="utf-8")):
                _run(block, page, url, namespace, runner)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise SystemExit(1) from None


def _run(block: Block, page: str, url: str, namespace: dict[str, object], runner: asyncio.Runner) -> None:
    # Empty lines before it, so that a traceback has the page's lines; a block may await.
    source = "\n" * (block.line - 1) + on_server(block.code, url)
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if block.module is not None:
        _make_module(block.module)
        namespace["__name__"] = block.module
    try:
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(eval(code, namespace))
        else:
            exec(code, namespace)
    finally:
        if block.module is not None:
            sys.modules[block.module].__dict__.update(namespace)
            namespace["__name__"] = "__main__"


def _make_module(name: str) -> None:
    """Make an empty module, and the packages it is in."""
    parts = name.split(".")
    for end in range(1, len(parts)):
        package = types.ModuleType(".".join(parts[:end]))
        package.__path__ = []
        sys.modules.setdefault(package.__name__, package)
    sys.modules[name] = types.ModuleType(name)
