from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.support import Rig


@pytest.fixture
def rig() -> Iterator[Rig]:
    """An engine with default settings on a timer that is turned by hand."""
    with Rig() as rig:
        yield rig
