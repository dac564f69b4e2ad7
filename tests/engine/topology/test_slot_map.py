"""The map of a cluster's slots: what is not sent before it is there, and which nodes stay known."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import redis.asyncio

from tests.engine.rig import BUG, FINE, OK, Rig, ScriptedConnector, array, error, names
from wheel_lock.engine.future import Future
from wheel_lock.engine.requests import bulk_operations
from wheel_lock.engine.requests.bulk_operations import ReleaseMany
from wheel_lock.engine.topology import cluster
from wheel_lock.engine.topology.cluster import ClusterPubSub, ClusterRouter
from wheel_lock.errors import LossReason
from wheel_lock.lock_types.exclusive import CALLER_TOKEN
from wheel_lock.net.capabilities import SHARDED
from wheel_lock.net.cluster import ClusterConnector, SlotRange
from wheel_lock.net.connector import Server
from wheel_lock.protocol.keys import SLOTS, hash_slot
from wheel_lock.runtime.ends import End

FIRST, SECOND = ("first", "1"), ("second", "2")
GONE_S = 2.0
NOT_LOCAL = "ERR Script attempted to access a non local key in a cluster node"


class Nodes(ClusterConnector):
    """The nodes of a cluster; the first one is the scripted server of a rig.

    Attributes:
        owners: The map that they say: who owns each half of the slots. Empty if none answers.
        others: What connects to the other nodes.
    """

    def __init__(self, first: ScriptedConnector) -> None:
        super().__init__(redis.asyncio.RedisCluster(host=FIRST[0], port=int(FIRST[1])))
        self._first = first
        self.owners: tuple[Server, ...] = ()
        self.others: dict[Server, ScriptedConnector] = {}

    def to(self, server: Server) -> Any:
        return self._first if server == FIRST else self.others.setdefault(server, ScriptedConnector(self._first._clock))

    def listener(self) -> Any:
        return self._first.listener()

    def ask(self, timeout_s: float) -> list[SlotRange]:
        half = SLOTS // 2
        return [SlotRange(number * half, (number + 1) * half - 1, owner) for number, owner in enumerate(self.owners)]


class ClusterRig(Rig):
    """A rig whose server is the first node of a cluster."""

    def _connects(self) -> Nodes:
        self.connector.in_cluster, self.connector.address = True, FIRST
        self.nodes = Nodes(self.connector)
        return self.nodes

    @property
    def router(self) -> ClusterRouter:
        assert isinstance(self.engine.router, ClusterRouter)
        return self.engine.router

    def close(self) -> None:
        super().close()
        for connector in self.nodes.others.values():
            connector.close()

    def have_map_read(self, *owners: Server) -> None:
        self.nodes.owners = owners
        self.post(self.router.refresh)
        self.go_on(0.5)


RIG = ClusterRig


def test_many_are_sent_without_a_map_when_none_comes(rig: ClusterRig) -> None:
    rig.acquire_many(names(3))
    rig.go_on(0.9)
    assert rig.connector.servers == []
    rig.go_on(0.2)
    assert rig.whats() == ["acquire_many"]


def test_nodes_without_slots_are_forgotten_when_they_have_been_idle_and_no_others(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_GONE_S", GONE_S)
    rig.have_map_read(FIRST, SECOND)
    both = list(rig.router.shards)
    assert len(both) == 2
    for _ in range(2):  # with slots
        rig.go_on(GONE_S + 0.1)
        rig.have_map_read(FIRST, SECOND)
        assert rig.router.shards == both
    rig.have_map_read(FIRST, FIRST)
    assert rig.router.shards == both
    rig.go_on(GONE_S + 0.1)
    rig.have_map_read(FIRST, FIRST)
    assert rig.router.shards == both[:1]


def test_leases_that_a_call_for_several_has_not_found_are_renewed_one_by_one(rig: ClusterRig) -> None:
    rig.have_map_read(FIRST, FIRST)
    leases = rig.hold_many(names(3), 3.0)
    rig.go_on(1.1)
    rig.reply("renew", array(*[item for number in (1, 2, 3) for item in (number, NOT_LOCAL)]))
    calls = rig.server.take()
    assert [command.what for command in calls] == ["renew"] * 3
    rig.say(*[FINE] * 3)
    assert [lease.renewals for lease in leases] == [1] * 3


def test_what_a_clean_up_of_several_has_not_found_is_released_one_by_one(rig: ClusterRig) -> None:
    rig.have_map_read(FIRST, FIRST)
    leases, table = rig.hold_many(names(3)), rig.engine.leases
    rig.post(lambda: (table.mark_lost(leases, LossReason.ABANDONED), table.clean_up(leases)))
    rig.reply("release_many", array(*[item for number in (1, 2, 3) for item in (number, NOT_LOCAL)]))
    assert rig.whats() == ["release_many"] * 3


@pytest.mark.parametrize("silent", [False, True])
def test_a_lease_in_a_call_is_renewed_where_it_lives_by_now(rig: ClusterRig, silent: bool) -> None:
    rig.have_map_read(FIRST, FIRST)
    lease = rig.hold("a", 3.0)
    rig.launch.slow = silent
    rig.go_on(1.6)
    if silent:
        rig.launch.slow = False
        del rig.launch.held[0]  # the next connection, which would end the call
        rig.launch.go_on()
        rig.have_map_read(FIRST, SECOND)
    else:
        rig.reply("renew", error(f"MOVED {hash_slot(b'a')} second:2"))
    [second] = rig.nodes.others[SECOND].servers
    assert "renew" in [command.what for command in second.agree()]
    rig.turn()
    assert lease.renewals == 1


def test_a_grant_that_comes_too_late_is_released_where_it_lives_and_not_renewed(rig: ClusterRig) -> None:
    rig.have_map_read(FIRST, FIRST)
    attempt = rig.acquire("a", kind=CALLER_TOKEN, token="host-1")
    rig.post(attempt.request.give_up)
    rig.reply("SET", OK)
    rig.reply("release_many", error(f"MOVED {hash_slot(b'a')} second:2"))
    rig.go_on(2.0)
    [second] = rig.nodes.others[SECOND].servers
    assert [command.what for command in second.take()] == ["release_many"]


def test_what_an_interrupted_release_has_begun_without_a_map_is_released_once(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_operations, "LEASES_A_TURN", 1)
    leases = [rig.hold(name) for name in names(3)]
    release = ReleaseMany(rig.engine.leases, [[lease] for lease in leases], Future(lambda: None), lambda: None)
    for after in (None, KeyboardInterrupt(), None):
        release.begin_part(after)
    rig.have_map_read(FIRST, FIRST)
    assert [name for command in rig.server.take() for name in command.names] == names(3)


def test_the_connections_to_a_node_end_with_its_slots(rig: ClusterRig) -> None:
    rig.connector.flagged = SHARDED
    rig.have_map_read(FIRST, FIRST)
    lease = rig.hold("a")
    wakeups = rig.router.wakeups
    assert isinstance(wakeups, ClusterPubSub)
    rig.post(lambda: wakeups.listen(b"channel", Mock(above=None)))
    assert len(wakeups._shards) == 1
    (end,) = rig.connector.listeners.servers
    rig.post(lambda: rig.engine.leases.mark_lost([lease], LossReason.KEY_GONE))
    rig.have_map_read(SECOND, SECOND)
    assert wakeups._shards == {}
    for server in (end, rig.server):
        server.take()
        assert server.hung_up


def test_a_redirection_is_followed_at_once_and_one_to_the_node_itself_after_a_pause(rig: ClusterRig) -> None:
    rig.have_map_read(FIRST, FIRST)
    rig.nodes.owners = ()
    attempt = rig.acquire("a")
    rig.reply("SET", error("MOVED 15495 second:2"))
    second = rig.nodes.others[SECOND].servers[-1]
    second.one("SET")
    second.say(error("MOVED 15495 second:2"))
    rig.turn()
    assert second.take() == []
    rig.go_on(0.1)
    second.one("SET")
    second.say(error("ASK 15495 first:1"))
    rig.turn()
    assert rig.whats() == ["ASKING", "SET"]
    rig.say(OK, OK)
    assert attempt.future.result()


def test_after_an_end_no_question_is_under_way_and_no_connection_for_wake_ups_is_left(rig: ClusterRig) -> None:
    rig.connector.flagged = SHARDED
    rig.have_map_read(FIRST, FIRST)
    rig.hold("a")
    wakeups = rig.router.wakeups
    assert isinstance(wakeups, ClusterPubSub)
    rig.post(lambda: wakeups.listen(b"channel", Mock(above=None)))
    rig.post(rig.router.refresh)
    rig.post(lambda: rig.router.end(End.FAILED, BUG))
    assert (wakeups._shards, rig.router._look) == ({}, None)


def test_the_keeper_is_told_which_names_the_masters_have(rig: ClusterRig) -> None:
    rig.engine.leases.keeping = keeping = Mock()
    rig.have_map_read(FIRST, SECOND)
    [known] = keeping.use.call_args.args
    assert list(known.values()) == [rig.nodes.names_of(FIRST), rig.nodes.names_of(SECOND)]
