"""How redis-py's Lock, renewed, ends without a release: losses, failures, cancellations, forks, exits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

from tests.redis_lock.callers import NAME, Party, client_of, ours
from tests.support.backend import LONG_S, REFUSED_S, Backend, connected
from tests.support.event_loops import ended, until
from tests.support.programs import run_python
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LockLost, LossReason, context

pytestmark = pytest.mark.servers("real")


# Losses


@pytest.mark.parametrize("verb", ["release", "extend", "reacquire"])
@pytest.mark.parametrize("known", [True, False], ids=["noticed by a renewal", "not yet noticed"])
def test_what_is_lost_is_not_owned(party: Party, real: Backend, verb: str, known: bool) -> None:
    lock = party.ours(timeout=1.5 if known else 30)
    lock.acquire()
    real.view.set(NAME, "a stranger")
    if known:
        eventually(lambda: party.context.stats().lost, LONG_S)
    with pytest.raises(LockNotOwnedError) as caught:
        getattr(lock, verb)(*[10] if verb == "extend" else [])
    assert str(caught.value) == f"Cannot {verb} a lock that's no longer owned"
    assert caught.value.lock_name == NAME
    assert isinstance(caught.value.__cause__, LockLost)
    assert caught.value.__cause__.reason is LossReason.TAKEN
    assert real.view.get(NAME) == b"a stranger"
    assert (lock.token is None) is (verb == "release")


def test_a_block_may_end_quietly(party: Party, real: Backend, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(LockNotOwnedError), party.ours(timeout=30):
        real.view.delete(NAME)
    with party.ours(timeout=30, raise_on_release_error=False):
        real.view.delete(NAME)
    with party.ours(timeout=30, raise_on_release_error=False) as lock:
        lock.release()
    said = [record.message for record in caplog.records if record.name.startswith("redis.")]
    assert said == ["Lock was unlocked or no longer owned when exiting context manager."] * 2


# Time that is added


def test_adding_nothing_asks_whether_it_is_owned(client: redis.Redis, real: Backend) -> None:
    lock = ours(client, timeout=30)
    lock.acquire()
    assert lock.extend(0)
    real.view.delete(NAME)
    with pytest.raises(LockNotOwnedError):
        lock.extend(0)


# Failures are not refusals


def test_a_server_that_does_not_answer_is_a_timeout(fresh: Backend, fresh_redis: RedisServer) -> None:
    client = fresh.client()
    setattr(client.connection_pool, context._SHARED, connected(fresh.context_of(client, response_timeout=REFUSED_S)))
    lock = ours(client, timeout=30)
    lock.acquire()
    fresh_redis.pause()
    with pytest.raises(redis.TimeoutError) as caught:
        lock.release()
    assert not isinstance(caught.value, LockError)
    fresh_redis.resume()
    with lock:  # the release has been carried out after all
        assert lock.owned()


def test_a_refusal_by_the_server_is_the_error_that_redis_py_has_for_it(fresh: Backend) -> None:
    fresh.view.execute_command("ACL", "SETUSER", "app", "on", ">secret", "~app:*", "&*", "+@all")
    allowed = fresh.client(username="app", password="secret")
    with pytest.raises(redis.exceptions.NoPermissionError):
        ours(allowed, timeout=30).acquire()
    with pytest.raises(redis.AuthenticationError):
        ours(fresh.client(username="app", password="wrong"), timeout=30).acquire()
    fresh.view.config_set("maxmemory", 1)
    with pytest.raises(redis.exceptions.OutOfMemoryError):
        ours(allowed, timeout=30, name="app:1").acquire()


# Tasks that are cancelled, or release for each other, and several event loops


@pytest.mark.parametrize("thread_local", [True, False])
async def test_any_task_may_release_what_another_has_acquired(real: Backend, thread_local: bool) -> None:
    async with client_of(real) as client:
        lock = ours(client, timeout=30, thread_local=thread_local)
        await asyncio.create_task(lock.acquire())
        waiting = asyncio.create_task(lock.acquire())
        await until(lambda: LockContext.shared(client).stats().waiting)
        await lock.release()
        assert await waiting
        assert await lock.owned()
        await lock.release()


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_a_release_that_is_cancelled_can_be_repeated(real: Backend, turns: int) -> None:
    async with client_of(real) as client:
        lock = ours(client, timeout=30)
        for _ in range(10):
            await lock.acquire()
            releasing = asyncio.create_task(lock.release())
            for _ in range(turns):
                await asyncio.sleep(0)
            releasing.cancel()
            await ended(releasing)
            if lock.local.token is not None:
                await lock.release()
            assert not await lock.locked()
            assert lock.local.token is None
        assert LockContext.shared(client).stats().lost == 0


async def test_a_release_does_not_take_the_next_ones_token(real: Backend) -> None:
    async with client_of(real) as client:
        lock = ours(client, timeout=30, thread_local=False)
        await lock.acquire()
        mine, lock.do_release = lock.do_release, None

        async def slowly(token: Any) -> None:
            await mine(token)
            assert await lock.acquire()  # another task, through the same object, before the release has returned

        lock.do_release = slowly
        await lock.release()
        assert await lock.owned()
        await mine(lock.local.token)


def test_a_lock_goes_on_to_the_next_event_loop_if_it_is_not_bound_to_one(real: Backend) -> None:
    client = redis.asyncio.Redis(host="127.0.0.1", port=real.port, single_connection_client=False)
    lock = ours(client, timeout=30, thread_local=False)
    assert asyncio.run(lock.acquire())
    asyncio.run(lock.release())
    assert not real.view.exists(NAME)
    LockContext.shared(client).close()


# The process


BEGINNING = """
import os, sys, redis
from wheel_lock.redis_lock import Lock
client = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]))
"""

FORKS = """
lock = client.lock("order:42", timeout=2, lock_class=Lock)
lock.acquire()
child = os.fork()
if child == 0:
    try:
        lock.release()
    except redis.exceptions.LockNotOwnedError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert lock.owned()
lock.release()
"""

ENDS = """
kept = [client.lock(name, timeout=timeout, lock_class=Lock) for name, timeout in (("lasting", 30), ("long", None))]
assert all(lock.acquire() for lock in kept)
"""


def run(program: str, port: int) -> None:
    run_python("-W", "error", "-W", "ignore::DeprecationWarning", "-c", BEGINNING + program, str(port))


def test_a_forked_child_cannot_release_what_its_parent_holds(real: Backend) -> None:
    run(FORKS, real.port)


def test_what_is_not_released_outlives_its_process_as_in_redis_py(real: Backend) -> None:
    run(ENDS, real.port)
    assert real.view.pttl("long") == -1
    assert 0 < real.view.pttl("lasting") <= 30_000
