"""A process acquires a lock and hands it over to another one, which finishes the work and releases it.

Run it as it is (an embedded server, extra ``demo``), or with the URL of a Redis server: python hand_over.py redis://...
"""

from __future__ import annotations

import subprocess
import sys

from wheel_lock import InvalidHandoff, LockContext, LockLost
from wheel_lock.testing import EmbeddedServer

WORKER = "--finish-the-work"


def start_the_work(url: str) -> None:
    with LockContext.from_url(url) as context:
        lock = context.lock("import:2026", timeout=10.0, fencing=True)
        lock.acquire()
        fence = lock.fence
        # The text is a secret: whoever has it can take the lock. So it goes through a pipe, not on a command line.
        text = lock.export()
        print(f"exported; held here: {lock.is_held}")
        result = subprocess.run([sys.executable, __file__, url, WORKER], input=text, text=True, capture_output=True)
        print(result.stdout, end="")
        assert result.returncode == 0, result.stderr
        assert result.stdout.endswith(f"finished with fence {fence}\n"), "the fence stays the same"

        for wrong in (text, text[:-1] + "?"):  # a text works once, and only as it was written
            try:
                context.adopt(wrong)
            except (LockLost, InvalidHandoff) as error:
                print(f"refused: {error.message}")


def finish_the_work(url: str) -> None:
    with LockContext.from_url(url) as context, context.adopt(sys.stdin.read()) as lock:
        print(f"adopted; held here: {lock.is_held}, renewed from now on")
        print(f"finished with fence {lock.fence}")


def main() -> None:
    if WORKER in sys.argv:
        finish_the_work(sys.argv[1])
    elif len(sys.argv) > 1:
        start_the_work(sys.argv[1])
    else:
        with EmbeddedServer() as server:
            start_the_work(server.url)


if __name__ == "__main__":
    main()
