"""A short directory for sockets, and contexts with labels of their own."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.backend import Backend
from tests.support.redis_server import RedisServer
from wheel_lock import Lock, LockContext

_numbers = itertools.count()


def use(lock: Lock) -> None:
    with lock:
        pass


@pytest.fixture
def label() -> str:
    """A label that no other context of this process has: metrics are those of all contexts."""
    return f"label-{next(_numbers)}"


@pytest.fixture
def labelled(real: Backend, label: str) -> LockContext:
    """A context with that label, on a timer of its own."""
    return real.context(label=label, timer=real.timer())


@pytest.fixture(scope="module")
def masters() -> Iterator[list[RedisServer]]:
    """Three masters that do not know of each other."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket, whatever TMPDIR is."""
    path = Path(tempfile.mkdtemp(prefix="wl-", dir="/tmp"))
    yield path
    shutil.rmtree(path)
