"""Checks of clocks and round trips."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import redis

from wheel_lock.cli import server
from wheel_lock.cli.doctor.findings import Finding, Result, Severity, unknown, user_of
from wheel_lock.cli.target import FAILURES

_SAMPLES = 20
_MOST_S = 1.0  # time limit for all samples of a server
_CLOCKS_APART_S = 0.5
_SLOW = 1 / 30  # share of the timeout: a tenth of the time between two renewals
_TOO_SLOW = 1 / 3


@dataclass(frozen=True, slots=True)
class Distance:
    """The measured distance to a server."""

    round_trip_p50_s: float
    round_trip_worst_s: float
    clock_ahead_s: float  # how far the server's clock is ahead of this machine's
    uncertain_s: float  # the greatest error of that


def measure(master: redis.Redis) -> Distance:
    """Call TIME up to twenty times, for at most a second. Raises what redis-py raises."""
    master.time()  # the connection is made outside of the measurement
    round_trips: list[float] = []
    ahead: list[float] = []
    until = time.monotonic() + _MOST_S
    while len(round_trips) < _SAMPLES and (not round_trips or time.monotonic() < until):
        sent, began = time.time(), time.monotonic()
        seconds, microseconds = master.time()
        took = time.monotonic() - began
        round_trips.append(took)
        ahead.append(seconds + microseconds / 1e6 - (sent + took / 2))
    # The sample with the shortest round trip bounds the offset best (Cristian's algorithm, 1989).
    best = min(range(len(ahead)), key=round_trips.__getitem__)
    return Distance(statistics.median(round_trips), max(round_trips), ahead[best], round_trips[best] / 2)


def findings_of(masters: Sequence[redis.Redis], timeout_s: float) -> Iterator[Finding]:
    """Yield what the distances to all masters mean for locks with a timeout of ``timeout_s`` seconds."""
    clocks: dict[str, Distance] = {}
    for client in masters:
        address = server.address(client)
        try:
            clocks[address] = measure(client)
            result = round_trip(clocks[address], timeout_s)
        except FAILURES as error:
            result = unknown("TIME", error, user_of(client))
        yield Finding("round trip", *result, server=address)
    yield Finding("clocks", *clock_offsets(clocks))


def round_trip(distance: Distance, timeout_s: float) -> Result:
    """Return what a round trip means for locks with a timeout of ``timeout_s`` seconds."""
    median, worst_s = distance.round_trip_p50_s, distance.round_trip_worst_s
    text = f"{median * 1e3:.3g} ms, {worst_s * 1e3:.3g} ms at worst, for a timeout of {timeout_s:g} s"
    if worst_s > _TOO_SLOW * timeout_s:
        least = f"Use a timeout above {3 * worst_s:.3g} s"
        return Severity.PROBLEM, text, f"{least}: a lock is renewed each third of it, and that takes a round trip."
    if worst_s > _SLOW * timeout_s:
        advice = f"A timeout above {30 * worst_s:.3g} s leaves time to repeat a renewal that is late."
        return Severity.WARNING, text, advice
    return Severity.OK, text, ""


def clock_offsets(clocks: dict[str, Distance]) -> Result:
    """Return what the clocks of the masters, and of this machine, mean for locks."""
    if not clocks:
        return Severity.UNKNOWN, "no server's clock could be read", ""
    ahead = {address: distance.clock_ahead_s for address, distance in clocks.items()} | {"this machine": 0.0}
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    uncertain_s = 2 * max(distance.uncertain_s for distance in clocks.values())
    apart_s = ahead[last] - ahead[first]
    if apart_s - uncertain_s > _CLOCKS_APART_S:
        return (
            Severity.WARNING,
            f"{last} is {apart_s:.3g} s ahead of {first}",
            "Run NTP on all machines: after a failover read-write locks, semaphores and fair queues go by the new master's "
            "clock.",
        )
    return Severity.OK, f"the clocks of {' and '.join(ahead)} agree within {apart_s + uncertain_s:.3g} s", ""
