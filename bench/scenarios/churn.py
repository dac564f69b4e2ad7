"""Locks that come and go beside held ones, locks by the hundred thousand, and what a worker does that has nothing to do."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis

from bench import page, plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario, failed, found, skipped, spread, values_of, why_not
from bench.served import commands, of_stopped
from bench.workers import Unable, Worker, cpu_s
from tests.support.redis_server import RedisServer

HOLD_S = 0.05
IDLE_LOCKS = (0, 100)
TIMEOUT_S = 30.0
BULK_TIMEOUT_S = 60.0  # what is acquired in half a minute needs no renewal meanwhile
ANSWER_S = 60.0


def measure(run: Run) -> Iterator[Record]:
    for rival in run.rivals:
        yield from _churn(run, rival)
    for rival in run.rivals:
        yield from _bulk(run, rival)
    yield from _idle(run)


def _churn(run: Run, rival: Rival) -> Iterator[Record]:
    """Have threads acquire, keep and release locks beside held ones."""
    locks = min(run.pick(10_000, 2_000, 50), rival.most_held)
    threads, seconds = run.pick(64, 64, 4), run.pick(5.0, 1.0, 0.2)
    timeout_s = run.pick(TIMEOUT_S, 9.0, 3.0)
    case = {"part": "churn", "held": locks, "threads": threads, "timeout_s": timeout_s}
    options = {"locks": locks, "prefix": "b:", "callers": threads, "hold_s": HOLD_S, "timeout_s": timeout_s}
    run.say(f"churn: {rival.name}: {threads} threads beside {locks:,} held locks")
    try:
        with RedisServer() as server, Worker([*rival.command(), "churn", server.url, json.dumps(options)]) as worker:
            client = server.client()
            worker.answer(ANSWER_S + rival.warm_s)
            worker.ask(f"go {rival.warm_s}", ANSWER_S + rival.warm_s)
            for number in range(1, run.pick(run.rounds, 2, 1) + 1):
                used_s = cpu_s(worker.pid)
                made = worker.ask(f"go {seconds}", ANSWER_S)
                used_s = cpu_s(worker.pid) - used_s
                # Anew: what is measured is not to be stopped in its midst.
                worker.tell(f"go {seconds}")
                time.sleep(seconds / 2)
                left = of_stopped(worker, [client], "b:")
                lost = worker.answer(ANSWER_S)["lost"]
                yield found(
                    rival,
                    case,
                    number,
                    {
                        "pairs_s": made["pairs"] / made["seconds"],
                        "cpu_ms_s": used_s * 1000 / made["seconds"],
                        "behind_s": left.behind_s(timeout_s),
                        "lost": max(lost, locks - left.keys),
                    },
                )
    except Unable as error:
        yield skipped(rival, case, str(error))
    except Exception as error:
        yield failed(rival, case, error)


def _bulk(run: Run, rival: Rival) -> Iterator[Record]:
    """Acquire and release many locks, each time beside a worker that has none: what that takes is the start alone."""
    sizes = run.pick((100_000, 1_000_000), (10_000,), (100,))
    patience_s = run.pick(300.0, 60.0, 20.0)
    each_s = 0.0
    for locks in sorted({min(locks, rival.most_held) for locks in sizes}):
        case = {"part": "bulk", "locks": locks, "timeout_s": BULK_TIMEOUT_S}
        if each_s * locks > BULK_TIMEOUT_S:  # the first ones would end before the last ones are acquired
            yield skipped(rival, case, f"they would take {each_s * locks:,.0f} s")
            continue
        try:
            for number in range(1, run.pick(3, 1, 1) + 1):
                run.say(f"churn: {rival.name}: acquires and releases {locks:,}, round {number}")
                with RedisServer() as server:
                    bare = _acquired_and_released(rival, server.url, 0, patience_s)
                    full = _acquired_and_released(rival, server.url, locks, patience_s)
                each_s = full["acquire_s"] / locks
                yield found(rival, case, number, {key: max(full[key] - bare[key], 0.0) for key in full})
        except Exception as error:
            yield failed(rival, case, error)
            break


def _acquired_and_released(rival: Rival, url: str, locks: int, patience_s: float) -> dict[str, float]:
    options = {"locks": locks, "timeout_s": BULK_TIMEOUT_S, "prefix": "b:", "first": 0}
    began = time.monotonic()
    with Worker([*rival.command(), "hold", url, json.dumps(options)], patience_s=patience_s) as worker:
        worker.answer()
        up_at, up_cpu_s = time.monotonic(), cpu_s(worker.pid)
        worker.ask("go release")
        return {
            "acquire_s": up_at - began,
            "acquire_cpu_s": up_cpu_s,
            "release_s": time.monotonic() - up_at,
            "release_cpu_s": cpu_s(worker.pid) - up_cpu_s,
        }


def _idle(run: Run) -> Iterator[Record]:
    """Look at workers that hold nothing or little, all at the same time: they hardly disturb each other."""
    seconds = run.pick(10.0, 10.0, 1.0)  # one interval: each lock is renewed once
    run.say(f"churn: {len(run.rivals) * len(IDLE_LOCKS)} idle workers")
    with ExitStack() as stack:
        sides: list[tuple[Rival, dict[str, Any], Worker, redis.Redis]] = []
        for rival in run.rivals:
            for locks in IDLE_LOCKS:
                options = {"locks": locks, "timeout_s": TIMEOUT_S, "prefix": "b:", "first": 0}
                case = {"part": "idle", "locks": locks, "timeout_s": TIMEOUT_S}
                try:
                    server = stack.enter_context(RedisServer())
                    command = [*rival.command(), "hold", server.url, json.dumps(options)]
                    sides.append((rival, case, stack.enter_context(Worker(command)), server.client()))
                except Exception as error:
                    yield failed(rival, case, error)
        up: list[tuple[Rival, dict[str, Any], Worker, redis.Redis, list[tuple[float, ...]]]] = []
        for rival, case, worker, client in sides:
            try:
                worker.answer(ANSWER_S)
                up.append((rival, case, worker, client, []))
            except Exception as error:
                yield failed(rival, case, error)
        for wait_s in (seconds / 2, seconds):  # first, they settle
            time.sleep(wait_s)
            for *_, worker, client, looks in up:
                looks.append((cpu_s(worker.pid), _switches(worker.pid), commands([client]), time.monotonic()))
        for rival, case, _, _, looks in up:
            used_s, switches, served, took_s = (after - before for before, after in zip(*looks, strict=True))
            values = {
                "cpu_ms_s": used_s * 1000 / took_s,
                "switches_s": switches / took_s,
                "commands_s": (served - 1) / took_s,  # one is the look itself
            }
            yield found(rival, case, 1, values)


def _switches(pid: int) -> int:
    """Return how often the threads of a process have waited for something, and so had to be woken."""
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue  # it has just ended
        count += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return count


def tables(records: Sequence[Record]) -> str:
    return "\n\n".join([*_churn_table(records), *_bulk_table(records), *_idle_table(records)])


def _of(records: Sequence[Record], part: str) -> dict[str, list[Record]]:
    """Return the records of a part by implementation."""
    mine = [record for record in records if record["case"]["part"] == part]
    return {name: [one for one in mine if one["rival"] == name] for name in dict.fromkeys(one["rival"] for one in mine)}


def _churn_table(records: Sequence[Record]) -> list[str]:
    of_part = _of(records, "churn")
    if not of_part:
        return []
    case = next(iter(of_part.values()))[0]["case"]
    possible = case["threads"] / HOLD_S
    rows = []
    for name, mine in of_part.items():
        head = name, f"{mine[0]['case']['held']:,}"
        if why := why_not(mine):
            rows.append([*head, why, "", "", ""])
            continue
        rates, used = values_of(mine, name, "pairs_s"), values_of(mine, name, "cpu_ms_s")
        behind_s, lost = max(values_of(mine, name, "behind_s")), max(values_of(mine, name, "lost"))
        each_us = [ms * 1000 / rate for ms, rate in zip(used, rates, strict=True)]
        rows.append([*head, spread(rates), spread(each_us), f"{behind_s:.1f}", f"{lost:,.0f}"])
    return [
        f"{case['threads']} threads acquire a free lock, keep it for {HOLD_S * 1000:.0f} ms and release it, in a process "
        f"that keeps other locks of {case['timeout_s']:g} s alive: pairs/s of {possible:,.0f} that are "
        "possible, the process's CPU time for each (renewals included), and how late the renewals became.",
        page.markdown(("churn", "held", "pairs/s", "CPU, µs", "late, s", "lost"), rows),
    ]


def _bulk_table(records: Sequence[Record]) -> list[str]:
    of_part = _of(records, "bulk")
    if not of_part:
        return []
    rows = []
    for name, of_name in of_part.items():
        for locks in dict.fromkeys(record["case"]["locks"] for record in of_name):
            mine = [record for record in of_name if record["case"]["locks"] == locks]
            if why := why_not(mine):
                rows.append([name, f"{locks:,}", why, "", "", ""])
                continue
            cells = []
            for what in ("acquire", "release"):
                used = [value * 1e6 / locks for value in values_of(mine, name, f"{what}_cpu_s")]
                cells += [spread(values_of(mine, name, f"{what}_s")), spread(used)]
            rows.append([name, f"{locks:,}", *cells])
    return [
        "All locks are acquired, then all are released, in the fastest way each has: time, and the client's CPU time for a "
        "lock. The time that the same program takes to start with no locks is subtracted.",
        page.markdown(("bulk", "locks", "acquire, s", "CPU, µs", "release, s", "CPU, µs"), rows),
    ]


def _idle_table(records: Sequence[Record]) -> list[str]:
    of_part = _of(records, "idle")
    if not of_part:
        return []
    rows = []
    for name, mine in of_part.items():
        cells = []
        for locks in IDLE_LOCKS:
            here = [record for record in mine if record["case"]["locks"] == locks]
            if why := why_not(here):
                cells += [why, "", ""]
            else:
                cells += [spread(values_of(here, name, key)) for key in ("cpu_ms_s", "switches_s", "commands_s")]
        rows.append((name, *cells))
    head = ["idle"]
    for locks in IDLE_LOCKS:
        head += [f"{locks} held: CPU, ms/s", "wake-ups/s", "commands/s"]
    return [
        f"Idle: what a process does that holds nothing, or {IDLE_LOCKS[-1]} locks of {TIMEOUT_S:g} s. Wake-ups are the "
        "voluntary context switches of all its threads; commands are those of scripts, too.",
        page.markdown(head, rows),
    ]


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    drawn = {}
    bulk: dict[str, dict[str, float]] = {"acquire": {}, "release": {}}
    for name, mine in _of(records, "bulk").items():
        locks = min(record["case"]["locks"] for record in mine)
        for what, group in bulk.items():
            if values := values_of(mine, name, f"{what}_s", locks=locks):
                group[name] = max(statistics.median(values) * 1e6 / locks, 0.01)
    if bulk["acquire"]:
        name = "churn-bulk.svg"
        plot.bars(folder / name, bulk, title="Many locks at once", y="µs for a lock", better="less", log_y=True)
        drawn[name] = (
            "How long it takes to acquire and to release very many locks (how many is below), in the fastest way that each "
            "has, for a lock."
        )
    idle: dict[str, dict[str, float]] = {}
    for locks in IDLE_LOCKS:
        for rival, mine in _of(records, "idle").items():
            if values := values_of(mine, rival, "switches_s", locks=locks):
                idle.setdefault(f"{locks} locks held", {})[rival] = values[0]
    if idle:
        name = "churn-idle.svg"
        plot.bars(folder / name, idle, title="Idle", y="wake-ups per second", better="less")
        drawn[name] = f"How often an idle process is woken up, with no locks and with {IDLE_LOCKS[-1]} that last 30 s."
    return drawn


SCENARIO = Scenario("churn", "Locks that come and go, bulk, and idling", "pairs", measure, tables, draw)
