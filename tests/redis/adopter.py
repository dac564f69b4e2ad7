"""A process that adopts a lock: `python -m tests.redis.adopter`.

It reads the URL of the server, says that it is ready, reads the text, says what it holds, and at the next line releases it
and ends.
"""

from __future__ import annotations

import sys

from wheel_lock import LockContext


def main(url: str) -> None:
    with LockContext.from_url(url) as context:
        print(context.lock("warm-up").locked(), flush=True)
        lock = context.adopt(sys.stdin.readline())
        print(lock.is_held, lock.fence, flush=True)
        sys.stdin.readline()
        print(lock.is_held, lock.renewals, flush=True)
        lock.release()


if __name__ == "__main__":
    main(sys.stdin.readline().strip())
