"""Losses: what each implementation tells its user, and when relative to the end of the lease on the server."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from bench import crashed, page, plot
from bench.rivals import Rival
from bench.scenarios import Record, Run, Scenario, failed, found
from bench.scenarios.rounds import in_rounds, table
from bench.workers import Worker
from tests.support.proxy import TcpProxy
from tests.support.redis_server import RedisServer

PREFIX = "loss:"
AWAY = 2.5  # timeouts for which the server does not answer, or cannot be reached
BACK_S = 1.0  # until a killed server is back
ANOTHER_S = 3600  # how long the other owner keeps what it has taken
MOST_ROUNDS = 3  # each takes seven minutes
UP_S = 120.0
ANSWER_S = 30.0
REASON_CHARACTERS = 32


class Subject:
    """A worker that holds locks, and its server.

    Args:
        rival: The implementation.
        locks: How many it holds.
        timeout_s: Their time-to-live in seconds.
        proxied: True if its connections can be cut.
    """

    def __init__(self, rival: Rival, locks: int, timeout_s: float, proxied: bool) -> None:
        self.rival, self.locks, self.timeout_s = rival, locks, timeout_s
        self._stack = ExitStack()
        with ExitStack() as stack:
            # Of keyspace events some implementations can hear, if the server sends them and the user asks to listen.
            self.server = stack.enter_context(RedisServer("notify-keyspace-events Egx"))
            self.proxy = stack.enter_context(TcpProxy(self.server.port)) if proxied else None
            self.url = self.proxy.url if self.proxy else self.server.url
            options = {"locks": locks, "timeout_s": timeout_s, "prefix": PREFIX, "first": 0, "listen": True}
            command = [*rival.command(), "hold", self.url, json.dumps(options)]
            self.worker = stack.enter_context(Worker(command, patience_s=UP_S))
            self._stack = stack.pop_all()
        self.client = self.server.client()
        self.keys: dict[int, list[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def find(self) -> int:
        """Find the keys of all locks; return how many locks have any."""
        self.keys = {number: [] for number in range(self.locks)}
        for key in self.client.scan_iter(count=1000):
            if named := re.search(rb"%s(\d+)" % PREFIX.encode(), key):
                self.keys[int(named[1])].append(key)
        return sum(map(bool, self.keys.values()))

    def look(self) -> list[float]:
        """Find the keys of all locks, and return when their leases end, at the latest.

        A lock that is kept in several keys is held by the majority of them.

        Raises:
            RuntimeError: If it does not hold all locks.
        """
        with redis.Redis.from_url(self.url) as client:
            client.ping()  # what the worker has sent before it was stopped has been done by now
        self.find()
        every = [key for keys in self.keys.values() for key in keys]
        with self.client.pipeline() as pipeline:
            for key in every:
                pipeline.pttl(key)
            left_ms = pipeline.execute()
        answered_at = time.monotonic()  # it was true some time before: a millisecond in favour of everybody
        left_s = dict(zip(every, (left / 1000 for left in left_ms), strict=True))
        ends = [
            answered_at + sorted(left_s[key] for key in keys)[len(keys) // 2]
            for keys in self.keys.values()
            if keys and min(left_s[key] for key in keys) >= 0
        ]
        if len(ends) < self.locks:
            raise RuntimeError(f"{len(ends)} of {self.locks} locks were held before anything happened")
        return ends


def paused(subject: Subject) -> Iterator[float]:
    subject.server.pause()
    yield AWAY * subject.timeout_s
    subject.server.resume()


def killed(subject: Subject) -> Iterator[float]:
    subject.server.kill()
    yield BACK_S
    subject.server.start()


def gone(subject: Subject) -> Iterator[float]:
    subject.server.kill()
    yield 0.0


def deleted(subject: Subject) -> Iterator[float]:
    subject.client.delete(*(key for keys in subject.keys.values() for key in keys))
    yield 0.0


def taken(subject: Subject) -> Iterator[float]:
    kinds = {key: subject.client.type(key) for keys in subject.keys.values() for key in keys}
    with subject.client.pipeline() as pipeline:
        for key, kind in kinds.items():
            pipeline.delete(key)
            if kind == b"hash":
                pipeline.hset(key, "another owner:1", "1")
                pipeline.expire(key, ANOTHER_S)
            else:
                pipeline.set(key, "another owner", ex=ANOTHER_S)
        pipeline.execute()
    yield 0.0


def cut(subject: Subject, timeouts: float = AWAY) -> Iterator[float]:
    assert subject.proxy is not None
    subject.proxy.refuse()
    subject.proxy.cut()
    yield timeouts * subject.timeout_s
    subject.proxy.heal()


@dataclass(frozen=True)
class Case:
    """A way to lose locks.

    Attributes:
        name: What tables and plots call it.
        what: What happens, and from when on another client can have the locks.
        happen: Makes it happen, yields the seconds after which it goes on, and goes on.
        watched: For how many timeouts losses are waited for.
        proxied: True if it happens to connections.
        harmless: True if no lease has to end: a loss that is told is a mistake, or the doing of who tells it.
    """

    name: str
    what: str
    happen: Callable[[Subject], Iterator[float]]
    watched: float = 3.0
    proxied: bool = False
    harmless: bool = False


CASES = (
    Case(
        "paused",
        f"the server process is stopped for {AWAY:g} timeouts and goes on. Another client can have a lock then.",
        paused,
        watched=4.0,
    ),
    Case(
        "killed and back",
        f"the server is killed, and {BACK_S:g} s later another one, which is empty, listens on its port. Another client "
        "can have a lock from that second on.",
        killed,
    ),
    Case(
        "gone",
        "the server is killed and does not come back. Another client can have a lock, on the server that takes its "
        "place, when the lease has ended.",
        gone,
    ),
    Case("deleted", "all keys are deleted. Another client can have a lock at once.", deleted),
    Case(
        "taken",
        "all keys are overwritten by another owner: a string with another value, a hash with another field. "
        "Another client has the locks at once.",
        taken,
    ),
    Case(
        "cut off",
        f"the client's connections are reset, and new ones refused, for {AWAY:g} timeouts; the server lives. Another "
        "client can have a lock when the lease has ended.",
        cut,
        watched=4.0,
        proxied=True,
    ),
    Case(
        "interrupted",
        "the client's connections are reset, and new ones refused, for a third of the timeout. No lease has to end, and "
        "there is nothing to be told.",
        partial(cut, timeouts=1 / 3),
        proxied=True,
        harmless=True,
    ),
)
CRASHED = "kill -9, next grant"
KEPT = f"{plot.OURS}, release_on_crash=True"
CRASHED_HOW = """\
the holder of a lock, renewed every third of the timeout, is killed at some moment while another process waits for it in the
way of the same implementation. The time from the signal to that grant, median and extremes of the rounds: what is left of
the lease, unless a keeper releases the lock."""
TINY = ("deleted", "gone", CRASHED)
ONLY_FULL = ("cut off", "interrupted")


def lose(subject: Subject, case: Case, ending: threading.Event) -> dict[str, Any]:
    """Make a worker's locks be lost, and return what its user has heard.

    The worker is stopped for some milliseconds, so that it renews nothing between the look at the leases and the event.
    """

    def wait_until(moment: float) -> None:
        if ending.wait(max(moment - time.monotonic(), 0.0)):
            raise InterruptedError("the benchmark has been ended")

    worker = subject.worker
    worker.stop()
    try:
        ends = subject.look()
        happening = case.happen(subject)
        said, event_at = len(worker.said()), time.monotonic()
        goes_on_at = event_at + next(happening)
    finally:
        worker.go_on()
    wait_until(goes_on_at)
    next(happening, None)
    away_s = time.monotonic() - event_at
    wait_until(event_at + case.watched * subject.timeout_s)
    kept = subject.find() if case.harmless else None
    worker.ask("go read", ANSWER_S)
    told: dict[int, float] = {}
    for loss in worker.losses:
        told.setdefault(loss.index, loss.at - event_at)
    if told and min(told.values()) < 0:
        raise RuntimeError("a loss was told before anything happened")
    said_since = worker.said()[said:]
    return {
        "told_s": [round(told[index], 4) if index in told else None for index in range(subject.locks)],
        "left_s": [round(end - event_at, 4) for end in ends],
        "away_s": round(away_s, 4),
        "kept": kept,
        "reasons": Counter(loss.reason for loss in worker.losses),
        "stderr_lines": len(said_since.splitlines()),
        "stderr_traceback": "Traceback (most recent call last)" in said_since or "Exception" in said_since,
    }


def together(
    rivals: Sequence[Rival], case: Case, timeout_s: float, locks: int, round_number: int = 1
) -> Iterator[Record]:
    """All rivals lose their locks at the same time, for they are idle most of it."""
    key = {"case": case.name, "timeout_s": timeout_s, "locks": locks}
    ending = threading.Event()
    with ExitStack() as stack:
        subjects = [stack.enter_context(Subject(rival, locks, timeout_s, case.proxied)) for rival in rivals]
        pool = stack.enter_context(ThreadPoolExecutor(max(len(subjects), 1)))
        stack.callback(ending.set)
        ready = []
        for subject in subjects:
            try:
                subject.worker.answer()
                ready.append(subject)
            except Exception as error:
                yield failed(subject.rival, key, error)
        time.sleep(timeout_s / 2)  # each lock has been renewed once
        losing = [(subject.rival, pool.submit(lose, subject, case, ending)) for subject in ready]
        for rival, values in losing:
            try:
                yield found(rival, key, round_number, values.result())
            except Exception as error:
                yield failed(rival, key, error)


class Crash:
    """A lock whose holder is killed in each round, and a worker that waits for it.

    Args:
        rival: The implementation.
        stack: Ends the worker, and the server.
        timeout_s: The time-to-live of the lock in seconds.
    """

    def __init__(self, rival: Rival, stack: ExitStack, timeout_s: float) -> None:
        url = stack.enter_context(RedisServer()).url
        options = {"locks": 1, "timeout_s": timeout_s, "prefix": PREFIX, "first": 0, **rival.options}
        self._command = [*rival.command(), "hold", url, json.dumps(options)]
        self._timeout_s = timeout_s
        self._waiting = stack.enter_context(crashed.waiter(rival, url, f"{PREFIX}0", timeout_s))

    def ready(self) -> None:
        self._waiting.answer(UP_S)

    def measure(self) -> dict[str, Any]:
        with Worker(self._command, patience_s=UP_S) as holder:
            holder.answer()
            time.sleep(random.uniform(0.5, 1.5) * self._timeout_s)  # how old the last renewal is is left to chance
            return {"next_grant_s": round(crashed.next_grant(self._waiting, holder.pid), 4)}


def crashes(run: Run, timeout_s: float) -> Iterator[Record]:
    """All rivals in turns, and wheel_lock with a keeper as well."""
    kept = [replace(rival, name=KEPT, options={"release_on_crash": True}) for rival in run.rivals[:1]]
    rivals = [*(kept if run.rivals[0].name == plot.OURS else ()), *run.rivals]
    case = {"case": CRASHED, "timeout_s": timeout_s}
    yield from in_rounds(replace(run, rivals=rivals), case, partial(Crash, timeout_s=timeout_s))


def measure(run: Run) -> Iterator[Record]:
    left_out = () if run.full else ONLY_FULL
    wanted = run.cases or [name for name in (*(case.name for case in CASES), CRASHED) if name not in left_out]
    wanted = [name for name in wanted if name in TINY] if run.tiny else wanted
    cases = [case for case in CASES if case.name in wanted]
    # How long before the event the last renewal was is left to chance, and is another time in each round.
    rounds = run.pick(min(run.rounds, MOST_ROUNDS), 1, 1)
    for timeout_s in run.pick((3.0, 10.0), (3.0,), (1.5,)):
        for case, number in itertools.product(cases, range(1, rounds + 1)):
            run.say(f"losses: {case.name}, timeout {timeout_s:g} s, round {number} of {rounds}")
            yield from together(run.rivals, case, timeout_s, run.pick(20, 20, 3), number)
    if CRASHED in wanted:
        yield from crashes(run, run.pick(3.0, 3.0, 1.5))


def of_all_rounds(records: Sequence[Record]) -> list[Record]:
    """Return one record for each implementation, case and timeout: with the locks of all rounds, and what has failed."""
    merged: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record["case"]["case"] == CRASHED:
            continue
        key = record["rival"], record["case"]["case"], record["case"]["timeout_s"], "values" in record
        if key not in merged:
            merged[key] = record
        elif "values" in record:
            before, values = merged[key]["values"], record["values"]
            both = {name: before[name] + values[name] for name in ("told_s", "left_s", "stderr_lines")}
            both |= {
                "kept": None if values["kept"] is None else before["kept"] + values["kept"],
                "reasons": Counter(before["reasons"]) + Counter(values["reasons"]),
                "stderr_traceback": before["stderr_traceback"] or values["stderr_traceback"],
            }
            merged[key] = {**record, "values": both}
    return list(merged.values())


def counts(values: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the number of losses that were told before the lease's end, after it, and never."""
    pairs = list(zip(values["told_s"], values["left_s"], strict=True))
    told = [(at, end) for at, end in pairs if at is not None]
    before = sum(at <= end for at, end in told)
    return before, len(told) - before, len(pairs) - len(told)


