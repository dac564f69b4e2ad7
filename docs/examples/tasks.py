"""A hundred asyncio tasks share ten locks, and a task whose lock is lost is cancelled before it does harm.

Run it as it is (an embedded server, extra ``demo``), or with the URL of a Redis server: python tasks.py redis://...
"""

from __future__ import annotations

import asyncio
import sys

import redis

from wheel_lock import LockContext, LockLost
from wheel_lock.testing import EmbeddedServer

TASKS, SHARDS = 100, 10


async def work(context: LockContext, inside: list[int], shard: int) -> None:
    async with context.asyncio.lock(f"shard:{shard}", timeout=10.0):
        inside[shard] += 1
        assert inside[shard] == 1, "two tasks in one shard"
        await asyncio.sleep(0.001)
        inside[shard] -= 1


async def lose(context: LockContext, client: redis.Redis) -> None:
    """What happens when somebody deletes the key of a lock that is held."""
    try:
        async with context.asyncio.lock("report", timeout=0.6, cancel_on_lost=True):
            await asyncio.to_thread(client.delete, "report")
            await asyncio.sleep(60.0)  # cancelled at the next renewal, a fifth of a second from now
    except LockLost as loss:
        print(f"reported in time: {loss.reason}")


async def show(url: str) -> None:
    context = LockContext.from_url(url)
    with redis.Redis.from_url(url) as client:
        async with context.asyncio:
            inside = [0] * SHARDS
            async with asyncio.TaskGroup() as group:
                for number in range(TASKS):
                    group.create_task(work(context, inside, number % SHARDS))
            print(f"{TASKS} tasks took turns in {SHARDS} shards")
            await lose(context, client)


def main(url: str) -> None:
    asyncio.run(show(url))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with EmbeddedServer() as server:
            main(server.url)
