"""Servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, Nodes
from tests.topology.moving_slots import at_home, heal, patient
from wheel_lock import LockContext


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    """Three masters with a replica each, which do not give each other up while a test runs."""
    with Nodes(replicas=1) as nodes:
        yield patient(nodes)


@pytest.fixture(scope="session")
def cluster_without_replicas() -> Iterator[Nodes]:
    """Three masters, which take one that is silent for a second to be down."""
    with Nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """A cluster, whole and empty: `cluster`, or what the module's NODES names."""
    nodes: Nodes = request.getfixturevalue(getattr(request.module, "NODES", "cluster"))
    eventually(lambda: at_home(nodes), LONG_S)  # messages that were on their way may have undone moves of the last test
    yield nodes
    heal(nodes)


@pytest.fixture
def context(nodes: Nodes) -> Iterator[LockContext]:
    with LockContext(nodes.client(), close_timeout=0.5) as context:  # for a node that is dead by then
        yield context
