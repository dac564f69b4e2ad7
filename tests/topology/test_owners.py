"""Holders of locks, and their release by force, on a cluster and behind Sentinels."""

from __future__ import annotations

import pytest

from tests.support.lock_types import KINDS, make
from tests.topology.cluster_nodes import LONG_S, Nodes
from wheel_lock import LockContext, LockNotAcquired
from wheel_lock.locks import operations

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"
OWNER = "billing@host-7"


@pytest.mark.parametrize("kind", KINDS)
def test_locks_of_each_kind_are_found_and_released_on_their_nodes(
    nodes: Nodes, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "_LOOK_S", LONG_S)
    with LockContext(nodes.client(), owner=OWNER, readable_owner=True) as context, LockContext(nodes.client()) as other:
        for number in range(1 if kind == "multi" else 3):
            name = f"{{owners}}:{kind}:{number}" if kind == "multi" else f"owners:{kind}:{number}"
            lock = make(context, kind, name, timeout=600.0)
            assert lock.acquire()
            rival = make(other, "write" if kind == "read" else kind, name, blocking=False)
            with pytest.raises(LockNotAcquired, match=OWNER):
                rival.__enter__()
            [holder] = other.force_release(name)
            assert holder.owner == OWNER
            assert not nodes.client().exists(name)
            assert len(context.force_release(name)) == 0


def _names(entries: list[dict[str, str]]) -> set[str]:
    return {entry["name"] for entry in entries}


def test_connections_to_all_nodes_have_the_owner_in_their_names(nodes: Nodes) -> None:
    with LockContext(nodes.client(), owner=OWNER) as context:
        locks = context.acquire_many([f"owners:{number}" for number in range(100)])
        assert all(locks.values())
        for server in nodes.masters:
            assert f"wheel_lock:{OWNER}" in _names(server.client().client_list())
