"""``wheel-lock watch``: what counts as a change, what is printed where, and each exit status."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.lock_commands import TOKEN, CommandLine
from tests.cli.program import start
from tests.cli.test_demo import Terminal
from tests.support.backend import Backend
from tests.support.lock_types import NAME, NEVER_S
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from wheel_lock.cli import target
from wheel_lock.cli.locks.watch import Change, Watcher
from wheel_lock.cli.target import Target
from wheel_lock.protocol.owners import token_id

LONG_S = 60.0


@pytest.fixture
def found(real: Backend) -> Iterator[Target]:
    with closing(target.find(real.url)) as found:
        yield found


def events(changes: list[Change]) -> list[tuple[str, str, str | None]]:
    return [(c.name.decode(), c.event, None if c.holder is None else c.holder.token_id) for c in changes]


@pytest.mark.parametrize("pattern", [False, True])
def test_changes_are_those_since_the_look_before(real: Backend, found: Target, pattern: bool) -> None:
    context = real.context()
    watcher = Watcher(None if pattern else NAME.encode(), f"{NAME[:3]}*")
    other = context.lock("another name", timeout=NEVER_S)
    assert other.acquire()
    states, changes = watcher.look(found)
    assert events(changes) == ([] if pattern else [(NAME, "free", None)])
    first, second = (context.lock(NAME, timeout=NEVER_S) for _ in range(2))
    assert first.acquire()
    one = token_id(first.token or b"")
    states, changes = watcher.look(found)
    assert events(changes) == [(NAME, "acquired", one)]
    assert [state.name.decode() for state in states] == [NAME]
    assert watcher.look(found)[1] == []
    first.release()
    assert second.acquire()
    two = token_id(second.token or b"")
    assert events(watcher.look(found)[1]) == [(NAME, "released", one), (NAME, "acquired", two)]
    second.release()
    [change] = watcher.look(found)[1]
    assert (change.event, change.state.kind) == ("released", "exclusive")
    assert watcher.look(found)[1] == []


def test_what_is_held_at_first_is_said(real: Backend, found: Target) -> None:
    with real.context().lock(NAME, timeout=NEVER_S) as lock:
        assert events(Watcher(NAME.encode(), NAME).look(found)[1]) == [(NAME, "held", token_id(lock.token or b""))]


def test_each_reader_and_a_hold_count_are_changes_of_their_own(real: Backend, found: Target) -> None:
    watcher = Watcher(None, "*")
    watcher.look(found)
    one, two = (real.context().rw_lock("table").read(), real.context().rw_lock("table").read())
    assert one.acquire()
    assert two.acquire()
    assert [change.event for change in watcher.look(found)[1]] == ["acquired", "acquired"]
    one.release()
    assert [change.event for change in watcher.look(found)[1]] == ["released"]
    field = "6fd2dd9f-1f4c-4b6b-8f6e-8d6d3e6f7a10:71"
    for count, event in (("1", "acquired"), ("2", "count")):
        real.view.hset("java", mapping={field: count})
        [change] = [change for change in watcher.look(found)[1] if change.name == b"java"]
        assert change.event == event
    seconds, _ = real.view.time()
    expiry = (int(seconds) + 60) * 1000
    real.view.zadd("many", {f"p:{number:022}": expiry for number in range(1200)})
    watcher.look(found)
    real.view.zrem("many", f"p:{0:022}")
    assert events(watcher.look(found)[1]) == [("many", "changed", None)]


def test_lines_and_json_for_a_limited_time(real: Backend, run: CommandLine) -> None:
    real.view.set(NAME, TOKEN, px=600_000)
    said = run("watch", NAME, "--seconds", "0.2", "--interval", "0.05")
    assert (said.status, said.err) == (0, "")
    [[_, event, name, kind, holder, remaining]] = said.rows
    assert (event, name, kind, holder) == ("held", NAME, "exclusive", token_id(TOKEN))
    assert remaining.endswith((" s", " min"))
    said = run("watch", "ord*", "--seconds", "0.2", "--json")
    assert said.status == 0
    assert TOKEN.decode() not in said.out
    change = json.loads(said.out)
    assert (change["event"], change["name"], change["holder"]["token_id"]) == ("held", NAME, token_id(TOKEN))


def test_changes_appear_as_they_happen_and_an_outage_is_survived(fresh_redis: RedisServer, tmp_path: Path) -> None:
    def says(text: str, times: int = 1) -> None:
        eventually(lambda: (tmp_path / "said").read_text().count(text) >= times, LONG_S)

    watched = ["watch", "--redis", fresh_redis.url, NAME, "--interval", "0.05"]
    with (tmp_path / "said").open("w") as said:
        process = start(*watched, stdout=said, stderr=subprocess.STDOUT)
    says("\tfree\t")
    fresh_redis.admin.set(NAME, TOKEN)
    says("\tacquired\t")
    fresh_redis.kill()
    says("trying again")
    fresh_redis.start()
    says("answers again")
    says("\treleased\t")
    fresh_redis.admin.set(NAME, TOKEN)
    says("\tacquired\t", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(LONG_S) == 130


def test_a_terminal_shows_a_table_and_gets_its_cursor_back(real: Backend) -> None:
    real.view.set(NAME, TOKEN, px=600_000)
    terminal = Terminal(110, 40)
    process = terminal.start("watch", "--redis", real.url, "*", "--interval", "0.1")
    terminal.wait_for(token_id(TOKEN))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LONG_S) == 143
    text = terminal.end()
    assert "*: 1 watched" in text
    assert terminal.shows_its_cursor


_IN_A_FINALISER = """
import os, signal, sys
from wheel_lock.cli import main
from wheel_lock.cli.locks import watch

class Finalised:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

look = watch.Watcher.look
def interrupted_look(self, target):
    Finalised()
    return look(self, target)
watch.Watcher.look = interrupted_look
sys.exit(main(sys.argv[1:]))
"""


def test_a_sigterm_in_a_finaliser_ends_it(redis_server: RedisServer) -> None:
    watched = ["watch", "--redis", redis_server.url, "*", "--seconds", "0.2"]
    command = [sys.executable, "-c", _IN_A_FINALISER, *watched]
    done = subprocess.run(command, capture_output=True, timeout=LONG_S, check=False)
    assert (done.returncode, done.stderr) == (143, b"")
