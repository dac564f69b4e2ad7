"""What tests of faults may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.support import Pulse


@pytest.fixture
def pulse() -> Iterator[Pulse]:
    """Knows when the test's own process was kept from running."""
    with Pulse() as pulse:
        yield pulse
