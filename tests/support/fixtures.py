"""Fixtures that are a block and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest

Scope = Literal["session", "module", "function"]


def fixture_of(make: Callable[[], AbstractContextManager[Any]], scope: Scope = "function") -> Any:
    """Return a fixture: what a ``with`` of what is made gives."""

    @pytest.fixture(scope=scope)
    def fixture() -> Iterator[Any]:
        with make() as made:
            yield made

    return fixture
