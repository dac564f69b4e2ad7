"""Ten threads, one till: each waits for its turn, and the thread that has waited longest is next.

Run it as it is (an embedded server, extra ``demo``), or with the URL of a Redis server: python threads.py redis://...
"""

from __future__ import annotations

import sys
import threading

from wheel_lock import LockContext
from wheel_lock.testing import EmbeddedServer

CUSTOMERS = 10


def main(url: str) -> None:
    context = LockContext.from_url(url)
    takings: list[int] = []

    def pay(amount: int) -> None:
        # The lock is renewed for as long as the block runs, however long that is.
        with context.lock("till:7", timeout=10.0, blocking_timeout=30.0) as lock:
            before = sum(takings)
            lock.raise_if_lost()  # costs no round trip: ask before every step that must not be done twice
            takings.append(amount)
            assert sum(takings) == before + amount, "somebody else was at the till"

    with context:
        customers = [threading.Thread(target=pay, args=(amount,)) for amount in range(1, CUSTOMERS + 1)]
        for customer in customers:
            customer.start()
        for customer in customers:
            customer.join()
        print(f"{len(takings)} customers paid {sum(takings)} in all; {context.stats().acquired} locks were acquired")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with EmbeddedServer() as server:
            main(server.url)
