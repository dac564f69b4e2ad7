"""A process that acquires overlapping sets of names, all or nothing, again and again; see test_many_waiting.py.

`main(url, part)`: the part says in which order it names them. It ends with 0 if it was alone with them each time.
"""

from __future__ import annotations

import sys

import redis

from wheel_lock import LockContext

ROUNDS = 10
PARTS = ("forwards", "backwards")
_NAMES = [f"shard:{number:04}" for number in range(700)]  # two calls of each try


def main(url: str, part: str) -> None:
    """Take the first three quarters of the names, or the last three, so that half of them is wanted by both."""
    names = _NAMES[:525] if part == "forwards" else _NAMES[:-526:-1]
    with redis.Redis.from_url(url) as view, LockContext.from_url(url) as context:
        for _ in range(ROUNDS):
            locks = context.acquire_many(names, blocking=True, all_or_nothing=True, blocking_timeout=60.0)
            if None in locks.values() or view.incr("inside") != 1:
                sys.exit(1)
            view.decr("inside")
            context.release_many(locks.values())
            view.incr("rounds")
