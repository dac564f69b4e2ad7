"""Faults in programs of asyncio: a blocked or closed event loop, the end of the program."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.redis.test_exit import Script
from tests.support.event_loops import until
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock import LockContext, LossReason

pytestmark = [pytest.mark.servers("real"), pytest.mark.settings(own_timer=True)]


# A blocked event loop


@pytest.mark.loops("asyncio", "uvloop")
async def test_renewal_goes_on_while_the_event_loop_is_blocked(redis_server: RedisServer, context: LockContext) -> None:
    losses: list[object] = []
    lock = context.asyncio.lock("order:42", timeout=1.0, renew_every=0.1, cancel_on_lost=True)
    lost = context.asyncio.lock("lost", timeout=1.0, renew_every=0.1, on_lost=losses.append)
    waiter = asyncio.create_task(context.asyncio.lock("order:42").acquire())
    async with lock:
        await lost.acquire()
        redis_server.client().delete("lost")
        looks = []
        until_s = time.monotonic() + 1.2
        while time.monotonic() < until_s:  # for longer than a timeout nothing else runs on the loop
            looks.append(lock.is_held and redis_server.client().get("order:42") == lock.token)
            time.sleep(0.02)
        assert all(looks)
        assert lock.renewals >= 4
        assert lost.lost is LossReason.KEY_GONE
        assert losses == []
        await until(lambda: losses)
    assert await waiter


# The end of the program

ASYNC_BEGINNING = """
import asyncio
async def hold(name, seconds):
    async with context.asyncio.lock(name, cancel_on_lost=True):
        await asyncio.sleep(seconds)
async def busy():
    tasks.extend(asyncio.create_task(hold(f"order:{number % 3}", 60.0)) for number in range(6))
    while context.stats().held < 3 or context.stats().waiting < 3:
        await asyncio.sleep(0.001)
tasks = []
"""

ENDINGS = {
    "main() returns": "async def main():\n    await busy()\n    ready()\nasyncio.run(main())",
    "the loop is closed in the middle": "loop = asyncio.new_event_loop()\nloop.set_exception_handler(lambda *_: None)\n"
    "loop.run_until_complete(busy())\nready()\nloop.close()",
}


@pytest.mark.parametrize("caught", [True, False])
def test_a_program_that_is_interrupted_frees_its_locks(redis_server: RedisServer, caught: bool) -> None:
    asked = "asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)\n"
    text = f"async def main():\n    {asked}    await busy()\n    ready()\n    await asyncio.sleep(60.0)\n"
    ending = "try:\n    asyncio.run(main())\nexcept (asyncio.CancelledError, KeyboardInterrupt):\n    sys.exit(3)\n"
    # A program that reads its orders would be interrupted in that: ready() must not wait here.
    orders = "def ready():\n    print('ready', flush=True)\n"
    script = Script(redis_server.port, ASYNC_BEGINNING + orders + text + ending)
    script.signal(signal.SIGTERM if caught else signal.SIGINT)
    code, errors, _ = script.end()
    assert (code, errors) == (3, "")
    assert redis_server.client().keys() == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_that_ends_with_tasks_that_hold_and_wait_ends_quickly_and_frees_its_locks(
    redis_server: RedisServer, ending: str
) -> None:
    script = Script(redis_server.port, ASYNC_BEGINNING + ENDINGS[ending])
    code, errors, took_s = script.end()
    assert code == 0, errors
    assert [
        line for line in errors.splitlines() if "destroyed but it is pending" not in line and "<Task" not in line
    ] == []
    assert took_s < 3.0
    eventually(lambda: redis_server.admin.keys() == [], 10.0)
