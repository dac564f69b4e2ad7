"""The network fails: nothing arrives, something arrives late or twice, connections break, replies are lies."""

from __future__ import annotations

import gc
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

from tests.faults.meddling_proxy import MeddlingProxy
from tests.faults.sent_commands import commands, of_kind
from tests.faults.shared_wheel import (
    LONG_S,
    STRANGER,
    Onlooker,
    SharedWheel,
    assert_stranger_untouched,
    believed_until,
    take_over,
)
from tests.faults.support import LATE_S, FencedRegister, now
from tests.support.background import Background
from tests.support.proxy import Direction
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import Lock, LockContext, LockLost, LockTimeout, LockUnavailable, LossReason
from wheel_lock.protocol.keys import fence_key

pytestmark = pytest.mark.slow

_random = random.Random()


@pytest.fixture
def wheel(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> Iterator[SharedWheel]:
    gc.collect()  # locks that earlier tests of this process have dropped are reported before the test, not during it
    with SharedWheel(redis_server) as wheel:
        yield wheel
    errors = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == []


@pytest.fixture
def network(wheel: SharedWheel, redis_server: RedisServer) -> MeddlingProxy:
    return wheel.proxy(redis_server)


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
    wheel: SharedWheel, network: MeddlingProxy, redis_server: RedisServer, view: redis.Redis
) -> None:
    """21. Black hole: lost by V."""
    context = wheel.context(network)
    held = wheel.hold(context, ["job"], timeout=1.0, fencing=True)
    register = FencedRegister()
    assert register.write(held.lock.fence)

    with Onlooker(held, view):
        network.blackhole()
        other = wheel.context(redis_server).lock("job", timeout=5.0, fencing=True, retry_every=0.01)
        assert other.acquire(blocking_timeout=LONG_S)
        assert not held.lock.is_held
        assert register.write(other.fence)
        network.heal()
        wheel.assert_alive(context)
        with pytest.raises(LockLost):
            held.lock.release()

    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert not register.write(held.lock.fence)
    assert other.is_held
    assert other.owned()
    other.release()


