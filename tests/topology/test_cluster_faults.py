"""What goes wrong with several servers: failovers, slots that move under load, shards that die or hang.

Everything that the fault table says of topologies, and what clusters add to it: seeds that are not there, nodes that say
odd things, keys that must stay together.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from redis.credentials import CredentialProvider

from tests.faults.support import FencedRegister
from tests.support.background import Background
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.topology.cluster_nodes import LONG_S, MASTERS, Nodes
from tests.topology.moving_slots import granted, home, hung, is_renewed, names_at, names_in
from tests.topology.watched_master import Watched
from wheel_lock import HashedWheelTimer, LockContext, LockLost, LossReason, LostEvent
from wheel_lock.engine.topology.cluster import ClusterRouter
from wheel_lock.net.cluster import ClusterConnector
from wheel_lock.protocol.keys import SLOTS, hash_slot

pytestmark = pytest.mark.slow

NODES = "cluster_without_replicas"

AnyLock = Any  # the kinds have no common type that says acquire() and fence


# -- 36, 37: a master is replaced ------------------------------------------------------------------------------------


def test_the_fence_refuses_a_holder_whose_grant_the_new_master_had_not_seen() -> None:
    register, told = FencedRegister(), list[LostEvent]()
    with Watched() as watched, LockContext(watched.client()) as one, LockContext(watched.client()) as two:
        late = one.lock("report", timeout=30.0, fencing=True, on_lost=told.append)
        watched.replica.client().replicaof("NO", "ONE")  # what is granted from now on does not come to it
        assert late.acquire()
        assert register.write(late.fence)
        old = watched.master
        with hung(old):
            watched.wait_for_another(old)
            with two.lock("report", timeout=10.0, fencing=True) as later:
                assert later.fence is not None
                assert later.fence > (late.fence or 0)
                assert register.write(later.fence)
                assert not register.write(late.fence)
                eventually(lambda: told)  # and the first one hears of it before its time is up
                assert told[0].reason in (LossReason.KEY_GONE, LossReason.TAKEN)


def test_a_master_that_says_readonly_proves_nothing_and_the_new_one_is_found() -> None:
    told: list[LostEvent] = []
    with Watched() as watched, LockContext(watched.client()) as context:
        names = [f"n:{n}" for n in range(50)]
        locks = granted(context.acquire_many(names, timeout=10.0, renew_every=0.2, on_lost=told.append))
        master = watched.master
        eventually(lambda: watched.replica.admin.dbsize() == 50)
        master.client().execute_command("REPLICAOF", "127.0.0.1", 1)  # of nobody, behind the Sentinels' backs
        eventually(lambda: context.stats().unknown > 0)
        time.sleep(0.5)
        assert told == []
        master.client().execute_command("REPLICAOF", "NO", "ONE")
        is_renewed(*locks)
        assert told == []
        assert context.stats().held == 50


# -- 38: slots move --------------------------------------------------------------------------------------------------


class Mover:
    """Moves slots from master to master, one after the other, until it is stopped. Use it in a ``with``."""

    def __init__(self, nodes: Nodes, slots: list[int]) -> None:
        self._nodes = nodes
        self._slots = slots
        self._stop = threading.Event()
        self.moves = 0

    def __enter__(self) -> Mover:
        self._working = Background(self._work)
        return self

    def _work(self) -> None:
        places = {slot: next(n for n in range(MASTERS) if slot < (n + 1) * SLOTS // MASTERS) for slot in self._slots}
        homes = dict(places)
        for slot in itertools.cycle(self._slots):
            if self._stop.is_set():
                break
            self._move(slot, places[slot], (places[slot] + 1) % MASTERS)
            places[slot] = (places[slot] + 1) % MASTERS
        for slot, place in places.items():
            if place != homes[slot]:
                self._move(slot, place, homes[slot])

    def _move(self, slot: int, source: int, target: int) -> None:
        old, new = self._nodes.masters[source], self._nodes.masters[target]
        self._nodes.begin_move(slot, old, new)
        time.sleep(0.02)  # what is made now is made on the other side: the slot is half here and half there
        self._nodes.move_keys(slot, old, new)
        self._nodes.end_move(slot, new)
        self.moves += 1

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._working.result()


def test_locks_that_are_held_while_slots_move_stay_held(nodes: Nodes, context: LockContext) -> None:
    told: list[LostEvent] = []
    terms: dict[str, Any] = {"timeout": 6.0, "renew_every": 0.5, "on_lost": told.append}
    names = [f"held:{n}" for n in range(600)]
    locks = context.acquire_many(names, **terms)
    with ExitStack() as stack, Mover(nodes, [hash_slot(name.encode()) for name in names[:40]]) as mover:
        others: list[AnyLock] = []
        for n in range(10):
            others.append(stack.enter_context(context.reentrant_lock(f"r{n}", **terms)))
            others.append(stack.enter_context(context.rw_lock(f"w{n}", **terms).read()))
            others.append(stack.enter_context(context.fair_lock(f"f{n}", **terms)))
            others.append(stack.enter_context(context.semaphore(f"s{n}", 3, **terms)))
        for _ in range(2):
            is_renewed(*granted(locks), *others)
        eventually(lambda: mover.moves >= 40, LONG_S)
    assert told == []
    context.release_many(locks.values())
    assert nodes.client().exists(names[0]) == 0


def test_a_lock_whose_keys_are_torn_apart_is_waited_for(nodes: Nodes, context: LockContext) -> None:
    slot = 800
    source, target = nodes.masters[:2]
    [name] = names_in(slot, 1)
    with context.lock(name, fencing=True) as lock:
        first = lock.fence
    assert first is not None
    with LockContext(nodes.client()) as other:
        held = other.lock(name, timeout=10.0, fencing=True, thread_local=False)
        assert held.acquire()
        nodes.begin_move(slot, source, target)
        source.client().execute_command("MIGRATE", "127.0.0.1", target.port, name, 0, 5000)  # without its fence
        assert held.extend(1.0)
        held.release()
        acquiring = Background(
            context.lock(name, fencing=True, thread_local=False).acquire
        )  # TRYAGAIN, as long as that is so
        time.sleep(0.3)
        nodes.move_keys(slot, source, target)
        nodes.end_move(slot, target)
        assert acquiring.result()
    fence: Any = target.client().get(next(iter(target.client().scan_iter(f"wheel_lock:fence:*{name}"))))
    assert int(fence) > first
    nodes.move(slot, target, source)


@contextmanager
def refusing(nodes: Nodes, number: int) -> Iterator[None]:
    """One of the masters says CLUSTERDOWN, because it knows of no owner of one slot."""
    server, slot = nodes.masters[number], number * SLOTS // MASTERS + 1
    client = server.client()
    client.config_set("cluster-require-full-coverage", "yes")
    client.execute_command("CLUSTER", "DELSLOTS", slot)
    try:
        eventually(lambda: nodes.info(server)["cluster_state"] == "fail", LONG_S)
        yield
    finally:
        client.execute_command("CLUSTER", "ADDSLOTS", slot)
        client.config_set("cluster-require-full-coverage", "no")


def test_who_reads_on_unconfirmed_when_the_thread_dies_is_told_and_does_not_wait_for_ever(nodes: Nodes) -> None:
    told: list[LostEvent] = []
    name = names_at(0, 1)[0]
    timer = HashedWheelTimer()

    def die() -> None:
        raise SystemExit

    def is_on_the_wheel_alone() -> bool:
        return swap.tick >= 0 and not swap.attempts and not any(node.busy for node in engine.router.nodes)

    with LockContext(nodes.client(), timer=timer, close_timeout=0.5) as context:
        engine = context._engine
        lock = context.rw_lock(name, timeout=LONG_S, on_lost=told.append)
        writer, reader = lock.write(), lock.read()
        assert writer.acquire()
        assert reader.acquire()
        with refusing(nodes, 0):
            writer._let_go(None)  # as release() does for who is interrupted
            (swap,) = eventually(lambda: list[Any](engine.leases.swaps.values()))
            eventually(is_on_the_wheel_alone)  # it is sent again after a pause
            timer.post(die)
            eventually(lambda: timer.deaths)
            with pytest.raises(LockLost):
                reader.release()
            assert engine.leases.swaps == {}
            eventually(lambda: told)
        assert len(told) == 1
    timer.stop()


def test_locks_on_their_way_to_a_master_that_owns_nothing_yet_stay_held(nodes: Nodes) -> None:
    told: list[LostEvent] = []
    slot, source = 300, nodes.masters[0]
    names = names_in(slot, 10)
    with RedisServer("cluster-enabled yes", "cluster-node-timeout 1000", "cluster-require-full-coverage no") as fresh:
        fresh.client().execute_command("CLUSTER", "MEET", "127.0.0.1", source.port)
        for server in (fresh, *nodes.masters):
            eventually(lambda: nodes.info(server)["cluster_known_nodes"] == MASTERS + 1, LONG_S)  # noqa: B023
        eventually(lambda: nodes.info(fresh)["cluster_state"] == "ok", LONG_S)
        try:
            with LockContext(nodes.client()) as context:
                locks = granted(context.acquire_many(names, timeout=10.0, renew_every=0.3, on_lost=told.append))
                nodes.begin_move(slot, source, fresh)
                source.client().execute_command("MIGRATE", "127.0.0.1", fresh.port, "", 0, 5000, "KEYS", *names[:5])
                renewed = Background(lambda: is_renewed(*locks))
                while not renewed.done:
                    with context.reentrant_lock(names_in(slot, 11)[-1], timeout=5.0) as lock:
                        assert lock.is_held
                renewed.result()
                assert told == []
                nodes.move_keys(slot, source, fresh)
                nodes.end_move(slot, fresh)
                is_renewed(*locks)
                assert told == []
                assert all(lock.is_held for lock in locks)
        finally:
            forgotten = nodes.id_of(fresh)
            fresh.kill()  # alive, it would go on to claim the slot, until all have forgotten it
            nodes.end_move(slot, source)  # with whatever is in it: nobody needs that any more
            for server in nodes.masters:
                server.client().execute_command("CLUSTER", "FORGET", forgotten)


# -- 39: a shard dies or hangs ---------------------------------------------------------------------------------------


def test_a_shard_that_dies_takes_its_own_locks_only(nodes: Nodes, context: LockContext) -> None:
    told: list[LostEvent] = []
    names = [f"order:{n}" for n in range(300)]
    locks = context.acquire_many(names, timeout=2.5, renew_every=0.4, on_lost=told.append)
    theirs = {name for name in locks if home(str(name)) == 2}
    nodes.masters[2].kill()
    eventually(lambda: len(told) == len(theirs))
    is_renewed(*[lock for name, lock in locks.items() if lock is not None and name not in theirs])
    assert {event.name for event in told} == theirs
    assert {event.reason for event in told} == {LossReason.NOT_CONFIRMED}
    assert all(lock is not None and lock.is_held == (name not in theirs) for name, lock in locks.items())
    with context.lock(names_at(0, 1, "new")[0]) as lock:
        assert lock.is_held


def test_a_slot_that_has_left_a_node_does_not_hang_with_it(nodes: Nodes) -> None:
    told: list[LostEvent] = []
    slot = 900
    source, target = nodes.masters[:2]
    with LockContext(nodes.client()) as context:
        names = names_in(slot, 5)
        locks = granted(context.acquire_many(names, timeout=6.0, renew_every=0.4, on_lost=told.append))
        nodes.move(slot, source, target)
        with hung(source):
            is_renewed(*locks)
            assert told == []
            context.release_many(locks)
    nodes.move(slot, target, source)


# -- who is asked first ----------------------------------------------------------------------------------------------


def first_asked(nodes: Nodes, context: LockContext) -> int:
    """Which master a context turns to as long as it has not been told who owns what."""
    connector = context._engine.connector
    assert isinstance(connector, ClusterConnector)
    return next(n for n, server in enumerate(nodes.masters) if str(server.port) == connector.servers[0][1])


def test_a_seed_that_hangs_before_the_map_is_known_keeps_nobody_from_the_others(nodes: Nodes) -> None:
    with LockContext(nodes.client(), connect_timeout=0.5) as context:
        number = first_asked(nodes, context)
        with hung(nodes.masters[number]):
            began = time.monotonic()
            with context.lock(names_at((number + 1) % MASTERS, 1)[0]) as lock:
                assert lock.is_held
            assert time.monotonic() - began < 4.0


@pytest.mark.parametrize("failure", [RuntimeError("the vault does not answer"), asyncio.CancelledError()], ids=repr)
def test_credentials_that_cannot_be_had_for_a_moment_are_asked_for_again(nodes: Nodes, failure: BaseException) -> None:
    class Provider(CredentialProvider):
        away = False
        refused = 0

        def get_credentials(self) -> tuple[str, str]:
            if self.away:
                self.refused += 1
                raise failure
            return "app", "secret"

    for server in nodes.masters:
        server.client().execute_command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    provider, told, slot = Provider(), list[LostEvent](), 400
    try:
        with LockContext(nodes.client(credential_provider=provider)) as context:
            lock = context.lock(names_in(slot, 1)[0], timeout=30.0, renew_every=0.4, on_lost=told.append)
            assert lock.acquire()
            cluster = context._engine.router
            assert isinstance(cluster, ClusterRouter)
            eventually(lambda: cluster.known and not cluster._asking)
            provider.away = True
            nodes.move(slot, *nodes.masters[:2])
            # Its next renewal finds it gone to where nobody can connect to.
            eventually(lambda: context.stats().overdue and provider.refused > 3)
            provider.away = False
            is_renewed(lock)
            assert told == []
            eventually(lambda: not cluster._asking)
            nodes.move(slot, *nodes.masters[1::-1])
    finally:
        for server in nodes.masters:
            server.client().acl_deluser("app")


# -- what else a process and a server do -----------------------------------------------------------------------------


def test_names_with_braces_have_their_companions_beside_them_on_every_node(nodes: Nodes, context: LockContext) -> None:
    shapes = ("{%d}", "a}%d{", "}%d", "{}%d", "{%d", "x{%d}y{z}", "{}{%d}", "%d}", "{{%d}}", "%d{}{a}", "%d")
    names = [shape % n for shape in shapes for n in range(4)]
    assert {home(name) for name in names} == set(range(MASTERS))
    for name in names:
        with context.lock(name, fencing=True) as lock:
            assert lock.fence
        with context.fair_lock(name, fencing=True) as lock:
            waiting = Background(lambda: context.fair_lock(name, thread_local=False).acquire(blocking_timeout=5.0))  # noqa: B023
            eventually(lambda: context.stats().waiting == 1)
        assert waiting.result()
        nodes.client().delete(name)
        with context.semaphore(name, 2) as permit:
            permit.set_permits(1)
            permit.set_permits(None)
        with context.reentrant_lock(name, fencing=True) as lock, context.reentrant_lock(name):
            assert lock.fence
            assert lock.count == 2
        table = context.rw_lock(name)
        with table.write() as writer:
            assert writer.downgrade().is_held
        table.read().release()


def listens(server: RedisServer) -> bool:
    """Whether anybody has subscribed to anything at a server, of all nodes or of its own slots."""
    entries: list[dict[str, str]] = server.client().client_list()
    return any(int(entry.get(what, 0)) for entry in entries for what in ("sub", "ssub"))


@pytest.mark.parametrize("fault", ["dies", "hangs"])
def test_a_waiter_is_woken_although_a_node_that_is_listened_to(nodes: Nodes, fault: str) -> None:
    with (
        LockContext(nodes.client(), fallback_interval=60.0, close_timeout=0.5) as holding,
        LockContext(nodes.client(), fallback_interval=60.0, close_timeout=0.5) as other,
    ):
        held = [holding.lock(names_at(n, 1)[0], timeout=60.0, thread_local=False) for n in range(MASTERS)]
        assert all(lock.acquire() for lock in held)
        waiting = [
            Background(other.lock(lock.name, timeout=60.0, thread_local=False, blocking_timeout=30.0).acquire)
            for lock in held
        ]
        eventually(lambda: other.stats().waiting == MASTERS)
        ears = eventually(lambda: [server for server in nodes.masters if listens(server)])[0]
        time.sleep(0.5)  # past the first looks
        if fault == "dies":
            ears.kill()
        else:
            ears.pause()
        for server, lock, waiter in zip(nodes.masters, held, waiting, strict=True):
            if server is not ears:
                lock.release()
                # Where one connection listens for all nodes: a PING every two seconds, and two to connect elsewhere.
                assert waiter.result(15.0)
        if fault == "hangs":
            ears.resume()  # or closing would take its time