def after_the_end(values: Mapping[str, Any]) -> list[float]:
    """Return how long after the lease's end the losses were told that were told at all; negative if before."""
    return [at - end for at, end in zip(values["told_s"], values["left_s"], strict=True) if at is not None]


START = ("implementation", "timeout, s")
END = ("reason", "on stderr")
HEAD = (*START, "told before / after / never", "after the event, s", "after the lease's end, s", *END)
HEAD_HARMLESS = (*START, "still held", "told as lost", *END)


def tables(records: Sequence[Record]) -> str:
    text = [
        "Each implementation holds some locks on a server of its own, renewed every third of the timeout; all lose them "
        "at the same time. The end of a lease is counted from a PTTL just before, and known to about a millisecond. A user "
        "who is told *before* it can stop in time; *never* means not within 3 timeouts of the event, or 4 where the server "
        "is out of reach for "
        f"{AWAY:g}. Times are the median and the latest; negative ones are before the lease's end. What a thread writes "
        "to stderr is not a report to the program, and is mentioned."
    ]
    for case in CASES:
        mine = [record for record in of_all_rounds(records) if record["case"]["case"] == case.name]
        if mine:
            mine.sort(key=lambda record: (record["case"]["timeout_s"], record["rival"] != plot.OURS))
            head = HEAD_HARMLESS if case.harmless else HEAD
            table_of_case = page.markdown(head, [_row(one, case, len(head)) for one in mine])
            text += [f"**{case.name.capitalize()}**: {case.what}", table_of_case]
    if mine := [record for record in records if record["case"]["case"] == CRASHED]:
        (timeout_s,) = {record["case"]["timeout_s"] for record in mine}
        text += [f"**{CRASHED}**: {CRASHED_HOW}", table(mine, {"next_grant_s": f"seconds, timeout {timeout_s:g} s"})]
    return "\n\n".join(text)


