"""The examples in the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import wheel_lock.wheel


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(wheel_lock.wheel.__path__)])
def test_the_examples_of_a_module_hold(module: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(f"wheel_lock.wheel.{module}"), optionflags=doctest.ELLIPSIS)
    assert not failed
