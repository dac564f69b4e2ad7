"""Every example in a docstring of the package, and of scripts/test_all.py, does what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import wheel_lock

PACKAGE = Path(wheel_lock.__file__).parent


def names() -> list[str]:
    files = [file for file in sorted(PACKAGE.rglob("*.py")) if ">>> " in file.read_text("utf-8")]
    paths = [*(file.relative_to(PACKAGE.parent) for file in files), Path("scripts/test_all.py")]
    return [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]


def test_the_examples_in_the_docstrings_work(capsys: pytest.CaptureFixture[str]) -> None:
    failed = attempted = 0
    for name in names():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "wheel_lock":
                raise
            continue  # an extra that is not installed
        result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
        failed += result.failed
        attempted += result.attempted
    assert failed == 0, capsys.readouterr().out
    assert attempted > 20  # so that an examples-are-not-found is not taken for an examples-are-right
