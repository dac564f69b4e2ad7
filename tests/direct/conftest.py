"""Fixtures: the path opens after the first acquire, and stays open after another thread has come in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.direct.opened import opened
from tests.support.backend import Backend
from wheel_lock import LockContext
from wheel_lock.engine.direct import connection, path

collect_ignore_glob = [] if connection._SYSTEM_HAS_IT else ["test_*.py"]


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_WORTH_IT", 1)
    monkeypatch.setattr(path, "_REST", 0)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held on the path stays there until something else is submitted."""
    monkeypatch.setattr(path, "LOOK_S", 3600.0)


@pytest.fixture
def context(real: Backend) -> Iterator[LockContext]:
    """A context on a timer of its own, whose path is open."""
    context = real.context(timer=real.timer(), response_timeout=20.0)
    opened(context)
    yield context
    context.close()
