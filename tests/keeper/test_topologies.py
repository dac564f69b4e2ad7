"""Processes that are killed which held locks at several servers, or at one that has another master meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.keeper.holder import NAME, TIMEOUT_S
from tests.keeper.rig import AT_ONCE_S, Hold, HostKeeper, is_kept
from tests.quorum.masters import Masters
from tests.support.fixtures import fixture_of
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import Nodes
from tests.topology.moving_slots import heal, keys_in, names_at, names_in, on_its_way, patient
from tests.topology.watched_master import SERVICE, Watched
from wheel_lock import LockContext

pytestmark = pytest.mark.slow


# -- a cluster -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield patient(nodes)


@pytest.fixture
def nodes(running: Nodes) -> Iterator[Nodes]:
    yield running
    heal(running)


def url_of(nodes: Nodes) -> str:
    return f"redis+cluster://127.0.0.1:{nodes.masters[0].port}"


def left(nodes: Nodes) -> list[bytes]:
    """The locks that are left at all nodes."""
    keys = [key for server in nodes.masters for key in server.admin.scan_iter(count=5000)]
    return [key for key in keys if not key.startswith(b"wheel_lock:")]


def test_locks_at_all_masters_of_a_cluster_are_freed(nodes: Nodes, hold: Hold) -> None:
    names = [name for number in range(3) for name in names_at(number, 3)]
    holder = hold(f"names {' '.join(names)}", url=url_of(nodes)).ready()
    assert len(left(nodes)) == 9
    holder.kill()
    eventually(lambda: not left(nodes), AT_ONCE_S)
    holder = hold("working", url=url_of(nodes)).ready()
    holder.kill()
    eventually(lambda: not left(nodes), AT_ONCE_S)


@pytest.mark.parametrize("moved", ["half", "keys", "all"])
def test_what_has_moved_to_a_node_that_the_process_has_not_heard_of_is_freed(
    nodes: Nodes, hold: Hold, moved: str
) -> None:
    slot = 100
    holder = hold(f"kinds {names_in(slot, 1)[0]}", url=url_of(nodes)).ready()
    held = len(left(nodes))
    with on_its_way(nodes, slot) as (source, target):
        if moved == "half":
            some = source.admin.execute_command("CLUSTER", "GETKEYSINSLOT", slot, held // 2)
            source.admin.execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *some)
        else:
            nodes.move_keys(slot, source, target)
            assert keys_in(slot, target) >= held
        if moved == "all":
            nodes.end_move(slot, target)
        holder.kill()
        # A call about several keys, as that of a fair lock, is executed nowhere while they are on their way.
        eventually(lambda: not [key for key in left(nodes) if moved == "all" or not key.endswith(b":fair")], AT_ONCE_S)
        nodes.move_keys(slot, source, target)
        nodes.end_move(slot, target)
        eventually(lambda: not left(nodes), AT_ONCE_S)


def test_a_waiter_at_another_node_than_the_first_is_woken(nodes: Nodes, hold: Hold) -> None:
    (name,) = names_at(2, 1)
    holder = hold(f"names {name}", url=url_of(nodes)).ready()
    with LockContext.from_url(url_of(nodes), fallback_interval=TIMEOUT_S) as context:
        waiting = context.lock(name, blocking_timeout=AT_ONCE_S)
        timer = context.timer.new_timeout(lambda timeout: os.kill(holder.pid, signal.SIGKILL), 0.5)
        assert waiting.acquire()
        assert timer.expired


def test_a_master_that_is_stopped_delays_no_other_one_and_is_asked_again(
    nodes: Nodes, hold: Hold, keeper: HostKeeper
) -> None:
    names = [name for number in range(3) for name in names_at(number, 3)]
    holder = hold(f"names {' '.join(names)}", where=keeper.path, url=url_of(nodes)).ready()
    stopped, *others = nodes.masters
    token = stopped.admin.get(names[0])
    assert isinstance(token, bytes)
    stopped.pause()
    try:
        holder.kill()
        assert "released 6 in" in (said := keeper.line())
        assert "a server that does not answer is asked again" in said
        assert not any(server.admin.exists(name) for at, server in enumerate(others, 1) for name in names_at(at, 3))
    finally:
        stopped.resume()
    eventually(lambda: not left(nodes), AT_ONCE_S)
    stopped.admin.set(names[0], token, px=60_000)  # a command of the process that arrives now
    eventually(lambda: not stopped.admin.exists(names[0]), AT_ONCE_S)


def test_a_living_process_keeps_what_moves(nodes: Nodes, hold: Hold) -> None:
    slot = 100
    (name,) = names_in(slot, 1)
    hold(f"names {name}", url=url_of(nodes)).ready()
    source, target = nodes.masters[:2]
    nodes.move(slot, source, target)
    assert is_kept(target.admin, name)


# -- Sentinels -------------------------------------------------------------------------------------------------------


watched = fixture_of(Watched)


def url_of_sentinels(watched: Watched) -> str:
    return f"redis+sentinel://{','.join(f'127.0.0.1:{each.port}' for each in watched.sentinels)}/{SERVICE}"


def connections(server: RedisServer) -> int:
    """How many of the connections to a server are for commands of a process with locks, or of its keeper."""
    return sum(each["name"].startswith("wheel_lock") and each["sub"] == "0" for each in server.admin.client_list())


@pytest.mark.parametrize("dies", [True, False], ids=["the old one dies", "the old one lives"])
def test_a_lock_is_freed_at_the_new_master(watched: Watched, hold: Hold, dies: bool) -> None:
    holder = hold("exclusive", url=url_of_sentinels(watched)).ready()
    eventually(watched.replicated)
    old = watched.master
    if dies:
        old.kill()
        watched.wait_for_another(old)
    else:
        watched.fail_over()
    new = watched.master
    eventually(lambda: connections(new) == 2, AT_ONCE_S)
    assert is_kept(new.admin)
    holder.kill()
    eventually(lambda: not new.admin.exists(NAME), AT_ONCE_S)


def test_a_lock_expires_by_itself_if_the_process_dies_without_having_met_the_new_master(
    watched: Watched, hold: Hold
) -> None:
    holder = hold("exclusive", url=url_of_sentinels(watched)).ready()
    eventually(watched.replicated)
    os.kill(holder.pid, signal.SIGSTOP)
    watched.fail_over()
    holder.kill()
    assert is_kept(watched.master.admin)


# -- a quorum --------------------------------------------------------------------------------------------------------


masters = fixture_of(Masters, "module")


def test_a_master_that_hangs_or_is_gone_keeps_no_vote_of_the_others(masters: Masters, hold: Hold) -> None:
    url = " ".join(server.url for server in masters.servers)
    holder = hold(f"names {NAME}", url=url).ready()
    eventually(lambda: masters.count(NAME) == 5)
    masters.servers[0].kill()
    masters.servers[1].pause()
    holder.kill()
    eventually(lambda: not any(server.admin.exists(NAME) for server in masters.servers[2:]), AT_ONCE_S)
    masters.servers[1].resume()
    eventually(lambda: masters.count(NAME) == 0, AT_ONCE_S)
