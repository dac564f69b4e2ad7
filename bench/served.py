"""What servers say: how many locks there are and how long they last, and how many commands there have been."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import redis

from bench.workers import Worker

LOOKED_AT = 100_000

# In the server: a million PTTLs are not to be sent to somebody who only wants the least of them.
LOOK = """
local cursor, names = unpack(redis.call('scan', ARGV[1], 'match', ARGV[2], 'count', 5000))
local least = -1
for number = 1, #names, ARGV[3] do
    local left = redis.call('pttl', names[number])
    if left > 0 and (least < 0 or left < least) then least = left end
end
return {cursor, #names, least}
"""


class Left(NamedTuple):
    """The locks that there are.

    Attributes:
        keys: Their number.
        least_s: The time-to-live of the one that ends first, in seconds, or of one among those that end first if there
            are more than can be looked at in a moment; None if there are none.
    """

    keys: int
    least_s: float | None

    def behind_s(self, timeout_s: float) -> float:
        """Return how late the renewal is that is due first: one on time leaves two of three intervals to go."""
        return max(timeout_s * 2 / 3 - (self.least_s or 0.0), 0.0)


def left(clients: Iterable[redis.Redis], prefix: str, since: float | None = None) -> Left:
    """Look at all locks whose keys have ``prefix`` in their names.

    Args:
        since: A time of CLOCK_MONOTONIC. What has passed since then is added to their times-to-live.
    """
    keys, least_s = 0, None
    for client in clients:
        script, cursor = client.register_script(LOOK), b"0"
        step = client.dbsize() // LOOKED_AT + 1
        while True:
            answer: Any = script(args=[cursor, f"*{prefix}*", step])
            cursor, count, least_ms = answer
            keys += count
            if least_ms > 0:
                passed_s = time.monotonic() - since if since is not None else 0.0
                here_s = least_ms / 1000 + passed_s
                least_s = here_s if least_s is None else min(here_s, least_s)
            if int(cursor) == 0:
                break
    return Left(keys, least_s)


def of_stopped(worker: Worker, clients: Iterable[redis.Redis], prefix: str, settle_s: float = 0.05) -> Left:
    """Stop a worker, look at its locks, and let it go on.

    Args:
        settle_s: How long what it has sent before takes to arrive, in seconds.
    """
    worker.stop()
    since = time.monotonic()
    try:
        time.sleep(settle_s)
        return left(clients, prefix, since)
    finally:
        worker.go_on()


def commands(clients: Iterable[redis.Redis]) -> int:
    """Return how many commands the servers have carried out so far; the next call counts those of this one."""
    infos: list[Any] = [client.info("stats") for client in clients]
    return sum(info["total_commands_processed"] for info in infos)
