"""Print what is measured, with every call by function if the argument is "calls": python -m tests.costs [calls]."""

from __future__ import annotations

import sys

from tests.costs import measure
from tests.support.redis_server import RedisServer


def main() -> None:
    calls = "calls" in sys.argv[1:]
    with RedisServer() as server:
        for held in (1_000, 10_000):
            costs = measure.renewals(server.port, held)
            print(*measure.rows(f"{held} held, per renewal", costs.per_renewal()), sep="\n")
            if calls:
                print(costs.counts.table(costs.renewals))
        for caller in ("thread", "task"):
            pairs = measure.pairs_of(caller, server.port)
            for what, part in (("acquire", pairs.acquires), ("release", pairs.releases)):
                print(*measure.rows(f"{what} of a {caller}", part.each()), sep="\n")
                if calls:
                    print("the caller's\n" + part.caller.table(part.count))
                    print("the engine's\n" + part.engine.table(part.count))
            print(f"    found by the collector {dict(pairs.in_cycles)}, left in all {pairs.left}")


if __name__ == "__main__":
    main()
