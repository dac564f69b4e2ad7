"""A program that uses every public call, for type checkers of users: mypy --strict and pyright find nothing in it.

It is checked, and not run. `import wheel_lock` is the only import of the package: everything must be reachable from there.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import sqlite3
import sys
from typing import assert_type

import redis
import redis.asyncio

import wheel_lock
from wheel_lock import LockContext, QuorumContext

Name = str | bytes


def report(event: wheel_lock.LostEvent) -> None:
    reason: wheel_lock.LossReason = event.reason
    name: Name = event.name
    numbers: tuple[float, float, int, int | None] = (event.at, event.deadline, event.renewals, event.fence)
    print(name, reason, reason is wheel_lock.LossReason.KEY_GONE, numbers)


def contexts() -> None:
    with LockContext(redis.Redis(), timer=wheel_lock.HashedWheelTimer(), batch_size=100) as context:
        print(context.closed, context.timer.pending)
    LockContext(redis.asyncio.Redis(), response_timeout=1.0, connect_timeout=1.0, close_timeout=1.0)
    LockContext.shared(redis.Redis()).close(timeout=1.0)
    LockContext(redis.Redis(), release_on_close=False, fallback_interval=0.5, max_held=10, max_waiting=None)
    LockContext(redis.Redis(), min_replicas=1, replica_timeout=0.5, declare_keys=True)
    LockContext.from_url("redis://localhost:6379", client_options={"db": 1}, track_acquisitions=True, renewal_slack=0.0)
    LockContext(redis.Redis(), owner="billing@host-7", readable_owner=True, label="orders").close()
    LockContext(redis.Redis(), prefix="billing:", timeout=10.0, blocking_timeout=None).close()
    LockContext(redis.Redis(), release_on_crash=True, release_delay=2.0).close()
    LockContext.from_url("redis://localhost:6379", release_on_crash=pathlib.Path("/run/keeper.sock")).close()
    LockContext.from_url("redis://localhost:6379", prefix="billing:", timeout=10.0, blocking_timeout=5.0).close()
    signals: tuple[int, ...] = LockContext(redis.Redis()).close_on_signals(15)
    print(signals)
    LockContext.quorum([redis.Redis()], prefix="billing:", timeout=10.0, blocking_timeout=5.0).close()
    with LockContext.quorum([redis.Redis()], node_timeout=0.1, longest_timeout=60.0, trust_new_nodes=False) as quorum:
        majority(quorum)


def majority(quorum: QuorumContext) -> None:
    with quorum.lock("order:42", 30.0, on_lost=report, blocking_timeout=1.0) as lock:
        print(lock.is_held, quorum.stats().held, quorum.held(), quorum.timer, quorum.closed)
    with quorum.lock("order:42", fencing=True) as fenced:
        print(fenced.fence, wheel_lock.guards.fence_of(fenced))
    with quorum.reentrant_lock("order:42") as again:
        print(again.count)
    for node, stats in quorum.node_stats().items():
        print(node, stats.connects)

    @quorum.locked("report:{number}", timeout=None, on_lost=report)
    def write(number: int) -> str:
        return str(number)

    async def tasks() -> None:
        async with quorum.asyncio.lock("order:42", cancel_on_lost=True) as held:
            print(held.remaining())
        async with quorum.asyncio.reentrant_lock("order:42"):
            pass

    asyncio.run(tasks())
    print(write(7).upper())
    quorum.close(timeout=1.0)


def locks(context: LockContext) -> None:
    lock = context.lock(
        "order:42",
        timeout=30.0,
        blocking=True,
        blocking_timeout=5.0,
        renew=True,
        renew_every=10.0,
        max_renewals=6,
        max_hold=60.0,
        retry_every=0.05,
        max_attempts=3,
        fencing=True,
        on_lost=report,
        thread_local=False,
    )
    acquired: bool = lock.acquire(blocking=True, blocking_timeout=1.0, token="mine")
    done: bool = lock.extend(10.0, replace_ttl=True) and lock.reacquire() and lock.release()
    seen: tuple[bool, bool, bool] = (lock.locked(), lock.owned(), lock.is_held)
    known: tuple[Name, float, float, int] = (lock.name, lock.timeout, lock.remaining(), lock.renewals)
    fence: int | None = lock.fence
    assert_type(lock, wheel_lock.Lock)
    assert_type(lock.name, Name)
    assert_type(lock.token, bytes | None)
    assert_type(lock.lost, wheel_lock.LossReason | None)
    lock.raise_if_lost()
    text: str = lock.export()
    assert_type(context.adopt(text, on_lost=report, thread_local=True), wheel_lock.Lock)
    print(acquired, done, seen, known, fence)


def kinds(context: LockContext) -> None:
    with context.reentrant_lock("order:42", fencing=True, on_lost=report) as reentrant:
        assert_type(reentrant, wheel_lock.ReentrantLock)
        print(reentrant.count)
    pair: wheel_lock.ReadWriteLock = context.rw_lock("table:7", 30.0)
    print(pair.name)
    with pair.read() as reader:
        assert_type(reader, wheel_lock.ReadLock)
        print(reader.count)
    with pair.write() as writer:
        assert_type(writer, wheel_lock.WriteLock)
        print(writer.count)
        assert_type(writer.downgrade(), wheel_lock.ReadLock)
    with context.fair_lock("printer", blocking_timeout=1.0) as first:
        assert_type(first, wheel_lock.Lock)
    with context.semaphore("licence", permits=5) as permit:
        assert_type(permit, wheel_lock.Semaphore)
        permit.set_permits(permit.permits + 1)
    with context.multi_lock(["a", b"b"]) as together:
        assert_type(together, wheel_lock.MultiLock)
        assert_type(together.names, tuple[Name, ...])
        print(together.locks["a"].is_held, together.is_held, together.lost, together.remaining())
        together.raise_if_lost()
    together.acquire(blocking=False)
    together.release()


def bulk(context: LockContext) -> None:
    granted = context.acquire_many(
        (f"shard:{number}" for number in range(9)),
        timeout=30.0,
        all_or_nothing=False,
        blocking_timeout=1.0,
        renew=True,
        max_hold=60.0,
        on_lost=report,
        thread_local=False,
    )
    held: list[wheel_lock.Lock] = [lock for lock in granted.values() if lock is not None]
    context.release_many(held)


async def for_tasks(context: LockContext) -> None:
    tasks: wheel_lock.asyncio.AsyncContext = context.asyncio
    lock = tasks.lock("order:42", 30.0, on_lost=report, cancel_on_lost=True, fencing=True)
    assert_type(lock, wheel_lock.asyncio.Lock)
    done: bool = await lock.acquire(blocking_timeout=1.0) and await lock.extend(1.0) and await lock.reacquire()
    seen: tuple[bool, bool] = (await lock.locked(), await lock.owned())
    one: wheel_lock.Holder | None = await lock.holder()
    every: tuple[wheel_lock.Holder, ...] = await lock.holders()
    removed: tuple[wheel_lock.Holder, ...] = await tasks.force_release("order:42")
    print(one, every, removed)
    text: str = await lock.export()
    async with await tasks.adopt(text, cancel_on_lost=True) as adopted:
        assert_type(adopted, wheel_lock.asyncio.Lock)
        print(
            done, seen, adopted.is_held, adopted.lost, adopted.fence, adopted.token, adopted.renewals, adopted.timeout
        )
    released: bool = await adopted.release()
    async with tasks.reentrant_lock("order:42") as reentrant:
        assert_type(reentrant, wheel_lock.asyncio.ReentrantLock)
    pair: wheel_lock.asyncio.ReadWriteLock = tasks.rw_lock("table:7")
    async with pair.read() as reader:
        assert_type(reader, wheel_lock.asyncio.ReadLock)
    async with pair.write() as writer:
        assert_type(writer, wheel_lock.asyncio.WriteLock)
        kept = await writer.downgrade()
        assert_type(kept, wheel_lock.asyncio.ReadLock)
        await kept.release()
    async with tasks.fair_lock("printer"):
        pass
    async with tasks.semaphore("licence", 5) as permit:
        assert_type(permit, wheel_lock.asyncio.Semaphore)
        await permit.set_permits(None)
    async with tasks.multi_lock(["a", "b"]) as together:
        assert_type(together, wheel_lock.asyncio.MultiLock)
        together.raise_if_lost()
    texts = await tasks.export_many((await tasks.acquire_many([b"a", b"b"], blocking_timeout=1.0)).values())
    many = await tasks.adopt_many(texts.values(), cancel_on_lost=True)
    await tasks.release_many(many.values())
    print(released, reentrant.count, reader.count, pair.name, tasks.stats(), tasks.held(), tasks.timer, tasks.closed)
    await tasks.close(timeout=1.0)


def functions(context: LockContext) -> None:
    @context.locked("invoice:{customer_id}", timeout=5.0, blocking=False)
    def write_invoice(customer_id: int) -> str:
        return str(customer_id)

    @context.locked("report:{customer_id}")
    async def fetch(customer_id: int, *, kind: str = "daily") -> list[str]:
        return [kind, str(customer_id)]

    async def main() -> list[str]:
        return await fetch(7, kind="weekly")

    print(write_invoice(7).upper(), asyncio.run(main()))


def errors(context: LockContext) -> None:
    try:
        with context.lock("order:42"):
            pass
    except wheel_lock.LockServerError as error:
        print(error.code)
    except wheel_lock.LocksLost as error:
        print([(name, reason.value) for name, reason in error.losses.items()])
    except wheel_lock.LockLost as error:
        print(error.reason)
    except (wheel_lock.NotReplicated, wheel_lock.LockUnavailable, wheel_lock.LockTimeout) as error:
        print(error)
    except (wheel_lock.UpgradeRefused, wheel_lock.LockAlreadyHeld, wheel_lock.LockNotHeld, wheel_lock.WrongThread):
        pass
    except (wheel_lock.LockNotAcquired, wheel_lock.TooManyLocks, wheel_lock.ContextClosed, wheel_lock.InvalidHandoff):
        pass
    except (wheel_lock.TimerStopped, wheel_lock.TooManyTimeouts):
        pass
    except wheel_lock.HolderChanged as error:
        print(error.lock_name)
    except wheel_lock.WheelLockError as error:
        print(error)


def numbers(context: LockContext) -> None:
    stats: wheel_lock.ContextStats = context.stats()
    counts: list[int] = [stats.held, stats.acquired, stats.released, stats.renewed, stats.lost, stats.unknown]
    more: list[int] = [stats.overdue, stats.waiting, stats.batches, stats.connects, *stats.lost_by_reason.values()]
    lags: list[float] = [stats.renewal_lag_p50_s, stats.renewal_lag_p99_s, stats.renewal_lag_max_s]
    slack: float | None = stats.renewal_slack_min_s
    print(counts, more, lags, slack, stats.renewal_time_left_min_s)
    health: wheel_lock.Health = context.health()
    print(health.ok, health.reasons, health.held, health.waiting, health.overdue, health.overdue_most, health.as_dict())
    print(health.longest_wait_s, health.last_confirmation_age_s, health.timer_late_s, health.watching)
    node: wheel_lock.NodeHealth
    for node in health.nodes:
        print(node.node, node.connected, node.overdue, node.last_confirmation_age_s, node.trouble)
    context.dump(sys.stderr)
    print(context.serve_debug())
    for held in context.held():
        one: wheel_lock.HeldLock = held
        print(one.name, one.age_s, one.remaining_s, one.timeout_s, one.renewals, one.overdue)
    again: wheel_lock.observe.ContextStats = stats
    print(again)


def seen(context: LockContext) -> None:
    lock = context.lock("order:42")
    one: wheel_lock.Holder | None = lock.holder()
    every: tuple[wheel_lock.Holder, ...] = lock.holders()
    for holder in every:
        who: tuple[str | None, str, float | None] = (holder.owner, holder.token_id, holder.remaining_s)
        print(who, holder.count, holder.mode)
    removed: tuple[wheel_lock.Holder, ...] = context.force_release("order:42", foreign=True)
    print(one, every, removed)
    context.dump()
    path: str = context.serve_debug()
    print(path, context.serve_debug("/run/orders.sock"))


def handed_over(context: LockContext) -> None:
    texts: dict[Name, str | None] = context.export_many(context.acquire_many(["a", "b"]).values())
    try:
        adopted: dict[Name, wheel_lock.Lock | None] = context.adopt_many(
            texts.values(), on_lost=report, thread_local=False
        )
    except wheel_lock.LocksNotAdopted as error:
        print(error.errors, error.locks)
    else:
        context.release_many(adopted.values())


def elected(leadership: wheel_lock.Leadership) -> None:
    print(leadership.fence, leadership.is_held, leadership.lost, leadership.remaining(), leadership.ended.is_set())
    leadership.raise_if_lost()


async def elected_task(leadership: wheel_lock.asyncio.Leadership) -> None:
    await leadership.ended.wait()


def leaders(context: LockContext) -> None:
    leader: wheel_lock.Leader = context.leader(
        "orders", 10.0, on_elected=elected, on_demoted=elected, on_error=print, renew_every=2.0
    )
    with leader.start():
        current: wheel_lock.Leadership | None = leader.leadership
        print(leader.name, leader.is_leader, current, leader.resign())
    leader.close(timeout=1.0)


async def leaders_in_tasks(context: LockContext) -> None:
    leader: wheel_lock.asyncio.Leader = context.asyncio.leader("orders", on_elected=elected_task)
    leader.start()
    current: wheel_lock.asyncio.Leadership | None = leader.leadership
    print(leader.name, leader.is_leader, current, leader.resign())
    await leader.close()


def timers() -> None:
    timer = wheel_lock.HashedWheelTimer(tick_ms=10, slots=1024)
    timeout: wheel_lock.Timeout = timer.new_timeout(lambda due: print(due.expired, due.cancelled), delay=2.5)
    cancelled: bool = timeout.cancel()
    print(cancelled, timeout.task, timeout.timer, timer.pending)
    left: set[wheel_lock.Timeout] = timer.stop()
    print(len(left), wheel_lock.HashedWheelTimer.shared().pending)


def in_place_of_redis_py() -> None:
    client = redis.Redis()
    lock = client.lock("order:42", timeout=30, lock_class=wheel_lock.redis_lock.Lock)
    with lock:
        print(lock.owned(), lock.locked(), lock.extend(1), lock.reacquire())
    own: wheel_lock.redis_lock.Lock = wheel_lock.redis_lock.Lock(client, "order:42", timeout=30)
    tasks = wheel_lock.redis_lock.AsyncLock(redis.asyncio.Redis(), "order:42", timeout=30)
    print(own, tasks)


def guarded(context: LockContext) -> None:
    database = sqlite3.connect(":memory:")
    wheel_lock.guards.create(database)
    with context.lock("account:42", fencing=True) as lock, database:
        wheel_lock.guards.guard(database, lock)
        fence: wheel_lock.guards.Fence = wheel_lock.guards.fence_of(lock)
        either: wheel_lock.guards.Fenced = ("account:42", 7)
        try:
            wheel_lock.guards.guard(database, either)
        except wheel_lock.StaleFence as error:
            seen: tuple[str, int, int | None] = (error.name, error.fence, error.newer)
            print(seen)
        except wheel_lock.NoFenceTable:
            print(fence.name, fence.fence)
        data = wheel_lock.guards.redis.Guarded(redis.Redis(), lock, remember=86_400.0)
        done: tuple[bool, int] = (data.set("balance", 90, "PX", 1000), data.hset("owner", {"name": "Ada"}))
        print(done, data.xadd("history", {"paid": 10}, id="*", maxlen=100), data.run("return ARGV[1]", ["key"], [1]))
        header: dict[str, str] = wheel_lock.guards.http.headers(lock)
        print(wheel_lock.guards.http.parse(header[wheel_lock.guards.http.HEADER]).fence, wheel_lock.guards.http.KEY)


async def guarded_in_tasks(context: LockContext, connection: object) -> None:
    async with context.asyncio.lock("account:42", fencing=True) as lock:
        await wheel_lock.guards.asyncio.create(connection)
        await wheel_lock.guards.asyncio.guard(connection, lock)
        data = wheel_lock.guards.redis.AsyncGuarded(redis.asyncio.Redis(), lock)
        done: tuple[bool, int] = (await data.set("balance", 90), await data.hset("owner", {"name": "Ada"}))
        print(done, await data.xadd("history", {"paid": 10}), await data.run("return 1", ["key"]))


def behind_http(asgi: wheel_lock.guards.http.AsgiApp, wsgi: wheel_lock.guards.http.WsgiApp) -> None:
    served: wheel_lock.guards.http.AsgiApp = wheel_lock.guards.http.AsgiFences(asgi, required={"POST"})
    also: wheel_lock.guards.http.WsgiApp = wheel_lock.guards.http.WsgiFences(wsgi)
    print(served, also)


def in_tests() -> None:
    clock = wheel_lock.testing.ManualClock(now=random.random())
    with wheel_lock.testing.fake_context(clock=clock, max_held=10) as context:
        assert_type(context, wheel_lock.testing.FakeContext)
        clock.advance(10.0)
        clock.jump(1.0)
        print(clock.now(), context.server.url, context.server.client())
    with wheel_lock.testing.EmbeddedServer() as server:
        print(server.port, server.password)
        server.close()
