"""A process that holds a reentrant lock: `python -m tests.interop.reentrant_holder <port> <name> <timeout>`.

It says that it does, and waits to be killed.
"""

from __future__ import annotations

import sys

import redis

from wheel_lock import LockContext


def main(port: int, name: str, timeout: float) -> None:
    with LockContext(redis.Redis(host="127.0.0.1", port=port)) as context, context.reentrant_lock(name, timeout):
        print("held", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