def test_a_black_hole_for_half_a_timeout_loses_nothing(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """21. Black hole: lost by V, and so not lost where it ends before."""
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b", "c"], timeout=1.6, renew_every=0.15)
    with Onlooker(held, view):
        held.await_renewal()
        network.blackhole()
        time.sleep(0.8)
        network.heal()
        held.await_renewal()
        held.assert_all_held()


# -- 22. Reply dropped after execution: V unchanged, retry is idempotent; a retried SET NX recognises its own token. ---


def test_a_renewal_whose_reply_is_lost_moves_no_deadline_and_is_tried_again(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """22. Reply dropped after execution: V unchanged, retry is idempotent."""
    context = wheel.context(network)
    held = wheel.hold(context, ["job"], timeout=4.0, renew_every=0.4)
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


def test_a_release_whose_reply_is_lost_succeeds_and_spares_who_comes_next(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """22. Reply dropped after execution: retry is idempotent. No other owner's token is deleted."""
    context = wheel.context(network)
    held = wheel.hold(context, ["job"], timeout=5.0)
    network.drop_replies()
    releasing = Background(held.lock.release)
    take_over(view, "job", held.lock)
    network.heal()

    releasing.result()
    assert held.told() == []
    assert_stranger_untouched(view, "job")


# -- 23. Request delayed past V: no resurrection; a delayed acquire leaves an orphan for at most L. --------------------


def test_a_renewal_that_arrives_after_the_loss_spares_who_came_next(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """23. Request delayed past V: no resurrection. No other owner's token is extended."""
    context = wheel.context(network)
    held = wheel.hold(context, ["job"], timeout=1.5)
    with Onlooker(held, view):
        began = time.monotonic()
        network.to_server.delay_s = math.inf
        await_sent(network, "renew", after=began)
        take_over(view, "job", held.lock)
        network.to_server.delay_s = 0.0
        wheel.assert_alive(context)
    held.assert_lost(LossReason.NOT_CONFIRMED)
    assert_stranger_untouched(view, "job")


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
def test_a_delayed_acquire_leaves_an_orphan_for_at_most_a_timeout(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis, fencing: bool
) -> None:
    """23. A delayed acquire leaves an orphan for at most L."""
    context = wheel.context(network, response_timeout=1.0)
    wheel.assert_alive(context)
    lock = context.lock("job", timeout=1.0, fencing=fencing)
    network.to_server.delay_s = math.inf
    with pytest.raises((LockTimeout, LockUnavailable)):
        lock.acquire()
    assert not lock.is_held
    network.to_server.delay_s = 0.0
    healed_at = now()
    wheel.assert_alive(context)
    take_over(view, "job", lock)
    assert now() - healed_at - wheel.pulse.stood_s(healed_at) < 1.0 + 5 * LATE_S
    wheel.assert_alive(context)
    assert_stranger_untouched(view, "job")


# -- 24. Latency 0.3 L with jitter: V shrinks accordingly, never grows. ------------------------------------------------


def test_latency_shortens_what_is_believed_and_never_lengthens_it(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """24. Latency 0.3 L with jitter: V shrinks accordingly, never grows."""
    L = 2.4
    context = wheel.context(network)
    wheel.assert_alive(context)
    for faults in (network.to_server, network.to_client):
        faults.delay_s, faults.jitter_s = 0.1 * L, 0.1 * L
    at_most = L * 0.99 - 0.2 * L  # the deadline counts from before the request, and the answer takes its time
    held = wheel.hold(context, ["a", "b", "c"], L, renew_every=0.2)
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
        # On a machine that stands still for long they are sent again meanwhile, on another connection.
        eventually(lambda: len(commands(network)) >= len(self._outcomes), LONG_S, "all of them are under way")

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
    wheel: SharedWheel, redis_server: RedisServer, view: redis.Redis, direction: Direction
) -> None:
    """25. RST at byte k of a pipeline: each entry unknown, no reply goes to the wrong command."""
    networks = [wheel.proxy(redis_server) for _ in range(LANES)]
    contexts = [wheel.context(network) for network in networks]
    whole = SmallPipeline(contexts[0], networks[0], view, 999)
    networks[0].to_server.delay_s = 0.0
    whole.assert_outcomes()
    size = len(networks[0].seen(direction))

    # Every byte of a request is cut at in tests/engine/test_broken_connections.py.
    stride = 1 if direction == "to_client" else 3

    def cut_at_every_byte(first: int, context: LockContext, network: MeddlingProxy) -> None:
        for k in range(first * stride, size, LANES * stride):
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
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """25. RST at byte k of a pipeline: each entry unknown."""
    names = [f"job {number}" for number in range(2000)]
    context = wheel.context(network)
    wheel.assert_alive(context)
    network.cut_after_bytes(_random.randrange(100_000), "to_server")
    held = wheel.hold(context, names, timeout=4.0, renew_every=0.6)
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


def test_killed_connections_lose_nothing_and_confuse_nobody(wheel: SharedWheel, fresh_redis: RedisServer) -> None:
    """25. CLIENT KILL: each entry unknown, no reply goes to the wrong command."""
    view = fresh_redis.client()
    context = wheel.context(fresh_redis)
    held = wheel.hold(context, [f"job {number}" for number in range(500)], timeout=4.0, renew_every=0.6)
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


# -- 26. Half-open idle connection: noticed within L/6. ----------------------------------------------------------------


def test_a_half_open_connection_is_noticed_by_a_renewal_within_a_sixth_of_the_timeout(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis
) -> None:
    """26. Half-open idle connection: noticed within L/6."""
    L = 3.0
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=L, renew_every=0.3)
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
    assert noticed_at - renewal.time - wheel.pulse.stood_s(since) <= L / 6 + LATE_S


def test_a_half_open_connection_is_noticed_by_an_acquire_within_a_sixth_of_the_timeout(
    wheel: SharedWheel, network: MeddlingProxy
) -> None:
    """26. Half-open idle connection: noticed within L/6, also where nothing is held that would have to be renewed."""
    L = 2.4
    context = wheel.context(network)
    wheel.assert_alive(context)
    last = network.accepted
    network.strand()
    stranded_at, since = time.monotonic(), now()
    lock = context.lock("job", timeout=L)
    assert lock.acquire(blocking=False)
    noticed_at = next(entry.time for entry in network.log if entry.connection > last)
    assert noticed_at - stranded_at - wheel.pulse.stood_s(since) <= L / 6 + LATE_S
    lock.release()


# -- 27. maxclients reached or the user's pool exhausted: the renewal connection is its own and goes on. ---------------


def test_a_connection_lost_while_the_server_is_full_is_replaced_when_it_is_not(
    wheel: SharedWheel, fresh_redis: RedisServer
) -> None:
    """27. maxclients reached: unknown while there is no way in, and no reason to knock in a tight loop."""
    view = fresh_redis.client()
    network = wheel.proxy(fresh_redis)
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=5.0, renew_every=0.5)
    held.await_renewal()
    view.config_set("maxclients", 1)
    network.cut()
    time.sleep(1.0)
    held.assert_all_held()
    assert 1 <= view.info("stats")["rejected_connections"] <= 20
    view.config_set("maxclients", 1000)
    held.await_renewal()
    held.assert_all_held()


# -- 44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives. -----------

# Which replies are nonsense, and what each request makes of them, tests/engine/test_broken_connections.py says; here are
# some of each sort, from a real server over TCP.
NONSENSE = {
    "no protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "absurd length of a list": b"*4294967296\r\n",
    "a push message": b">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n",
    "more than was asked for": b"*0\r\n*0\r\n",
    "never complete": b"$1000000\r\nabc",
    "an integer": b":1\r\n",
    "index past the end": b"*2\r\n:3\r\n:0\r\n",
    "good entries, then a bad one": b"*4\r\n:1\r\n:0\r\n:9\r\n:0\r\n",
}
"""What a renewal of two leases cannot be answered with."""


@pytest.mark.parametrize("words", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_in_answer_to_a_renewal_costs_the_connection_and_no_lease(
    wheel: SharedWheel, network: MeddlingProxy, words: bytes
) -> None:
    """44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives."""
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=3.0, renew_every=0.05)
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


def test_any_error_in_answer_to_a_renewal_proves_nothing(wheel: SharedWheel, network: MeddlingProxy) -> None:
    """44. Malformed or hostile server replies: every entry unknown, the thread lives."""
    context = wheel.context(network)
    held = wheel.hold(context, ["a", "b"], timeout=3.0, renew_every=0.05)
    for text in (b"", b"\xff\xfe\x00", b"MOVED 1 10.0.0.1:1", b"x" * 5000):
        for words in (
            b"-%b\r\n" % text,
            b"*2\r\n:1\r\n-%b\r\n" % text,
            b"*2\r\n:2\r\n$%d\r\n%b\r\n" % (len(text), text),
        ):
            held.await_renewal()
            network.say_instead(words)
            eventually(lambda: network.has_spoken, LONG_S, "the error is said")
            held.await_renewal()
            held.assert_all_held()


ANSWERS: dict[str, tuple[Callable[[Lock], object], bytes]] = {
    "release": (lambda lock: lock.release(), b":-2\r\n"),
    "reacquire": (lambda lock: lock.reacquire(), b":9223372036854775807\r\n"),
    "locked": (lambda lock: lock.locked(), b"$1\r\n1\r\n"),
    "owned": (lambda lock: lock.owned(), NONSENSE["no protocol"]),
}


@pytest.mark.parametrize("what", ANSWERS)
def test_nonsense_in_answer_to_a_caller_costs_the_connection_and_the_truth_is_asked_for_again(
    wheel: SharedWheel, network: MeddlingProxy, what: str
) -> None:
    """44. Malformed or hostile server replies: the channel is dropped, every entry unknown, the thread lives."""
    call, words = ANSWERS[what]
    context = wheel.context(network)
    held = wheel.hold(context, ["job"], timeout=10.0)
    before = context.stats().connects
    network.say_instead(words)
    assert call(held.lock) is True
    assert held.lock.remaining() <= 10.0
    assert context.stats().connects > before
    assert held.told() == []


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fenced"])
def test_nonsense_in_answer_to_an_acquire_grants_nothing(
    wheel: SharedWheel, network: MeddlingProxy, view: redis.Redis, fencing: bool
) -> None:
    """44. Malformed or hostile server replies, asked for or not: the channel is dropped, the thread lives."""
    view.set("job", STRANGER)
    context = wheel.context(network)
    wheel.assert_alive(context)
    for say, words in (
        (network.say_instead, b"*2\r\n:2\r\n:1\r\n" if fencing else b"$-1\r\n:7\r\n"),
        (network.say, b"+OK\r\n" if fencing else b"-ERR hm\r\n"),
    ):
        before = context.stats().connects
        lock = context.lock("job", timeout=10.0, fencing=fencing)
        say(words)
        assert not lock.acquire(blocking=False)
        assert not lock.is_held
        wheel.assert_alive(context)
        assert context.stats().connects > before
        assert_stranger_untouched(view, "job")


@pytest.mark.parametrize("words", [NONSENSE["no protocol"], b"-ERR hm\r\n"])
def test_nonsense_while_connecting_is_survived(wheel: SharedWheel, network: MeddlingProxy, words: bytes) -> None:
    """44. Malformed or hostile server replies: the thread lives."""
    context = wheel.context(network)
    network.say_instead(words)
    wheel.assert_alive(context)
