"""A program under gevent: ``python -m tests.greenlets.program WHEN SCENE URL``. It ends with 0 where the scene was right.

WHEN says when gevent patches: "early" is before all other imports, "late" is after them, "running" is when the engine is
at work already. A process of tests/support/fork_server.py imports this with "early" or something else in the place of WHEN.
"""

from __future__ import annotations

import faulthandler
import sys
import warnings
from typing import Any

import gevent
from gevent import monkey

from tests.greenlets.stall_detector import BUSY, ENDS, RECONNECTS, RENEWS, StallDetector


def patch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", monkey.MonkeyPatchWarning)  # that it is late
        monkey.patch_all()


if sys.argv[1] == "early":
    patch()

import atexit
import gc
import logging
import os
import signal
import threading
import time

import redis

left: list[str] = []  # in a scene that must not be there when the interpreter ends
last: list[StallDetector] = []  # beside the end itself


@atexit.register
def _look_at_last() -> None:
    """Registered before anything of the library's, so it is called after that.

    The library waits half a second for threads with hubs. Where the machine has kept every thread of this process from
    running meanwhile, one may be left, and may take the process down in a moment.
    """
    unfinished = left + [f"a thread with a hub: {thread.name}" for thread in list(_with_hubs)]
    if unfinished:
        starved = any(detector.starved for detector in last)
        print("starved:" if starved else "failed:", "it has ended beside", *unfinished, file=sys.stderr, flush=True)
        os._exit(BUSY if starved else 1)


import wheel_lock
from wheel_lock import LossReason, LostEvent
from wheel_lock.redis_lock import Lock as RedisLock
from wheel_lock.runtime import native
from wheel_lock.runtime.greenlets import _with_hubs
from wheel_lock.testing import settle

LIMIT_S = 20.0
WHEN: str
URL: str
context: wheel_lock.LockContext
view: redis.Redis
kept: wheel_lock.Lock  # since before the patch
made_before_the_patch: Any
made: dict[str, wheel_lock.Lock] = {}  # and kept
alive: list[dict[str, Any]] = []


