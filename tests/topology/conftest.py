"""Servers that the tests of one file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.topology.masters import Masters
from tests.topology.moving import heal, patient
from tests.topology.nodes import Nodes
from wheel_lock import LockContext


@pytest.fixture(scope="module")
def running() -> Iterator[Masters]:
    with Masters() as masters:
        yield masters


@pytest.fixture
def masters(running: Masters) -> Masters:
    """All of them well, and empty."""
    running.heal()
    return running


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Three masters with a replica each, which do not give each other up while a test runs."""
    with Nodes(replicas=1) as nodes:
        yield patient(nodes)


@pytest.fixture
def nodes(cluster: Nodes) -> Iterator[Nodes]:
    """The file's cluster, whole and empty; a master may have changed places with its replica."""
    yield cluster
    heal(cluster)


@pytest.fixture
def context(nodes: Nodes) -> Iterator[LockContext]:
    with LockContext(nodes.client(), close_timeout=0.5) as context:
        yield context
