"""A process that adopts a lock: `python -m tests.redis.adopter <port>`.

It says that it is ready, reads the text, says what it holds, and at the next line releases it and ends.
"""

from __future__ import annotations

import sys

import redis

from wheel_lock import LockContext


def main(port: int) -> None:
    with LockContext(redis.Redis(host="127.0.0.1", port=port)) as context:
        print(context.lock("warm-up").locked(), flush=True)
        lock = context.adopt(sys.stdin.readline())
        print(lock.is_held, lock.fence, flush=True)
        sys.stdin.readline()
        print(lock.is_held, lock.renewals, flush=True)
        lock.release()


if __name__ == "__main__":
    main(int(sys.argv[1]))