def compute(seconds: float) -> None:
    """Compute without letting any other greenlet of this thread run."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def eventually(predicate: Any) -> Any:
    with gevent.Timeout(LIMIT_S):
        while not (value := predicate()):
            gevent.sleep(0.005)
    return value


def finish(*greenlets: Any) -> list[Any]:
    """Return what they have returned, or raise what they have raised."""
    gevent.joinall(greenlets, timeout=LIMIT_S, raise_error=True)
    assert all(greenlet.ready() for greenlet in greenlets)
    return [greenlet.value for greenlet in greenlets]


def hold(name: str, let_go: Any, **options: Any) -> Any:
    """Return a greenlet that holds a lock, as soon as it does."""
    held = gevent.event.Event()

    def holder() -> None:
        with context.lock(name, **options):
            held.set()
            let_go.wait()

    greenlet = gevent.spawn(holder)
    assert held.wait(LIMIT_S)
    return greenlet


def hang_up() -> None:
    """Have the server close all connections of the library."""
    for client in view.client_list():
        if client["name"].startswith("wheel_lock:"):
            view.client_kill_filter(_id=client["id"])


def nothing_is_left(name: str) -> None:
    eventually(lambda: context.stats().waiting == 0 and context.stats().held == 0 and not view.exists(name))
    with context.lock(name, blocking=False):
        pass


# -- scenes ----------------------------------------------------------------------------------------------------------


def server_and_transport_do_not_matter() -> None:
    """For TLS and unix sockets: more data than one read takes, both ways."""
    locks = context.acquire_many([f"{'long name ' * 40}{number}" for number in range(500)], timeout=1.5)
    assert all(locks.values())
    compute(1.6)
    hang_up()
    compute(0.5)
    assert all(lock is not None and lock.is_held for lock in locks.values())
    context.release_many(locks.values())


def a_lock_outlives_a_greenlet_that_computes() -> None:
    losses: list[LostEvent] = []
    with context.lock("order", timeout=1.2, renew_every=0.2, on_lost=losses.append) as lock:
        compute(1.4)
        assert lock.is_held
        assert lock.renewals >= 2
        assert view.get("order") == lock.token
    assert not losses
    assert not view.exists("order")
    if WHEN == "running":
        assert kept.is_held


def only_the_greenlet_that_waits_is_suspended() -> None:
    let_go = gevent.event.Event()
    holder = hold("order", let_go)
    lock = context.lock("order", thread_local=False)
    waiter = gevent.spawn(lock.acquire)
    eventually(lambda: context.stats().waiting == 1)
    assert not waiter.ready()
    before = time.monotonic()
    assert not context.lock("order", blocking_timeout=0.8).acquire()
    assert time.monotonic() - before >= 0.79
    let_go.set()
    assert finish(holder, waiter)[1]
    lock.release()


def a_wait_that_is_cancelled_leaves_nothing() -> None:
    let_go = gevent.event.Event()
    holder = hold("order", let_go)
    ended = []

    def wait() -> None:
        try:
            context.lock("order").acquire()
        except BaseException as error:
            ended.append(type(error))
            raise

    def wait_for_a_moment() -> None:
        with gevent.Timeout(0.05, False):
            wait()

    finish(gevent.spawn(wait_for_a_moment))
    killed = [gevent.spawn(wait) for _ in range(5)]
    eventually(lambda: context.stats().waiting == 5)
    gevent.killall(killed, timeout=LIMIT_S)
    assert ended == [gevent.Timeout] + 5 * [gevent.GreenletExit]
    let_go.set()
    finish(holder)
    nothing_is_left("order")


def each_greenlet_is_an_owner() -> None:
    lock, reentrant = context.lock("order"), context.reentrant_lock("again")
    with lock, reentrant, reentrant:
        for method in (lock.release, reentrant.release):
            try:
                finish(gevent.spawn(method))
            except wheel_lock.WrongThread:
                continue
            raise AssertionError(method)
        assert finish(gevent.spawn(lock.acquire, blocking=False), gevent.spawn(reentrant.acquire, blocking=False)) == [
            False,
            False,
        ]
        assert reentrant.count == 2
        assert finish(gevent.spawn(lambda: reentrant.count)) == [0]
    for redis_lock in (made_before_the_patch, redis.Redis.from_url(URL).lock("x", timeout=30, lock_class=RedisLock)):
        assert redis_lock.acquire()
        assert redis_lock.owned()
        assert finish(gevent.spawn(redis_lock.owned), gevent.spawn(lambda its=redis_lock: its.local.token)) == [
            False,
            None,
        ]
        redis_lock.release()


def the_main_greenlet_is_one_owner_before_and_after_there_is_a_hub() -> None:
    lock = context.lock("order")
    lock.acquire()
    gevent.sleep(0)
    lock.release()

    def in_a_thread() -> bool:
        with context.lock("order") as lock:
            gevent.sleep(0.01)  # makes a hub for this thread
            assert gevent.get_hub() is not main
            return lock.is_held

    main = gevent.get_hub()
    assert main.threadpool.apply(in_a_thread)


def a_lease_ends_with_its_greenlet() -> None:
    warnings.simplefilter("ignore", ResourceWarning)
    losses: list[LostEvent] = []
    lock = context.lock("order", timeout=0.6, on_lost=losses.append)
    finish(gevent.spawn(lock.acquire))
    eventually(lambda: losses)
    assert losses[0].reason is LossReason.ABANDONED


def a_callback_uses_locks() -> None:
    done = threading.Event()

    def tell(event: LostEvent) -> None:
        with context.lock("another"):
            time.sleep(0.01)  # which is gevent's
        done.set()

    lock = context.lock("order", timeout=0.6, on_lost=tell)
    lock.acquire()
    view.delete("order")
    assert done.wait(LIMIT_S)
    assert lock.lost is LossReason.KEY_GONE


def several_hubs_wait() -> None:
    inside = 0

    def take_turns() -> None:
        nonlocal inside
        for _ in range(5):
            with context.lock("order"):
                inside += 1
                assert inside == 1
                gevent.sleep(0.001)
                inside -= 1

    def in_a_thread() -> int:
        greenlets = [gevent.spawn(take_turns) for _ in range(5)]
        finish(*greenlets)
        return len(greenlets)

    pool = gevent.get_hub().threadpool
    jobs = [pool.spawn(in_a_thread) for _ in range(3)]
    in_a_thread()
    assert [job.get(timeout=LIMIT_S) for job in jobs] == [5, 5, 5]


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def connections_are_made_anew_while_a_greenlet_computes() -> None:
    with context.lock("order", timeout=1.0) as lock:
        many = [context.lock(f"order:{number}", timeout=1.0) for number in range(20)]
        for other in many:
            other.acquire()
        before = 0
        for number in range(9):
            hang_up()
            compute(0.15)
            assert all(each.is_held for each in [lock, *many])
            if number == 2:
                before = descriptors()
        assert descriptors() <= before + 4  # another connection may be on its way
        for other in many:
            other.release()


def a_connection_ends_beside_a_greenlet_that_computes_with_what_its_end_waits_for() -> None:
    """A lock of gevent's is passed on by the hub, which does not run; so nothing of the engine may wait for one."""
    guard = threading.Lock()
    ended_on: list[bool] = []
    refusals = 0

    class Guarded(redis.Connection):
        def disconnect(self, *arguments: Any, **options: Any) -> None:
            ended_on.append(guarded.timer.in_thread)
            with guard:
                super().disconnect(*arguments, **options)  # type: ignore[no-untyped-call]

        def __del__(self) -> None:
            """Not redis-py's, which disconnects: the collector runs finalisers on any thread, the engine's too."""

        def on_connect_check_health(self, *arguments: Any, **options: Any) -> None:
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise redis.ConnectionError("not yet")
            super().on_connect_check_health(*arguments, **options)

    client = redis.Redis.from_pool(redis.ConnectionPool.from_url(URL, connection_class=Guarded))
    with wheel_lock.LockContext(client) as guarded, guarded.lock("order", timeout=1.0) as lock:
        with guard:
            hang_up()
            compute(1.2)
            assert lock.is_held
        eventually(lambda: ended_on)  # redis-py hears of it, if later
        refusals = 2
        hang_up()
        eventually(lambda: guarded.stats().connects == 3)
    gc.collect()
    assert not any(ended_on)


