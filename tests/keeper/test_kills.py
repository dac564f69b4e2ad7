"""Processes that contend for every kind of lock, and are killed one after the other: what they held is free, and no more.

KILLS (20) is the number of kills. The times to the next grants are shown in the summary; no test depends on them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bench.watched import quantile
from tests.crowds.crowd import Belief
from tests.crowds.test_crowds import crowded
from tests.keeper.mortal import FORMS
from tests.keeper.rig import AT_ONCE_S, HostKeeper, all_free
from tests.support.fixtures import fixture_of
from tests.support.fork_server import Child, ForkServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

KILLS = int(os.environ.get("KILLS", "20"))
PROCESSES = 4
SIGNALS = {each.name: each for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)}
OUT_OF_MEMORY = "out of memory"
WAYS = {
    **SIGNALS,
    "os._exit": signal.SIGUSR1,
    OUT_OF_MEMORY: signal.SIGUSR2,
}  # tests.keeper.mortal handles the last two
MEMORY = 64 << 20
MEMORY_GROUPS = (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max"))
STOPPED_S = 0.1
LAST_NUMBER = Path("/proc/sys/kernel/ns_last_pid")


fork_server = fixture_of(lambda: ForkServer("tests.keeper.mortal"), "module")


def limited(group: Path, limit: str) -> Path | None:
    """Make a control group with a limit of memory; None where that is not allowed, or no control group comes of it."""
    with suppress(OSError):
        group.mkdir()
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(MEMORY))
                return group
        except OSError:
            pass
        group.rmdir()
    return None


@pytest.fixture
def little_memory() -> Iterator[Path | None]:
    """A control group in which the kernel kills what needs much memory; None where there can be none."""
    group = next(
        filter(None, (limited(Path(root) / f"wheel_lock-{os.getpid()}", limit) for root, limit in MEMORY_GROUPS)), None
    )
    yield group
    if group is not None:
        eventually(lambda: not (group / "cgroup.procs").read_text(), AT_ONCE_S, "the control group is empty")
        group.rmdir()


class Victim:
    """A process that contends, in the form of its turn."""

    def __init__(self, fork_server: ForkServer, number: int, url: str, keeper: str, history: Path) -> None:
        self.name = str(number)
        self._program: Child
        self._program, heard = fork_server.start_heard(url, keeper, FORMS[number % len(FORMS)], str(history), self.name)
        self._out = os.fdopen(heard)
        self.pid = int(self._out.readline().split()[1])

    def end(self, number: int) -> None:
        os.kill(self.pid, number)
        self._program.wait()
        self._out.close()


def use_again(pid: int) -> None:
    """Have the next process get this number, where that is allowed and no other comes before."""
    with suppress(OSError):
        LAST_NUMBER.write_text(str(pid - 1))


def beliefs_of(history: Path, killed_at: dict[str, float]) -> list[Belief]:
    """Return what was believed, by those that were killed up to that moment."""
    begun: dict[str, Any] = {}
    ended: dict[str, float] = {}
    for line in history.read_text().splitlines():
        holder, at, *more = json.loads(line)
        if more:
            begun[holder] = [at, *more]
        else:
            ended[holder] = at
    return [
        Belief(name, holder, share, room, since, ended.get(holder, killed_at[holder.split(":")[0]]), False, 0, 0)
        for holder, (since, name, share, room) in begun.items()
    ]


def next_grants(beliefs: list[Belief], killed_at: dict[str, float]) -> dict[str, list[float]]:
    """Return how long after the kill of its holder each exclusive lock was granted again, by the killed."""
    grants: defaultdict[str, list[float]] = defaultdict(list)
    for belief in sorted(beliefs, key=lambda each: each.since):
        grants[belief.name].append(belief.since)
    found: defaultdict[str, list[float]] = defaultdict(list)
    for belief in beliefs:
        name = belief.holder.split(":")[0]
        if belief.share == belief.room and belief.until == killed_at[name]:
            later = grants[belief.name][bisect(grants[belief.name], belief.until) :]
            found[name] += [later[0] - belief.until] if later else []
    return found


@pytest.mark.slow
def test_what_the_killed_held_is_free_and_the_living_keep_what_they_hold(
    fresh_redis: RedisServer,
    fork_server: ForkServer,
    little_memory: Path | None,
    keeper: HostKeeper,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    history = tmp_path / "history"
    history.touch()
    started = iter(range(KILLS + PROCESSES))
    killed_at: dict[str, float] = {}
    ways = [way for way in WAYS if way != OUT_OF_MEMORY or little_memory is not None]
    killed_by: dict[str, str] = {}

    def start() -> Victim:
        return Victim(fork_server, next(started), fresh_redis.url, keeper.path, history)

    def kill(victim: Victim, way: str) -> None:
        if little_memory is not None and way == OUT_OF_MEMORY:
            (little_memory / "cgroup.procs").write_text(str(victim.pid))
        killed_by[victim.name] = way
        killed_at[victim.name] = time.monotonic()
        victim.end(WAYS[way])

    living = [start() for _ in range(PROCESSES)]
    try:
        for _ in range(KILLS):
            time.sleep(random.uniform(0.0, 0.05))
            random.shuffle(living)
            stopped = living[0] if random.random() < 0.2 else None
            if stopped is not None:
                os.kill(stopped.pid, signal.SIGSTOP)
            victim = living.pop()
            kill(victim, random.choice(ways))
            use_again(victim.pid)
            living.append(start())
            if stopped is not None:
                time.sleep(STOPPED_S)
                os.kill(stopped.pid, signal.SIGCONT)
    finally:
        for victim in living:
            kill(victim, "SIGKILL")  # one that is stopped takes no other
    eventually(lambda: all_free(fresh_redis.client()), AT_ONCE_S, "no key is left")
    keeper.kill()
    beliefs = beliefs_of(history, killed_at)
    assert crowded(beliefs) == []
    assert len(killed_at) == KILLS + PROCESSES
    grants: defaultdict[str, list[float]] = defaultdict(list)
    for name, delays in next_grants(beliefs, killed_at).items():
        if delays:  # of a few kills there may be none
            grants[killed_by[name]] += delays
    kills = Counter(killed_by.values())
    for way, delays in grants.items():
        p50, p99 = (quantile(sorted(delays), share) * 1000 for share in (0.5, 0.99))
        found = f"{len(delays)} next grants, p50 {p50:.1f} ms, p99 {p99:.1f} ms"
        record_property("summary", f"{kills[way]} kills by {way}: {found}")
