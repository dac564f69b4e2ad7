"""The ACL lines of the page about rights are enough for what they are given for, and reach nothing else."""

from __future__ import annotations

import re
import threading

import pytest
import redis

from tests.site.pages import ROOT
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockServerError


def line(heading: str) -> list[str]:
    """The words of the ACL line under a heading of the page."""
    text = (ROOT / "docs" / "operations" / "rights.md").read_text()
    found = re.search(rf"^## {heading}\n.*?```text\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].split()


def as_user(server: RedisServer, heading: str) -> LockContext:
    with server.client() as client:
        client.execute_command(*line(heading))
    return LockContext(redis.Redis(port=server.port, username="billing", password="secret"))


def wakes(context: LockContext, server: RedisServer) -> None:
    """A release in one context wakes a waiter of another one, long before it would look by itself."""
    lock, woken = context.lock("billing:1", timeout=60.0), threading.Event()
    lock.acquire()
    other = LockContext.from_url(f"redis://billing:secret@127.0.0.1:{server.port}", fallback_interval=600.0)

    def wait() -> None:
        with other.lock("billing:1", timeout=60.0):
            woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: other.stats().waiting == 1)
    lock.release()
    assert woken.wait(60.0)
    waiter.join()
    other.close()


def test_the_line_for_plain_locks(fresh_redis: RedisServer) -> None:
    with as_user(fresh_redis, "Plain locks") as context:
        lock = context.lock("billing:1", fencing=True)
        lock.acquire()
        context.adopt(lock.export()).release()
        with context.multi_lock(["billing:1", "billing:2"]):
            pass
        context.release_many(context.acquire_many(["billing:1", "billing:2"]).values())
        wakes(context, fresh_redis)
        with pytest.raises(LockServerError), context.lock("payroll:1"):
            pass
        with pytest.raises(LockServerError), context.semaphore("billing:3", 2):
            pass


def test_the_line_for_all_kinds(fresh_redis: RedisServer) -> None:
    with as_user(fresh_redis, "All kinds of lock") as context:
        for name in ("billing:1", "billing:{user}:1"):
            for lock in (
                context.lock(name, fencing=True),
                context.reentrant_lock(name, fencing=True),
                context.fair_lock(name, fencing=True),
                context.rw_lock(name).read(),
                context.rw_lock(name).write(),
            ):
                with lock:
                    pass
        permit = context.semaphore("billing:permits", 2)
        permit.set_permits(3)
        with permit:
            pass
        wakes(context, fresh_redis)
        with pytest.raises(LockServerError), context.rw_lock("payroll:1").read():
            pass
