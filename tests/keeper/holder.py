"""A process with locks and a keeper, for a fork server: ``main(url, where, act)``.

`where` is "child", or the path of a keeper's socket. It calls the act, and prints what that returns when the keeper has all
that it needs; then it waits to be killed. Records of the log from WARNING on follow, one a line.
"""

from __future__ import annotations

import ctypes
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis

from tests.support.lock_types import KINDS, make
from wheel_lock import LockContext, WheelLockError
from wheel_lock.engine.engine import Engine
from wheel_lock.engine.topology.cluster import ClusterRouter
from wheel_lock.keeper.keeping import Phase

TIMEOUT_S = 60.0
NAME = "held"

KEPT: list[object] = []
"""What is acquired: a lock that is collected is no longer renewed."""

SERVER: list[str] = []
"""The URL of the server."""

Act = Callable[[LockContext], str | None]


def ready(context: Any) -> None:
    """Wait until the keeper of a context has all that it needs."""
    for engine in getattr(context._engine, "engines", [context._engine]):
        while not _complete(engine):
            time.sleep(0.002)


def _complete(engine: Engine) -> bool:
    router, kept = engine.router, engine.keeping
    assert kept is not None
    if not isinstance(router, ClusterRouter):
        return kept.complete
    return kept._places.keys() == {renewer.node for renewer in router._masters} and router.known and kept.complete


def take(lock: Any) -> None:
    KEPT.append(lock)
    assert lock.acquire()


def exclusive(context: LockContext) -> None:
    take(context.lock(NAME))


def downgraded(context: LockContext) -> None:
    writing = context.rw_lock(NAME).write()
    take(writing)
    KEPT.append(writing.downgrade())


def braces(context: LockContext) -> None:
    take(context.lock("{held}"))
    take(context.lock("x" * 512))


def many(context: LockContext) -> None:
    locks = context.acquire_many([f"held:{number}" for number in range(2000)])
    KEPT.append(locks)
    assert all(locks.values())
    context.release_many(list(locks.values())[:1000])


def direct(context: LockContext) -> None:
    lock = context.lock(NAME)
    KEPT.append(lock)
    while lock.acquire() and not context._engine.direct.claim:
        lock.release()


def exported(context: LockContext) -> str:
    lock = context.lock(NAME)
    assert lock.acquire()
    ready(context)
    return lock.export()


def caller_token(context: LockContext) -> None:
    lock = context.lock(NAME)
    KEPT.append(lock)
    assert lock.acquire(token="mine")


def working(context: LockContext) -> None:
    """Threads that are in the middle of something at each moment."""

    def work(seed: int) -> None:
        chance = random.Random(seed)
        while True:
            name = f"held:{chance.randrange(6)}"
            try:
                if chance.random() < 0.2:
                    context.release_many(context.acquire_many([f"many:{seed}:{n}" for n in range(300)]).values())
                elif chance.random() < 0.5:
                    with context.lock(name, blocking_timeout=1.0):
                        pass
                else:
                    with context.fair_lock(f"fair:{name}", blocking_timeout=1.0):
                        pass
            except WheelLockError:
                pass

    exclusive(context)
    for seed in range(6):
        threading.Thread(target=work, args=[seed], daemon=True).start()


def alone(context: LockContext) -> None:
    """One thread on the direct path."""

    def work() -> None:
        while True:
            with context.lock(NAME):
                pass

    threading.Thread(target=work, daemon=True).start()
    while not context._engine.direct.claim:
        time.sleep(0.001)


def disconnected(context: LockContext) -> None:
    assert context._engine.keeping is not None
    session: Any = context._engine.keeping._session
    context._engine.keeping.phase = Phase.CLOSED  # no other one is made
    session.shutdown(2)


def executes(context: LockContext) -> None:
    print("ready", flush=True)
    os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(3600)"])


def loses_its_main_thread(context: LockContext) -> None:
    print("ready", flush=True)
    ctypes.CDLL(None).syscall(60, 0)  # exit, of this thread alone


def forks(context: LockContext) -> str:
    """A child that holds nothing lives on; return its number."""
    child = os.fork()
    while child == 0:
        time.sleep(3600)
    return str(child)


def forks_a_holder(context: LockContext) -> str:
    reader_fd, writer_fd = os.pipe()
    child = os.fork()
    if child == 0:
        take(context.lock("of the child"))
        ready(context)
        os.write(writer_fd, b"x")
        while True:
            time.sleep(3600)
    os.read(reader_fd, 1)
    return str(child)


def closes(context: LockContext) -> None:
    for _ in range(5):
        with LockContext.from_url(SERVER[0], release_on_crash=True) as another:
            exclusive(another)
            ready(another)
    exclusive(context)


def leaves(context: LockContext) -> None:
    """Close a context that leaves its locks to expire."""
    another = LockContext.from_url(SERVER[0], release_on_crash=True, release_on_close=False, timeout=TIMEOUT_S)
    take(another.lock("left"))
    ready(another)
    another.close()
    exclusive(context)


def drops(context: LockContext) -> None:
    """Drop a held lock of a context that leaves its locks to expire."""
    another = LockContext.from_url(SERVER[0], release_on_crash=True, release_on_close=False, timeout=TIMEOUT_S)
    KEPT.append(another)
    another.lock("left").acquire()
    ready(another)
    while another.stats().held:
        time.sleep(0.002)
    exclusive(context)


ACTS: dict[str, Act] = {
    act.__name__: act
    for act in (
        *(exclusive, downgraded, braces, many, direct, exported, caller_token, working, alone, disconnected),
        *(executes, loses_its_main_thread, forks, forks_a_holder, closes, leaves, drops),
    )
}
OF_HOLDERS = (disconnected, executes, loses_its_main_thread, forks, forks_a_holder)
"""Acts of a process that holds a lock, of which the keeper knows."""


def kinds(context: LockContext, name: str) -> None:
    for kind in KINDS:
        take(make(context, kind, f"{name}:{kind}"))


def new_context(url: str, **settings: Any) -> Any:
    servers = url.split(" ")
    if len(servers) == 1:
        return LockContext.from_url(url, **settings)
    return LockContext.quorum([redis.Redis.from_url(server) for server in servers], **settings)


def main(url: str, where: str, act: str, delay: str = "0") -> None:
    SERVER.append(url)
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(levelname)s %(message)s")
    place = True if where == "child" else where
    context = new_context(url, release_on_crash=place, release_delay=float(delay), timeout=TIMEOUT_S)
    verb, _, what = act.partition(" ")
    said: str | None = None
    if verb == "adopt":
        KEPT.append(context.adopt(what))
        said = "adopted"
    elif verb == "names":
        for name in what.split():
            take(context.lock(name, fencing=True))
    elif verb == "kinds":
        kinds(context, what)
    else:
        if ACTS[act] in OF_HOLDERS:
            exclusive(context)
            ready(context)
        said = ACTS[act](context)
    if act != "disconnected":
        ready(context)
    print(said or "ready", flush=True)
    while True:
        time.sleep(3600)