def an_attempt_at_a_connection_is_ended_by_a_time_limit() -> None:
    """gevent.Timeout is not an Exception."""
    asked = 0

    class Slow(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            nonlocal asked
            asked += 1
            if asked in (2, 3):
                with gevent.Timeout(0.01):
                    gevent.sleep(LIMIT_S)
            return "default", ""

    client = redis.Redis.from_url(URL, credential_provider=Slow())
    with wheel_lock.LockContext(client) as slow, slow.lock("order", timeout=5.0) as lock:
        hang_up()
        eventually(lambda: asked == 4 and slow.stats().connects == 2)
        assert lock.is_held


def the_one_thread_runs_nothing_that_waits() -> None:
    """Nothing of gevent's, nor what keeps locks of its own: logging, the import system, threads, redis-py's connections."""
    seen: set[tuple[str, str]] = set()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    losses: list[LostEvent] = []
    watched = wheel_lock.LockContext.from_url(URL, track_acquisitions=True)
    gc.disable()  # it runs finalisers of whatever it finds, on whichever thread it is started by
    watched.timer.post(lambda: sys.setprofile(note))
    with watched.lock("order", timeout=0.6, fencing=True, on_lost=losses.append) as lock:
        lock.extend(1.0)
        let_go = gevent.event.Event()
        holder = hold("waited for", let_go)
        waited_for = watched.lock("waited for", thread_local=False)
        waiter = gevent.spawn(waited_for.acquire)
        eventually(lambda: watched.stats().waiting == 1)
        let_go.set()
        finish(holder, waiter)
        waited_for.release()
        hang_up()
        eventually(lambda: watched.stats().connects == 2)
        before = lock.renewals
        eventually(lambda: lock.renewals > before)
        with watched.rw_lock("table").write(), watched.semaphore("seats", 2), watched.multi_lock(["a", "b"]):
            pass
        watched.release_many(watched.acquire_many([f"shard:{number}" for number in range(200)]).values())
        lost = watched.lock("lost", timeout=0.6, on_lost=losses.append)
        lost.acquire()
        view.delete("lost")
        eventually(lambda: losses)
        done = gevent.event.Event()
        watched.timer.new_timeout(lambda timeout: done.set(), 0.01)
        assert done.wait(LIMIT_S)
    watched.close()
    watched.timer.post(lambda: sys.setprofile(None))
    settle(watched.timer)
    assert any(file.endswith("renewal/renewer.py") for file, _ in seen)
    homes = [os.path.dirname(str(module.__file__)) for module in (gevent, logging)]
    homes += [str(module.__file__) for module in (threading, redis.connection)]
    waiting = [place for place in seen if place[0].startswith((*homes, "<frozen importlib"))]
    assert not waiting, waiting


def records_are_logged_from_a_thread_and_from_greenlets() -> None:
    """The handlers' locks are gevent's by now, and the notifier's thread contends for them."""
    seen: list[str] = []

    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (gevent.sleep if "greenlet" in record.msg else native.sleep)(0.0005)
            seen.append(record.getMessage())

    logger = logging.getLogger("wheel_lock")
    logger.addHandler(Slow())
    logger.setLevel(logging.INFO)

    def from_a_greenlet(name: int) -> None:
        for number in range(50):
            logger.info("greenlet %d says %d", name, number)

    def from_the_notifier(number: int) -> None:
        logger.info("notifier says %d", number)

    greenlets = [gevent.spawn(from_a_greenlet, name) for name in range(3)]
    for number in range(50):
        context.timer.new_timeout(lambda timeout, number=number: from_the_notifier(number), 0.001 * number)  # type: ignore[misc]
        gevent.sleep(0)
    finish(*greenlets)
    eventually(lambda: len(seen) == 200)
    assert [text for text in seen if text.startswith("notifier")] == [f"notifier says {number}" for number in range(50)]


def a_forked_child_starts_anew() -> None:
    lock = context.lock("order", timeout=0.6)
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            with StallDetector():
                assert lock.lost is LossReason.FORKED
                assert not context.lock("order", blocking=False).acquire()
                with context.lock("child", timeout=0.6) as own:
                    compute(0.8)
                    assert own.is_held
            os._exit(0)
        except BaseException:
            logging.exception("in the child")
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == BUSY:
        os._exit(BUSY)
    assert status == 0
    assert lock.is_held
    lock.release()


def a_signal_releases_a_lock() -> None:
    lock = context.lock("order", thread_local=False)
    lock.acquire()
    signal.signal(signal.SIGUSR1, lambda number, frame: lock.release())
    sender = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    sender.start()
    eventually(lambda: not lock.is_held)
    assert not view.exists("order")
    sender.join()


def all_kinds_of_calls() -> None:
    held = context.acquire_many([f"shard:{number}" for number in range(2000)])
    assert all(held.values())
    context.release_many(held.values())
    with context.rw_lock("table").write(), context.semaphore("seats", 2), context.multi_lock(["a", "b"]):
        pass
    lock = context.lock("order")
    lock.acquire()
    lock.extend(40.0)
    text = lock.export()
    finish(gevent.spawn(lambda: context.adopt(text).release()))
    assert not lock.locked()


def it_ends_while_it_holds() -> None:
    lock = made.setdefault("order", context.lock("order"))
    lock.acquire()
    gevent.spawn(hold, "another", gevent.event.Event())
    eventually(lambda: context.stats().held == 2)
    print(time.monotonic(), flush=True)


def it_ends_without_its_server() -> None:
    lock = made.setdefault("order", context.lock("order"))
    lock.acquire()
    view.shutdown(nosave=True)
    gevent.sleep(0.3)
    print(time.monotonic(), flush=True)


def it_ends_while_a_thread_clears_up() -> None:
    """One that wakes up in its hub while the interpreter ends takes the process down, more often than not unseen."""
    left.append("a thread that clears up")

    def take_a_while() -> None:  # and is waited for when the hub is destroyed
        native.sleep(0.2)
        left.clear()

    class Busy(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str, str]:
            gevent.get_hub().threadpool.spawn(take_a_while)
            return "default", ""

    with wheel_lock.LockContext(redis.Redis.from_url(URL, credential_provider=Busy())) as busy, busy.lock("order"):
        pass
    last.append(StallDetector(ENDS))
    print(time.monotonic(), flush=True)


def main(when: str, scene: str, url: str) -> None:
    global WHEN, URL, context, view, kept, made_before_the_patch
    faulthandler.enable()
    faulthandler.dump_traceback_later(60, exit=True)
    WHEN, URL = when, url
    naps = RECONNECTS if "connection" in scene or "transport" in scene else RENEWS
    detector: StallDetector | None = None
    if when == "running":
        with wheel_lock.LockContext.from_url(url) as first, first.lock("first"):
            pass
        detector = StallDetector(naps)
        other = wheel_lock.LockContext.from_url(url)
        kept = other.lock("kept", timeout=0.6)
        kept.acquire()
    made_before_the_patch = redis.Redis.from_url(url).lock("made before", timeout=30, lock_class=RedisLock)
    if when != "early":
        patch()
    context = wheel_lock.LockContext.from_url(url)
    view = redis.Redis.from_url(url, socket_timeout=LIMIT_S)
    with detector or StallDetector(naps):
        globals()[scene]()
        if not scene.startswith("it_ends"):
            context.close()
    alive.append(locals())  # what is at module level where others write such programs


if __name__ == "__main__":
    main(*sys.argv[1:4])