def _row(record: Record, case: Case, width: int) -> Sequence[str]:
    start = record["rival"], f"{record['case']['timeout_s']:g}"
    for word in ("failed", "skipped"):
        if word in record:
            return *start, f"{word}: {record[word]}", *[""] * (width - len(start) - 1)
    values = record["values"]
    reasons = " ".join(word[:REASON_CHARACTERS] for word, _ in Counter(values["reasons"]).most_common(1))
    said = values["stderr_lines"]
    stderr = "a traceback" if values["stderr_traceback"] else f"{said} line{'s' if said > 1 else ''}" if said else ""
    end = reasons.replace("|", "\\|"), stderr
    told_s = [at for at in values["told_s"] if at is not None]
    if case.harmless:
        locks = len(values["told_s"])
        return *start, f"{values['kept']} of {locks}", f"{len(told_s)} of {locks}", *end
    told = " / ".join(map(str, counts(values)))
    return *start, told, _median_and_latest(told_s), _median_and_latest(after_the_end(values)), *end


def _median_and_latest(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f}, {max(seconds):.3f}" if seconds else ""


def draw(records: Sequence[Record], folder: Path) -> Mapping[str, str]:
    harmful = [case.name for case in CASES if not case.harmless]
    measured = [record for record in of_all_rounds(records) if "values" in record and record["case"]["case"] in harmful]
    drawn = {}
    for timeout_s in sorted({record["case"]["timeout_s"] for record in measured}):
        latest: dict[str, dict[str, float]] = {name: {} for name in harmful}
        for record in measured:
            if record["case"]["timeout_s"] == timeout_s:
                never = counts(record["values"])[2]
                latest[record["case"]["case"]][record["rival"]] = (
                    math.inf if never else max(after_the_end(record["values"]))
                )
        name = f"losses-{timeout_s:g}s.svg"
        plot.strip(
            folder / name,
            {case: values for case, values in latest.items() if values},
            title=f"The lock whose loss is told last (timeout {timeout_s:g} s)",
            x="seconds after the end of its lease on the server",
            edge="never",
        )
        drawn[name] = (
            f"When the user hears of the last of the losses, with a timeout of {timeout_s:g} s: left of the line before "
            "the lease's end on the server, right of it too late, at the edge never."
        )
    return drawn


SCENARIO = Scenario("losses", "Losses: what the user is told, and when", "losses", measure, tables, draw)
