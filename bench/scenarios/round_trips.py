"""Held locks over a network whose round trip takes its time: who falls behind at what number."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import page, plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario, failed, found, number, skipped
from bench.served import left, of_stopped
from bench.workers import Worker, python
from tests.support.redis_server import RedisServer

LOOKS = (1, 3)  # intervals after which the locks are looked at
SLACK_S = 1.0  # a loop that wakes up once a second is as late as that without falling behind
MORE = 0.1  # of the time between both looks: what the delay of renewals may grow by
ANSWER_S = 30.0


def measure(run: Run) -> Iterator[Record]:
    delays = run.pick((0, 1, 10, 50), (0, 10), (0, 10))
    sizes = run.pick((1_000, 10_000, 100_000, 1_000_000), (1_000, 10_000), (20,))
    timeout_s, patience_s = run.pick((30.0, 300.0), (3.0, 10.0), (1.2, 20.0))
    for rival in run.rivals:
        yield from _of(run, rival, delays, sizes, timeout_s, patience_s)


def _of(
    run: Run, rival: Rival, delays: Sequence[int], sizes: Sequence[int], timeout_s: float, patience_s: float
) -> Iterator[Record]:
    """Find the largest number that is kept at each delay: upwards at the first, at others downwards from there.

    What is not kept at one delay is not kept at a longer one either.
    """
    able = [locks for locks in sizes if locks <= rival.most_held]
    for locks in sizes[len(able) :]:
        yield skipped(rival, _case(delays[0], locks, timeout_s), f"not above {rival.most_held:,} locks")
    most = 0
    for locks in able:
        record = _try(run, rival, _case(delays[0], locks, timeout_s), patience_s)
        yield record
        if not kept(record):
            break
        most += 1
    for delay in delays[1:]:
        while most:
            record = _try(run, rival, _case(delay, able[most - 1], timeout_s), patience_s)
            yield record
            if kept(record):
                break
            most -= 1
        else:
            if able:
                yield skipped(rival, _case(delay, able[0], timeout_s), "not kept at a shorter round trip")


def _case(delay: int, locks: int, timeout_s: float) -> dict[str, Any]:
    return {"round trip ms": delay, "locks": locks, "timeout_s": timeout_s}


def _try(run: Run, rival: Rival, case: Mapping[str, Any], patience_s: float) -> Record:
    run.say(f"round_trips: {rival.name}: {case['locks']:,} locks, {case['round trip ms']} ms")
    try:
        return found(rival, case, 1, _hold(rival, case, patience_s))
    except Exception as error:
        return failed(rival, case, error)


def _hold(rival: Rival, case: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
    round_trip_s, timeout_s = case["round trip ms"] / 1000, case["timeout_s"]
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        network = stack.enter_context(Worker(python("bench.delay", server.port, round_trip_s)))
        network.answer()
        url = f"redis://127.0.0.1:{network.ask()['port']}/0"
        options = {"locks": case["locks"], "timeout_s": timeout_s, "prefix": "b:", "first": 0}
        began = time.monotonic()
        worker = stack.enter_context(Worker([*rival.command(), "hold", url, json.dumps(options)]))
        worker.answer(patience_s)
        up_s = time.monotonic() - began
        clients = [server.client(socket_timeout=60.0)]
        time.sleep(LOOKS[0] * timeout_s / 3)
        first = left(clients, "b:")  # of a worker that goes on: a pause would be made up for until the second
        time.sleep((LOOKS[1] - LOOKS[0]) * timeout_s / 3)
        lost = worker.ask("go read", ANSWER_S)["lost"]
        there = of_stopped(worker, clients, "b:", round_trip_s + 0.05)
    return {
        "up_s": up_s,
        "keys": there.keys,
        "first_behind_s": first.behind_s(timeout_s),
        "behind_s": there.behind_s(timeout_s),
        "lost": lost,
    }


def kept(record: Record) -> bool:
    """Return whether all locks were there, and the renewals not more and more late."""
    if "values" not in record:
        return False
    values, timeout_s = record["values"], record["case"]["timeout_s"]
    between_s = (LOOKS[1] - LOOKS[0]) * timeout_s / 3
    grown_s = values["behind_s"] - values["first_behind_s"]
    whole = values["keys"] >= record["case"]["locks"] and values["lost"] == 0
    return bool(whole and grown_s <= SLACK_S + MORE * between_s)


def tables(records: Sequence[Record]) -> str:
    delays = sorted({record["case"]["round trip ms"] for record in records})
    text = [
        "A process between client and server delays both directions by half of the round trip each. A number is kept if "
        f"after {LOOKS[1]} intervals of a third of the timeout all keys are there, no loss was told, and the renewals "
        "are not later and later. The second table says what became of the next larger number that was tried."
    ]
    for timeout_s in sorted({record["case"]["timeout_s"] for record in records}):
        most, more = [], []
        for rival in dict.fromkeys(record["rival"] for record in records):
            mine = [
                record for record in records if (record["rival"], record["case"]["timeout_s"]) == (rival, timeout_s)
            ]
            there = [[record for record in mine if record["case"]["round trip ms"] == delay] for delay in delays]
            most.append([rival, *map(_most, there)])
            more.append([rival, *map(_fault, there)])
        columns = [f"{delay} ms" for delay in delays]
        text.append(page.markdown([f"kept at most, timeout {timeout_s:g} s", *columns], most))
        text.append(page.markdown(["and of more", *columns], more))
    return "\n\n".join(text)


def _most(records: Sequence[Record]) -> str:
    """Return the largest number that was kept."""
    return f"{max((record['case']['locks'] for record in records if kept(record)), default=0):,}"


def _fault(records: Sequence[Record]) -> str:
    """Return the least number that was not kept, and why not."""
    not_kept = [record for record in records if not kept(record)]
    if not not_kept:
        return ""
    record = min(not_kept, key=lambda record: int(record["case"]["locks"]))
    locks = record["case"]["locks"]
    if "values" not in record:
        late = "no answer in" in record.get("failed", "")
        return f"{locks:,}: {'skipped' if 'skipped' in record else 'not up in time' if late else 'failed'}"
    values = record["values"]
    gone = max(values["lost"], locks - values["keys"])
    return f"{locks:,}: {gone:,} lost" if gone else f"{locks:,}: {number(values['behind_s'])} s late"


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    timeout_s = max(record["case"]["timeout_s"] for record in records)
    groups: dict[str, dict[str, float]] = {}
    for record in sorted(records, key=lambda record: int(record["case"]["round trip ms"])):
        if record["case"]["timeout_s"] == timeout_s and kept(record):
            group = groups.setdefault(f"{record['case']['round trip ms']} ms", {})
            group[record["rival"]] = max(group.get(record["rival"], 0.0), record["case"]["locks"])
    if not groups:
        return {}
    name = "round_trips-kept.svg"
    plot.bars(folder / name, groups, title="Locks kept over a slow network", y="locks", better="more", log_y=True)
    return {
        name: f"The largest number of locks, of those that were tried, that one process keeps alive with a timeout of "
        f"{timeout_s:g} s at each round trip: all keys there, nothing lost, renewals not later and later."
    }


SCENARIO = Scenario("round_trips", "Over a slow network", "held", measure, tables, draw)
