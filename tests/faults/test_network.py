"""The network fails: nothing arrives, something arrives late or twice, connections break, replies are lies."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis

from tests.faults.arena import (
    LONG_S,
    STRANGER,
    Arena,
    Onlooker,
    assert_stranger_untouched,
    believed_until,
    take_over,
)
from tests.faults.network import MeddlingProxy
from tests.faults.scene import LATE_S, FencedRegister, now
from tests.faults.wire import commands, of_kind
from tests.redis.support import Background, believes_no_longer_than_the_server
from tests.support.proxy import Direction
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockLost, LockServerError, LockTimeout, LockUnavailable, LossReason
from wheel_lock.protocol.keys import fence_key

pytestmark = pytest.mark.slow

_random = random.Random()


@pytest.fixture
def arena(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[Arena]:
    with Arena(redis_server) as arena:
        yield arena
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == []


@pytest.fixture
def network(arena: Arena, redis_server: RedisServer) -> MeddlingProxy:
    return arena.proxy(redis_server)


@pytest.fixture
def view(redis_server: RedisServer) -> redis.Redis:
    """A way to the server on which nothing fails."""
    return redis_server.client()


def await_sent(network: MeddlingProxy, what: str, times: int = 1, *, after: float = 0.0) -> None:
    """Return when such commands have come as far as the network, which may have swallowed them."""
    eventually(lambda: len(of_kind(what, commands(network, since=after))) >= times, LONG_S, f"{what} is sent")


def expiry(view: redis.Redis, name: str) -> tuple[float, float]:
    """When the key expires, between two bounds."""
    before = now()
    left_s = view.pttl(name) / 1000
    return before + left_s, now() + left_s


def await_reconnected(context: LockContext, before: int) -> None:
    eventually(lambda: context.stats().connects > before, LONG_S, "there is another connection")


# -- 21. Black hole: lost by V. ----------------------------------------------------------------------------------------


def test_a_black_hole_ends_a_lease_by_its_deadline(
    arena: Arena, network: MeddlingProxy, redis_server: RedisServer, view: redis.Redis
) -> None:
    """21. Black hole: lost by V."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=1.0, fencing=True)
    register = FencedRegister()
    assert register.write(held.lock.fence)

    with Onlooker(held, view):
        network.blackhole()
        other = arena.context(redis_server).lock("job", timeout=5.0, fencing=True, retry_every=0.01)
        assert other.acquire(blocking_timeout=LONG_S)
        assert not held.lock.is_held
        assert register.write(other.fence)
        network.heal()
        arena.assert_alive(context)
        with pytest.raises(LockLost):
            held.lock.release()

    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert not register.write(held.lock.fence)
    assert other.is_held
    assert other.owned()
    other.release()


def test_a_black_hole_tells_each_loss_no_later_than_its_deadline(arena: Arena, network: MeddlingProxy) -> None:
    """21. Black hole: lost by V."""
    context, clock = arena.stepped_context(network, connect_timeout=1.0)
    helds = []
    for timeout in (3.0, 5.0):
        helds.append(arena.hold(context, [f"{timeout:g} s, {number}" for number in range(40)], timeout))
        clock.advance(0.35)
    clock.advance(2.0)
    network.blackhole()
    deadlines = {name: clock.now() + lock.remaining() for held in helds for name, lock in held.locks.items()}

    clock.advance(min(deadlines.values()) - clock.now() - 0.05)
    for held in helds:
        held.assert_all_held()
    clock.advance(max(deadlines.values()) - clock.now())

    for held in helds:
        held.assert_lost(LossReason.NOT_CONFIRMED, late_s=0.0)
        assert {event.name: event.deadline for event in held.told()} == pytest.approx(
            {name: deadlines[name] for name in held.locks}
        )


def test_a_black_hole_for_half_a_timeout_loses_nothing(arena: Arena, network: MeddlingProxy, view: redis.Redis) -> None:
    """21. Black hole: lost by V, and so not lost where it ends before."""
    context = arena.context(network)
    held = arena.hold(context, ["a", "b", "c"], timeout=3.0, renew_every=0.3)
    with Onlooker(held, view):
        held.await_renewal()
        network.blackhole()
        time.sleep(1.5)
        network.heal()
        held.await_renewal()
        held.assert_all_held()


