"""The read-write lock, for tasks: what differs from threads, and what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.aio.support import Run, at_once, until, waiting
from tests.family.support import NAME, traces, zmembers
from tests.redis.support import LONG_S, Backend
from tests.support.proxy import TcpProxy
from wheel_lock import LockContext, LockLost, LockNotHeld, LossReason, UpgradeRefused, WheelLockError, WrongThread


def members(backend: Backend) -> list[bytes]:
    return sorted(member[:1] for member in zmembers(backend))


def test_readers_together_and_a_writer_alone(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        lock = context.asyncio.rw_lock(NAME, blocking_timeout=LONG_S)
        readers = writers = most = 0

        async def read() -> None:
            nonlocal readers, most
            async with lock.read():
                readers += 1
                most = max(most, readers)
                assert writers == 0
                await asyncio.sleep(0.03)  # longer than the grant of the next takes
                readers -= 1

        async def write() -> None:
            nonlocal writers
            async with lock.write():
                writers += 1
                assert (readers, writers) == (0, 1)
                await asyncio.sleep(0)
                writers -= 1

        await asyncio.gather(*[read() if number % 4 else write() for number in range(24)])
        assert most > 1
        assert context.stats().held == 0
        assert members(backend) == []

    run(main())


def test_each_half_nests_and_reading_nests_in_writing(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        lock = context.asyncio.rw_lock(NAME)
        async with lock.write() as writer:
            assert at_once(lock.write().acquire()) is True
            async with lock.read() as reader:
                assert (writer.count, reader.count) == (2, 1)
            assert at_once(writer.release()) is False
        async with lock.read() as reader, lock.read():
            assert reader.count == 2
            with pytest.raises(UpgradeRefused):
                at_once(lock.write().acquire())
        assert not backend.view.exists(NAME)

    run(main())


def test_another_task_may_not_release_or_downgrade(run: Run, context: LockContext) -> None:
    async def main() -> None:
        async with context.asyncio.rw_lock(NAME).write() as writer:

            async def intrude() -> None:
                for change in (writer.release, writer.downgrade):
                    with pytest.raises(WrongThread, match="another task"):
                        await change()

            await asyncio.create_task(intrude())
            assert writer.is_held

    run(main())


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_from_writing_to_reading(
    run: Run, backend: Backend, context: LockContext, other: LockContext, way: str
) -> None:
    async def main() -> None:
        lock = context.asyncio.rw_lock(NAME)
        writer = lock.write()
        await writer.acquire()
        others = other.asyncio.rw_lock(NAME, blocking_timeout=LONG_S).write()
        behind = asyncio.create_task(others.acquire())
        await until(lambda: b"i" in members(backend))
        if way == "downgrade":
            reader = await writer.downgrade()
        else:
            reader = lock.read()
            await reader.acquire()
            assert await writer.release() is True
        assert (writer.is_held, writer.count) == (False, 0)
        assert (reader.is_held, reader.count) == (True, 1)
        assert await reader.owned()
        assert members(backend) == [b"i", b"r"]
        assert not behind.done()
        assert await reader.release() is True
        assert await behind

    async def drive() -> None:
        await main()
        await other.asyncio.close()

    run(drive())


def test_a_downgrade_of_what_was_lost_says_so(run: Run, backend: Backend, context: LockContext) -> None:
    async def main() -> None:
        writer = context.asyncio.rw_lock(NAME).write()
        await writer.acquire()
        backend.view.delete(NAME)
        with pytest.raises(LockLost) as caught:
            await writer.downgrade()
        assert caught.value.reason is LossReason.KEY_GONE
        with pytest.raises(LockLost):
            await writer.release()
        assert context.stats().held == 0
        assert not backend.view.exists(NAME)

    run(main())


@pytest.mark.parametrize("lost", ["to_server", "to_client"])
def test_a_downgrade_that_is_cancelled_keeps_nothing(run: Run, real: Backend, lost: str) -> None:
    proxy = real.proxy()
    context = real.context_through(proxy, timer=real.timer())

    async def main() -> None:
        writer = context.asyncio.rw_lock(NAME).write()
        await writer.acquire()
        getattr(proxy, lost).delay_s = math.inf
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await writer.downgrade()
        getattr(proxy, lost).delay_s = 0.0
        await until(lambda: not traces(real), message="nothing is left")
        assert context.stats().held == 0
        assert not writer.is_held
        with pytest.raises((LockNotHeld, LockLost)):
            await writer.release()
        assert await context.asyncio.rw_lock(NAME).write().acquire(blocking=False)

    run(main())


@pytest.mark.parametrize("way", ["downgrade", "release"])
def test_a_downgrade_during_an_extension_harms_nobody(run: Run, real: Backend, proxy: TcpProxy, way: str) -> None:
    context = real.context_through(proxy, timer=real.timer())

    async def main() -> None:
        bystander = context.asyncio.lock("bystander")
        lock = context.asyncio.rw_lock(NAME)
        writer, reader = lock.write(), lock.read()
        await bystander.acquire()
        await writer.acquire()
        if way == "release":
            await reader.acquire()
        proxy.to_client.delay_s = math.inf
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await writer.extend(5.0)

        async def answers_come_soon() -> None:
            await asyncio.sleep(0.05)
            proxy.to_client.delay_s = 0.0

        soon = asyncio.create_task(answers_come_soon())
        try:
            await (writer.downgrade() if way == "downgrade" else writer.release())
        except LockLost:
            pytest.fail("nothing has been lost")
        except WheelLockError:
            pass  # that it is being extended is a reason not to
        await soon
        assert bystander.lost is None
        assert bystander.is_held
        await bystander.release()

    run(main())


def test_a_reader_that_is_woken_while_many_wait_lets_the_others_in_behind_it(
    run: Run, backend: Backend, context: LockContext, other: LockContext
) -> None:
    async def main() -> None:
        async with other.asyncio.rw_lock(NAME).write():
            inside = asyncio.Barrier(10)

            async def read() -> None:
                async with context.asyncio.rw_lock(NAME, blocking_timeout=LONG_S).read():
                    await inside.wait()  # all of them at once

            tasks = [asyncio.create_task(read()) for _ in range(10)]
            await waiting(context, 10)
        async with asyncio.timeout(LONG_S):
            await asyncio.gather(*tasks)

    run(main())
