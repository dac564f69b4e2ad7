"""Every example in a docstring of the package does what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from types import ModuleType

import pytest

import wheel_lock


def modules() -> list[ModuleType]:
    found = [wheel_lock]
    for info in pkgutil.walk_packages(wheel_lock.__path__, "wheel_lock."):
        if info.name.endswith("__main__"):
            continue  # importing it runs the program
        try:
            found.append(importlib.import_module(info.name))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "wheel_lock":
                raise
            continue  # an extra that is not installed
    return found


def test_the_examples_in_the_docstrings_work(capsys: pytest.CaptureFixture[str]) -> None:
    failed = attempted = 0
    for module in modules():
        result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
        failed += result.failed
        attempted += result.attempted
    assert failed == 0, capsys.readouterr().out
    assert attempted > 20  # so that an examples-are-not-found is not taken for an examples-are-right