def test_nothing_is_sent_for_a_lock_whose_release_was_swallowed(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """21. Black hole around a release: once that has raised, no renewal and no release of the lease is tried again."""
    context = arena.context(network, response_timeout=1.0)
    held = arena.hold(context, ["kept", "released"], timeout=5.0, renew_every=0.2)
    token = held.tokens["released"]
    assert token is not None
    held.await_renewal()
    network.blackhole()
    with pytest.raises((LockTimeout, LockUnavailable)):
        held["released"].release()
    returned_at = time.monotonic()
    assert not held["released"].is_held
    network.heal()

    held.await_renewal("kept")
    held.await_renewal("kept")
    assert commands(network, since=returned_at, mentioning=token) == []
    assert held.told() == []


# -- 22. Reply dropped after execution: V unchanged, retry is idempotent; a retried SET NX recognises its own token. ---


def test_a_renewal_whose_reply_is_lost_moves_no_deadline_and_is_tried_again(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """22. Reply dropped after execution: V unchanged, retry is idempotent."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=4.0, renew_every=0.4)
    held.await_renewal()
    network.drop_replies()
    _, latest = believed_until(held.lock)
    _, expires = expiry(view, "job")
    eventually(lambda: expiry(view, "job")[0] > expires, LONG_S, "a renewal is executed")

    earliest, _ = believed_until(held.lock)
    assert earliest <= latest
    with Onlooker(held, view):
        network.heal()
        held.await_renewal()
        held.assert_all_held()
    assert view.get("job") == held.tokens["job"]
    assert 0 < view.pttl("job") <= 4000


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
def test_an_acquire_whose_reply_is_lost_recognises_its_own_token(
    arena: Arena, network: MeddlingProxy, view: redis.Redis, fencing: bool
) -> None:
    """22. Reply dropped after execution: a retried SET NX recognises its own token."""
    context = arena.context(network)
    arena.assert_alive(context)
    network.drop_replies()
    lock = context.lock("job", timeout=5.0, fencing=fencing, thread_local=False)
    acquiring = Background(lambda: lock.acquire(blocking=False))
    token = eventually(lambda: view.get("job"), LONG_S, "the acquire is executed")
    network.heal()

    assert acquiring.result()
    assert lock.is_held
    assert lock.token == token == view.get("job")
    assert believes_no_longer_than_the_server(lock, view)
    lock.release()


def test_a_bulk_acquire_whose_replies_are_lost_recognises_its_own_tokens(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """22. Reply dropped after execution: a retried SET NX recognises its own token, in bulk too."""
    names = [f"job {number}" for number in range(1200)]
    view.set("job 7", STRANGER)
    context = arena.context(network)
    arena.assert_alive(context)
    network.drop_replies()
    acquiring = Background(lambda: context.acquire_many(names, timeout=5.0))
    eventually(lambda: view.exists("job 1199"), LONG_S, "the acquire is executed")
    network.heal()

    locks = acquiring.result()
    assert [name for name, lock in locks.items() if lock is None] == ["job 7"]
    assert_stranger_untouched(view, "job 7")
    for name, lock in locks.items():
        if lock is not None:
            assert lock.is_held
            assert view.get(name) == lock.token
    context.release_many(locks.values())


@pytest.mark.parametrize("how", ["plain", "fenced", "bulk"])
def test_a_grant_whose_reply_is_lost_is_not_left_behind_when_the_retry_is_refused(
    arena: Arena, fresh_redis: RedisServer, how: str
) -> None:
    """22. Reply dropped after execution, and then the server refuses: a grant nobody waits for is released at once."""
    view = fresh_redis.client()
    network = arena.proxy(fresh_redis)
    context = arena.context(network)
    arena.assert_alive(context)
    lock = context.lock("job", timeout=60.0, fencing=how == "fenced", thread_local=False)
    network.drop_replies()
    acquiring = Background[object](
        lambda: context.acquire_many(["job"], timeout=60.0) if how == "bulk" else lock.acquire(blocking=False)
    )
    eventually(lambda: view.exists("job"), LONG_S, "the acquire is executed")
    view.config_set("maxmemory", 1)  # from now on the server is out of memory
    network.heal()

    with pytest.raises(LockServerError, match="OOM"):
        acquiring.result()
    assert not lock.is_held
    eventually(lambda: not view.exists("job"), LONG_S, "the name is free again")


def test_a_release_whose_reply_is_lost_succeeds_and_spares_who_comes_next(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """22. Reply dropped after execution: retry is idempotent. No other owner's token is deleted."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=5.0)
    network.drop_replies()
    releasing = Background(held.lock.release)
    take_over(view, "job", held.lock)
    network.heal()

    releasing.result()
    assert held.told() == []
    assert_stranger_untouched(view, "job")


def test_reacquire_whose_reply_is_lost_is_tried_again(arena: Arena, network: MeddlingProxy, view: redis.Redis) -> None:
    """22. Reply dropped after execution: retry is idempotent."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=5.0, renew_every=0.5)
    view.pexpire("job", 60_000)
    with Onlooker(held, view):
        network.drop_replies()
        reacquiring = Background(held.lock.reacquire)
        eventually(lambda: view.pttl("job") <= 5000, LONG_S, "it is executed")
        network.heal()
        assert reacquiring.result()
        held.await_renewal()
        held.assert_all_held()


def test_extend_whose_reply_is_lost_does_not_add_twice_and_changes_no_deadline(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """22. Reply dropped after execution: V unchanged."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=5.0, renew_every=0.5)
    _, latest = believed_until(held.lock)
    with Onlooker(held, view):
        network.drop_replies()
        extending = Background(lambda: held.lock.extend(30.0))
        eventually(lambda: view.pttl("job") > 20_000, LONG_S, "it is executed")
        network.heal()
        with pytest.raises(LockUnavailable):
            extending.result()
        earliest, _ = believed_until(held.lock)
        assert earliest <= latest or held.lock.renewals > 0
        assert view.pttl("job") <= 35_000
        held.await_renewal()
        held.assert_all_held()


# -- 23. Request delayed past V: no resurrection; a delayed acquire leaves an orphan for at most L. --------------------


def test_a_renewal_that_arrives_after_the_loss_brings_nothing_back(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """23. Request delayed past V: no resurrection. A late success on a lost lease is followed by a release."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=1.5)
    with Onlooker(held, view):
        held.await_renewal()
        began = time.monotonic()
        network.to_server.delay_s = math.inf
        await_sent(network, "renew", after=began)
        view.pexpire("job", 6000)  # as if the server's clock were slow: the key outlives the belief by far
        held.await_loss()
        network.to_server.delay_s = 0.0
        arena.assert_alive(context)
        eventually(lambda: not view.exists("job"), LONG_S, "the late renewal has been undone")
    held.assert_lost(LossReason.NOT_CONFIRMED)


def test_a_renewal_that_arrives_after_the_loss_spares_who_came_next(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """23. Request delayed past V: no resurrection. No other owner's token is extended."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=1.5)
    with Onlooker(held, view):
        began = time.monotonic()
        network.to_server.delay_s = math.inf
        await_sent(network, "renew", after=began)
        take_over(view, "job", held.lock)
        network.to_server.delay_s = 0.0
        arena.assert_alive(context)
    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert_stranger_untouched(view, "job")


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
def test_a_delayed_acquire_leaves_an_orphan_for_at_most_a_timeout(
    arena: Arena, network: MeddlingProxy, view: redis.Redis, fencing: bool
) -> None:
    """23. A delayed acquire leaves an orphan for at most L."""
    context = arena.context(network, response_timeout=1.0)
    arena.assert_alive(context)
    lock = context.lock("job", timeout=1.0, fencing=fencing)
    network.to_server.delay_s = math.inf
    with pytest.raises((LockTimeout, LockUnavailable)):
        lock.acquire()
    assert not lock.is_held
    network.to_server.delay_s = 0.0
    healed_at = now()
    arena.assert_alive(context)
    take_over(view, "job", lock)
    assert now() - healed_at - arena.pulse.stood_s(healed_at) < 1.0 + 5 * LATE_S
    arena.assert_alive(context)
    assert_stranger_untouched(view, "job")


def test_a_grant_that_takes_longer_than_it_lasts_is_not_believed(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """23. Request delayed past V: no resurrection. Its orphan is released at once."""
    context, clock = arena.stepped_context(network, response_timeout=60.0)
    arena.hold(context, ["warm-up"], timeout=60.0)
    network.to_client.delay_s = math.inf
    lock = context.lock("job", timeout=5.0, thread_local=False)
    acquiring = Background(lambda: lock.acquire(blocking=False))
    eventually(lambda: view.exists("job"), LONG_S, "the acquire is executed")
    clock.advance(5.1)
    network.to_client.delay_s = 0.0

    assert not acquiring.result()
    assert not lock.is_held
    assert lock.lost is None
    eventually(lambda: not view.exists("job"), LONG_S, "the name is free again")


# -- 24. Latency 0.3 L with jitter: V shrinks accordingly, never grows. ------------------------------------------------


def test_latency_shortens_what_is_believed_and_never_lengthens_it(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """24. Latency 0.3 L with jitter: V shrinks accordingly, never grows."""
    L = 2.4
    context = arena.context(network)
    arena.assert_alive(context)
    for faults in (network.to_server, network.to_client):
        faults.delay_s, faults.jitter_s = 0.1 * L, 0.1 * L
    at_most = L * 0.99 - 0.2 * L  # the deadline counts from before the request, and the answer takes its time
    held = arena.hold(context, ["a", "b", "c"], L, renew_every=0.2)
    with Onlooker(held, view) as onlooker:
        eventually(lambda: held.renewals() >= 2, LONG_S, "all have been renewed twice")
    held.assert_all_held()
    assert 0.0 < onlooker.longest_remaining_s <= at_most


# -- 25. RST at byte k of a pipeline, CLIENT KILL: each entry unknown, no reply goes to the wrong command. -------------


class SmallPipeline:
    """Commands that are under way together, each with an outcome that none of the others can have.

    Until they are let through they wait in the network, all of them.
    """

    def __init__(self, context: LockContext, network: MeddlingProxy, view: redis.Redis, number: int) -> None:
        self._view = view
        self._context = context
        self.number = number
        self.free = context.lock(f"free {number:03}", 30.0, thread_local=False)
        self.fenced = context.lock(f"fenced {number:03}", 30.0, thread_local=False, fencing=True)
        self.taken = context.lock(f"taken {number:03}", 30.0, thread_local=False)
        self.mine = context.lock(f"mine {number:03}", 30.0, thread_local=False)
        view.set(self.taken.name, STRANGER)
        assert self.mine.acquire(blocking=False)
        network.log.clear()
        network.to_server.delay_s = math.inf
        self._outcomes: dict[str, Background[Any]] = {
            "free": Background(lambda: self.free.acquire(blocking=False)),
            "fenced": Background(lambda: self.fenced.acquire(blocking=False)),
            "taken": Background(lambda: self.taken.acquire(blocking=False)),
            "locked": Background(self.taken.locked),
            "mine": Background(self.mine.release),
        }
        eventually(lambda: len(commands(network)) == len(self._outcomes), LONG_S, "all of them are under way")

    def assert_outcomes(self) -> None:
        outcomes = {what: background.result() for what, background in self._outcomes.items()}
        assert outcomes == {"free": True, "fenced": True, "taken": False, "locked": True, "mine": True}
        for lock in (self.free, self.fenced):
            assert lock.is_held
            assert self._view.get(lock.name) == lock.token
        assert self.free.fence is None
        assert self._view.get(fence_key(b"fenced %03d" % self.number)) == b"%d" % (self.fenced.fence or 0)
        assert not self.taken.is_held
        assert_stranger_untouched(self._view, str(self.taken.name))
        assert self.mine.lost is None
        assert not self._view.exists(self.mine.name)
        self._context.release_many([self.free, self.fenced])


LANES = 6
"""So many networks are cut side by side: most of the time each waits to be connected again."""


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_reset_at_any_byte_of_a_small_pipeline_answers_every_command_rightly(
    arena: Arena, redis_server: RedisServer, view: redis.Redis, direction: Direction
) -> None:
    """25. RST at byte k of a pipeline: each entry unknown, no reply goes to the wrong command."""
    networks = [arena.proxy(redis_server) for _ in range(LANES)]
    contexts = [arena.context(network) for network in networks]
    whole = SmallPipeline(contexts[0], networks[0], view, 999)
    networks[0].to_server.delay_s = 0.0
    whole.assert_outcomes()
    size = len(networks[0].seen(direction))

    def cut_at_every_byte(first: int, context: LockContext, network: MeddlingProxy) -> None:
        for k in range(first, size, LANES):
            pipeline = SmallPipeline(context, network, view, k)
            before = context.stats().connects
            network.cut_after_bytes(k, direction)
            network.to_server.delay_s = 0.0
            pipeline.assert_outcomes()
            assert context.stats().connects > before
            network.heal()

    lanes = [Background(partial(cut_at_every_byte, lane, contexts[lane], networks[lane])) for lane in range(LANES)]
    for lane in lanes:
        lane.result(60.0)


def test_resets_at_random_bytes_of_a_large_pipeline_lose_nothing(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """25. RST at byte k of a pipeline: each entry unknown."""
    names = [f"job {number}" for number in range(2000)]
    context = arena.context(network)
    arena.assert_alive(context)
    network.cut_after_bytes(_random.randrange(100_000), "to_server")
    held = arena.hold(context, names, timeout=4.0, renew_every=0.6)
    for direction in ("to_server", "to_client", "to_server", "to_client", "to_server"):
        before = context.stats().connects
        size = 100_000 if direction == "to_server" else 20  # a reply to many renewals that all went well is short
        network.cut_after_bytes(_random.randrange(size), direction)
        await_reconnected(context, before)
    network.heal()
    held.await_renewal()
    held.assert_all_held()
    assert context.stats().unknown > 0
    assert view.mget(names) == list(held.tokens.values())


def test_killed_connections_lose_nothing_and_confuse_nobody(arena: Arena, fresh_redis: RedisServer) -> None:
    """25. CLIENT KILL: each entry unknown, no reply goes to the wrong command."""
    view = fresh_redis.client()
    context = arena.context(fresh_redis)
    held = arena.hold(context, [f"job {number}" for number in range(500)], timeout=4.0, renew_every=0.6)
    inside = itertools.count()
    owners: list[int] = []
    over = False

    def work() -> int:
        rounds = 0
        lock = context.lock("mutex", timeout=5.0, retry_every=0.005, thread_local=False)
        while not over:
            with lock:
                assert owners == []
                owners.append(next(inside))
                assert context.lock("never").locked() is False
                owners.pop()
            rounds += 1
        return rounds

    workers = [Background(work) for _ in range(4)]
    for _ in range(12):
        before = context.stats().connects
        view.client_kill_filter(_type="normal", skipme=True)
        await_reconnected(context, before)
    over = True
    assert sum(worker.result() for worker in workers) > 0
    held.await_renewal()
    held.assert_all_held()
    assert not view.exists("mutex")


def test_an_extend_that_is_cut_off_behind_a_silent_renewal_leaves_the_lease_renewed(
    arena: Arena, network: MeddlingProxy
) -> None:
    """25. RST in the middle of a pipeline: each entry unknown, so each is tried again, or told of as lost by V."""
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=4.0, renew_every=0.3)
    network.blackhole()
    eventually(lambda: context.stats().overdue, LONG_S, "the renewal has been silent for too long")
    extending = Background(lambda: held.lock.extend(1.0))
    await_sent(network, "extend")
    network.heal()
    with pytest.raises(LockUnavailable):
        extending.result()

    held.await_renewal(timeout_s=2 * held.timeout)
    held.assert_all_held()


def test_nothing_is_sent_for_a_released_lock_after_a_reset_behind_a_silent_renewal(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """25. RST in the middle of a pipeline that holds a renewal and a release: the former is not tried again."""
    context = arena.context(network)
    held = arena.hold(context, ["kept", "released"], timeout=4.0, renew_every=0.3)
    token = held.tokens["released"]
    assert token is not None
    held.await_renewal()
    network.blackhole()
    eventually(lambda: context.stats().overdue == 2, LONG_S, "the renewals have been silent for too long")
    releasing = Background(held["released"].release)
    await_sent(network, "release")
    network.heal()
    releasing.result()
    returned_at = time.monotonic()

    held.await_renewal("kept")
    held.await_renewal("kept")
    assert commands(network, since=returned_at, mentioning=token) == []
    assert not view.exists("released")
    assert held.told() == []


# -- 26. Half-open idle connection: noticed within L/6. ----------------------------------------------------------------


def test_a_half_open_connection_is_noticed_by_a_renewal_within_a_sixth_of_the_timeout(
    arena: Arena, network: MeddlingProxy, view: redis.Redis
) -> None:
    """26. Half-open idle connection: noticed within L/6."""
    L = 3.0
    context = arena.context(network)
    held = arena.hold(context, ["a", "b"], timeout=L, renew_every=0.3)
    with Onlooker(held, view):
        held.await_renewal()
        connects, last = context.stats().connects, network.accepted
        network.strand()
        stranded_at, since = time.monotonic(), now()
        await_reconnected(context, connects)
        held.await_renewal()
        held.assert_all_held()
    renewal = of_kind("renew", commands(network, since=stranded_at))[0]
    noticed_at = next(entry.time for entry in network.log if entry.connection > last)
    assert noticed_at - renewal.time - arena.pulse.stood_s(since) <= L / 6 + LATE_S


def test_a_half_open_connection_is_noticed_by_an_acquire_within_a_sixth_of_the_timeout(
    arena: Arena, network: MeddlingProxy
) -> None:
    """26. Half-open idle connection: noticed within L/6, also where nothing is held that would have to be renewed."""
    L = 2.4
    context = arena.context(network)
    arena.assert_alive(context)
    last = network.accepted
    network.strand()
    stranded_at, since = time.monotonic(), now()
    lock = context.lock("job", timeout=L)
    assert lock.acquire(blocking=False)
    noticed_at = next(entry.time for entry in network.log if entry.connection > last)
    assert noticed_at - stranded_at - arena.pulse.stood_s(since) <= L / 6 + LATE_S
    lock.release()


# -- 27. maxclients reached or the user's pool exhausted: the renewal connection is its own and goes on. ---------------


def test_renewal_goes_on_when_the_server_takes_no_more_clients(arena: Arena, fresh_redis: RedisServer) -> None:
    """27. maxclients reached: the renewal connection is its own and goes on."""
    view = fresh_redis.client()
    held = arena.hold(arena.context(fresh_redis), ["a", "b"], timeout=3.0, renew_every=0.2)
    view.config_set("maxclients", 1)
    with pytest.raises(redis.ConnectionError), fresh_redis.client() as late_comer:
        late_comer.ping()
    held.await_renewal()
    held.await_renewal()
    held.assert_all_held()


def test_a_connection_lost_while_the_server_is_full_is_replaced_when_it_is_not(
    arena: Arena, fresh_redis: RedisServer
) -> None:
    """27. maxclients reached: unknown while there is no way in, and no reason to knock in a tight loop."""
    view = fresh_redis.client()
    network = arena.proxy(fresh_redis)
    context = arena.context(network)
    held = arena.hold(context, ["a", "b"], timeout=5.0, renew_every=0.5)
    held.await_renewal()
    view.config_set("maxclients", 1)
    network.cut()
    time.sleep(1.0)
    held.assert_all_held()
    assert 1 <= view.info("stats")["rejected_connections"] <= 20
    view.config_set("maxclients", 1000)
    held.await_renewal()
    held.assert_all_held()


@pytest.mark.parametrize("pool_class", [redis.ConnectionPool, redis.BlockingConnectionPool])
def test_renewal_goes_on_when_the_users_pool_is_exhausted(
    arena: Arena, redis_server: RedisServer, pool_class: type[redis.ConnectionPool]
) -> None:
    """27. The user's pool exhausted: the renewal connection is its own and goes on."""
    pool = pool_class(host="127.0.0.1", port=redis_server.port, max_connections=1)
    only = pool.get_connection()
    held = arena.hold(arena.context(redis.Redis(connection_pool=pool)), ["a", "b"], timeout=3.0, renew_every=0.2)
    held.await_renewal()
    held.assert_all_held()
    pool.release(only)
    pool.disconnect()


# -- 44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives. -----------

NONSENSE = {
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "nothing but zeros": b"\0" * 64,
    "absurd length of a list": b"*4294967296\r\n",
    "absurd length of a text": b"$999999999999999999999\r\n",
    "negative length": b"*-5\r\n",
    "absurd integer": b":99999999999999999999999999\r\n",
    "a list that contains nothing but lists": b"*1\r\n" * 20 + b":1\r\n",
    "a push message": b">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n",
    "a map": b"%1\r\n:1\r\n:0\r\n",
    "more than was asked for": b"*0\r\n*0\r\n",
    "never complete": b"$1000000\r\nabc",
}
"""What no command can be answered with."""

NO_RENEWAL = {
    "an integer": b":1\r\n",
    "a text": b"$2\r\nOK\r\n",
    "a status": b"+OK\r\n",
    "nil": b"$-1\r\n",
    "nil list": b"*-1\r\n",
    "odd length": b"*1\r\n:1\r\n",
    "index 0": b"*2\r\n:0\r\n:0\r\n",
    "negative index": b"*2\r\n:-1\r\n:0\r\n",
    "index past the end": b"*2\r\n:3\r\n:0\r\n",
    "absurd index": b"*2\r\n:9223372036854775807\r\n:0\r\n",
    "index named twice": b"*4\r\n:1\r\n:0\r\n:1\r\n:0\r\n",
    "index as a text": b"*2\r\n$1\r\n1\r\n:0\r\n",
    "index nil": b"*2\r\n$-1\r\n:0\r\n",
    "unknown verdict": b"*2\r\n:1\r\n:7\r\n",
    "verdict nil": b"*2\r\n:1\r\n$-1\r\n",
    "verdict a list": b"*2\r\n:1\r\n*0\r\n",
    "good entries, then a bad one": b"*4\r\n:1\r\n:0\r\n:9\r\n:0\r\n",
}
"""What a renewal of two leases cannot be answered with."""


@pytest.mark.parametrize("words", [*NONSENSE.values(), *NO_RENEWAL.values()], ids=[*NONSENSE, *NO_RENEWAL])
def test_nonsense_in_answer_to_a_renewal_costs_the_connection_and_no_lease(
    arena: Arena, network: MeddlingProxy, words: bytes
) -> None:
    """44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives."""
    context = arena.context(network)
    held = arena.hold(context, ["a", "b"], timeout=3.0, renew_every=0.05)
    held.await_renewal()
    before = context.stats().connects
    said_at = -math.inf

    def reconnected() -> bool:
        nonlocal said_at
        if now() > said_at + 2.0:  # what was said on a connection that had been given up already is said again
            network.say_instead(words)
            said_at = now()
        return context.stats().connects > before

    eventually(reconnected, LONG_S)
    held.await_renewal()
    held.assert_all_held()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"\xff\xfe\x00",
        b"WAT",
        b"MOVED 1 10.0.0.1:1",
        b"READONLY no",
        b"CLUSTERDOWN",
        b"NOSCRIPT",
        b"x" * 5000,
    ],
)
def test_any_error_in_answer_to_a_renewal_proves_nothing(arena: Arena, network: MeddlingProxy, text: bytes) -> None:
    """44. Malformed or hostile server replies: every entry unknown, the thread lives."""
    context = arena.context(network)
    held = arena.hold(context, ["a", "b"], timeout=3.0, renew_every=0.05)
    for words in (b"-%b\r\n" % text, b"*2\r\n:1\r\n-%b\r\n" % text, b"*2\r\n:2\r\n$%d\r\n%b\r\n" % (len(text), text)):
        held.await_renewal()
        network.say_instead(words)
        eventually(lambda: network.has_spoken, LONG_S, "the error is said")
        held.await_renewal()
        held.assert_all_held()


def _reacquire(lock: Lock) -> object:
    return lock.reacquire()


def _release(lock: Lock) -> object:
    lock.release()
    return True


ANSWERS: dict[str, tuple[Callable[[Lock], object], list[bytes]]] = {
    "release": (_release, [b"*0\r\n", b"$-1\r\n", b"+OK\r\n", b":-2\r\n"]),
    "reacquire": (_reacquire, [b"*0\r\n", b"$-1\r\n", b"+OK\r\n", b":-2\r\n", b":9223372036854775807\r\n"]),
    "locked": (lambda lock: lock.locked(), [b"*0\r\n", b"$-1\r\n", b"+OK\r\n", b"$1\r\n1\r\n"]),
    "owned": (lambda lock: lock.owned(), [b"*0\r\n", b":1\r\n"]),
}


@pytest.mark.parametrize(
    ("what", "words"),
    [(what, words) for what, (_, wrong) in ANSWERS.items() for words in (*wrong, NONSENSE["no protocol"])],
)
def test_nonsense_in_answer_to_a_caller_costs_the_connection_and_the_truth_is_asked_for_again(
    arena: Arena, network: MeddlingProxy, what: str, words: bytes
) -> None:
    """44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives."""
    call, _ = ANSWERS[what]
    context = arena.context(network)
    held = arena.hold(context, ["job"], timeout=10.0)
    before = context.stats().connects
    network.say_instead(words)
    assert call(held.lock) is True
    assert held.lock.remaining() <= 10.0
    assert context.stats().connects > before
    assert held.told() == []


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
@pytest.mark.parametrize("words", [b"*0\r\n", b":-5\r\n", b"$2\r\nno\r\n", b"$-1\r\n:7\r\n", b"*2\r\n:2\r\n:1\r\n"])
def test_nonsense_in_answer_to_an_acquire_grants_nothing(
    arena: Arena, network: MeddlingProxy, view: redis.Redis, words: bytes, fencing: bool
) -> None:
    """44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives."""
    view.set("job", STRANGER)
    context = arena.context(network)
    arena.assert_alive(context)
    before = context.stats().connects
    lock = context.lock("job", timeout=10.0, fencing=fencing)
    network.say_instead(words)
    granted = lock.acquire(blocking=False)
    assert not granted
    assert not lock.is_held
    arena.assert_alive(context)
    assert context.stats().connects > before
    assert_stranger_untouched(view, "job")


@pytest.mark.parametrize("words", [b"+OK\r\n", b"*0\r\n", b":1\r\n", b"-ERR hm\r\n", b">1\r\n+x\r\n", b"hm", b"\r\n"])
def test_what_nobody_asked_for_is_no_answer_to_what_comes_next(
    arena: Arena, network: MeddlingProxy, view: redis.Redis, words: bytes
) -> None:
    """44. Malformed or hostile server replies: the channel is dropped, the thread lives."""
    view.set("taken", STRANGER)
    context = arena.context(network)
    arena.assert_alive(context)
    network.say(words)
    assert not context.lock("taken", timeout=10.0).acquire(blocking=False)
    arena.assert_alive(context)
    assert_stranger_untouched(view, "taken")


def test_a_server_that_talks_nothing_but_nonsense_is_not_called_in_a_tight_loop(
    arena: Arena, network: MeddlingProxy
) -> None:
    """44. Malformed or hostile server replies: every entry unknown, and so lost by V."""
    context = arena.context(network)
    held = arena.hold(context, ["a", "b"], timeout=1.0)
    before = network.accepted
    network.say_instead(b":1\r\n", for_ever=True)
    held.await_loss()
    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert network.accepted - before < 20
    network.heal()
    arena.assert_alive(context)


@pytest.mark.parametrize("words", [NONSENSE["no protocol"], NONSENSE["nothing but zeros"], b"-ERR hm\r\n", b"*-5\r\n"])
def test_nonsense_while_connecting_is_survived(arena: Arena, network: MeddlingProxy, words: bytes) -> None:
    """44. Malformed or hostile server replies: the thread lives."""
    context = arena.context(network)
    network.say_instead(words)
    arena.assert_alive(context)
