"""Locks that can be acquired again, in tasks: what cancellations, losses and closed coroutines leave behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.backend import LONG_S, Backend
from tests.support.event_loops import Run, at_once
from tests.support.lock_types import NAME
from wheel_lock import LockContext, LockLost, LossReason, UpgradeRefused

pytestmark = pytest.mark.servers("real")


def test_what_is_held_already_is_acquired_and_released_again_without_waiting(
    run: Run, backend: Backend, context: LockContext
) -> None:
    async def main() -> None:
        lock, pair = context.asyncio.reentrant_lock(NAME), context.asyncio.rw_lock("rw")
        async with lock, pair.write() as writer:
            assert at_once(lock.acquire()) is True
            assert at_once(context.asyncio.reentrant_lock(NAME).acquire()) is True
            assert at_once(pair.write().acquire()) is True
            async with pair.read() as reader:
                assert (writer.count, reader.count) == (2, 1)
            assert [at_once(lock.release()), at_once(lock.release()), at_once(writer.release())] == [False] * 3
        async with pair.read() as reader, pair.read():
            assert reader.count == 2
            with pytest.raises(UpgradeRefused):
                at_once(pair.write().acquire())
        assert backend.view.dbsize() == 0

    run(main())


@pytest.mark.parametrize("times", [1, 2])
def test_a_loss_cancels_the_task_inside_and_its_blocks_are_left_as_often_as_they_were_entered(
    run: Run, backend: Backend, context: LockContext, times: int
) -> None:
    async def main() -> None:
        lock = context.asyncio.reentrant_lock(NAME, renew_every=0.02, cancel_on_lost=True)

        async def work(deeper: int) -> None:
            async with lock:
                if deeper:
                    await work(deeper - 1)
                backend.view.delete(NAME)
                await asyncio.sleep(LONG_S)

        with pytest.raises(LockLost) as caught:
            await work(times - 1)
        assert caught.value.reason is LossReason.KEY_GONE
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        assert lock.count == 0
        assert await lock.acquire(blocking=False)
        await lock.release()

    run(main())
