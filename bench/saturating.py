"""A worker of the benchmarks that renews as fast as it can: all of its locks are due again as soon as they are renewed.

    python -m bench.saturating URL OPTIONS

OPTIONS is a JSON object with locks. Each line is answered with the numbers of renewals and of script calls so far.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from bench.workers import serve
from wheel_lock import LockContext

TIMEOUT_S = 30.0
RENEW_EVERY_S = 0.01  # a tick: the renewals are always behind, and the timeout is so long that no lock is ever lost


def names(locks: int) -> Iterator[str]:
    """Yield the names of locks; redis-benchmark makes the same ones from random numbers."""
    for number in range(locks):
        yield f"lock:{number:012d}"


def main() -> None:
    url, options = sys.argv[1], json.loads(sys.argv[2])
    with LockContext.from_url(url, release_on_close=False, response_timeout=60.0) as context:
        held = context.acquire_many(names(options["locks"]), timeout=TIMEOUT_S, renew_every=RENEW_EVERY_S)
        assert all(held.values())

        def answer(_: str) -> dict[str, int]:
            stats = context.stats()
            return {"renewed": stats.renewed, "calls": stats.batches, "lost": stats.lost}

        serve(answer)


if __name__ == "__main__":
    main()
