"""The commands about locks on a cluster, from the URL of one node."""

from __future__ import annotations

from contextlib import closing

import pytest
import redis

from tests.cli.lock_commands import CommandLine
from tests.support.background import Background
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import Nodes
from tests.topology.moving_slots import home
from wheel_lock import LockContext
from wheel_lock.cli.locks.looking import force_release, look_at
from wheel_lock.cli.target import find
from wheel_lock.protocol.keys import hash_slot

NAMES = [f"order:{number}" for number in range(30)]


@pytest.mark.slow
def test_all_masters_are_asked_and_waiters_are_woken(capsys: pytest.CaptureFixture[str]) -> None:
    with Nodes() as nodes:
        url = f"redis://127.0.0.1:{nodes.servers[1].port}/0"
        run = CommandLine(url, capsys)
        client = redis.RedisCluster.from_url(url)
        with client, LockContext(client, fallback_interval=600.0) as context:
            held = context.acquire_many(NAMES, timeout=600.0)
            assert None not in held.values()
            permit = context.semaphore("licence", 1, timeout=600.0)
            assert permit.acquire()
            said = run("ls")
            assert (said.status, said.err) == (0, "")
            assert sorted(row[0] for row in said.rows) == sorted([*NAMES, "licence"])
            assert all(server.client().dbsize() > 0 for server in nodes.servers), "the names are spread"
            for name in (NAMES[0], NAMES[1], NAMES[2], "licence"):
                found = run("inspect", name, "--json")
                assert (found.status, found.json["held"]) == (0, True)
            assert run("watch", "order:1*", "--seconds", "0.1").out.count("\theld\t") == 11
            for name, waiter in (
                (NAMES[0], context.lock(NAMES[0], timeout=600.0)),
                ("licence", context.semaphore("licence", 1, timeout=600.0)),
            ):
                waiting = Background(waiter.acquire)
                eventually(lambda: listeners(run, name) > 0 or waiting.done)  # noqa: B023
                said = run("release", name, "--force", "--yes")
                assert (said.status, said.err) == (0, "")
                assert waiting.result(60.0)
            assert run("inspect", "absent").status == 3
            with closing(find(url)) as cluster:
                for key, ended in ((b"order:3", False), (b"order:4", True)):
                    state = look_at(cluster, key)
                    slot, number = hash_slot(key), home(key.decode())
                    source, goal = nodes.masters[number], nodes.masters[number - 1]
                    nodes.begin_move(slot, source, goal)
                    nodes.move_keys(slot, source, goal)
                    if ended:
                        nodes.end_move(slot, goal)
                    assert force_release(cluster, key, state) == 1
                    assert force_release(cluster, key, state) == 0


def listeners(run: CommandLine, name: str) -> int:
    found = run("inspect", name, "--json").json["listeners"]
    return int(found or 0)
