"""Processes with threads and tasks that contend for every kind of lock on a real server, and are stopped and cut off.

tests/simulation checks the rules on histories without end; here real processes and a real server keep them as well.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pytest

from tests.crowds.crowd import KINDS, TIMEOUT_S, Belief
from tests.support.programs import ENVIRONMENT, ROOT
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

PROCESSES, SECONDS = 2, 6.0
STUCK_S = 60.0  # only a deadlock takes a process longer to come to its end


def crowded(beliefs: Iterable[Belief]) -> list[tuple[Belief, list[Belief]]]:
    """Holders that entered a full lock, with those inside; a sweep over all entries and exits."""
    lasted = [belief for belief in beliefs if belief.since < belief.until]
    # At one and the same moment who goes is gone before who comes is in.
    moments = [(belief.until, 0, belief) for belief in lasted] + [(belief.since, 1, belief) for belief in lasted]
    inside: defaultdict[str, list[Belief]] = defaultdict(list)
    found = []
    for _, comes, belief in sorted(moments):
        others = inside[belief.name]
        if not comes:
            others.remove(belief)
            continue
        if sum(other.share for other in others) + belief.share > belief.room:
            found.append((belief, list(others)))
        others.append(belief)
    return found


def of(name: str, since: float, until: float, share: int = 1, room: int = 1) -> Belief:
    return Belief(name, f"{since}", share, room, since, until, False, 0, 0)


def test_the_sweep_finds_who_comes_where_there_is_no_room() -> None:
    one_after_the_other = [of("a", 0.0, 1.0), of("a", 1.0, 2.0), of("b", 0.0, 2.0)]
    assert crowded(one_after_the_other) == []
    assert len(crowded([*one_after_the_other, of("a", 0.5, 0.6)])) == 1
    readers = [of("t", number / 10, 1.0, 1, 9) for number in range(9)]
    assert crowded(readers) == []
    assert [belief.share for belief, _ in crowded([*readers, of("t", 0.95, 2.0, 9, 9)])] == [9]


def disturb(server: RedisServer, processes: list[subprocess.Popen[str]], until: float) -> None:
    """Stop one process after the other for longer than its leases last, and cut all connections."""
    client = server.client()
    while time.monotonic() < until:
        for process in processes:
            for command in ("script flush", "client kill type normal", "client kill type pubsub"):
                time.sleep(random.uniform(0.05, 0.2))
                client.execute_command(*command.split())
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.2 * TIMEOUT_S)
            process.send_signal(signal.SIGCONT)


def say(processes: list[subprocess.Popen[str]], word: str) -> None:
    """Wait until each has said a word."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{word}\n"


@pytest.mark.slow
def test_processes_that_are_stopped_and_cut_off_keep_the_rules(fresh_redis: RedisServer) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.crowds.crowd", fresh_redis.url, str(number), str(SECONDS)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    beliefs: list[Belief] = []
    said: list[str] = []
    try:
        say(processes, "begun")
        disturb(fresh_redis, processes, time.monotonic() + SECONDS / 2)
        say(processes, "done")
        client = fresh_redis.client()
        eventually(lambda: not [key for key in client.scan_iter() if b"fence" not in key], message="no key is left")
        for process in processes:
            history, errors = process.communicate("end\n", STUCK_S)
            beliefs += [Belief(*fields) for fields in json.loads(history)]
            said += [line for line in errors.splitlines() if not line.startswith("lost ")]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert said == []
    assert crowded(beliefs) == []
    assert [belief for belief in beliefs if belief.reports != belief.lost] == [], "a loss is reported once"
    fenced = sorted(belief for belief in beliefs if belief.fence and belief.since < belief.until)
    assert all(one.fence < next_.fence for one, next_ in pairwise(sorted(fenced, key=lambda each: each.since)))
    assert {belief.holder.split(":")[1] for belief in beliefs} == set(KINDS)
    kept = [belief.lost for belief in beliefs if belief.name.startswith("kept:")]
    assert kept == [True] * PROCESSES, "a stop costs what is held all the time"
