"""``wheel-lock ls``: which keys it lists and which it hides, what it prints where, and each exit status."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.cli.lock_commands import TOKEN, CommandLine, user
from tests.cli.program import start
from tests.cli.test_demo import TERMINAL, Terminal
from tests.support.backend import Backend
from tests.support.lock_types import KINDS, make
from wheel_lock.protocol.owners import owner_head

TIMEOUT_S = 30.0
KIND_OF = {"read": "read-write", "write": "read-write"}


def lock(client: redis.Redis, *names: str, head: bytes = b"") -> None:
    for name in names:
        client.set(name, head + TOKEN, px=60_000)


def test_locks_of_every_kind_are_lines_and_other_keys_are_not(real: Backend, run: CommandLine) -> None:
    context = real.context()
    kinds = [kind for kind in KINDS if kind != "multi"]
    locks = [make(context, kind, f"a {kind}", timeout=TIMEOUT_S) for kind in kinds]
    locks.append(context.lock("a fence", timeout=TIMEOUT_S, fencing=True))
    for one in locks:
        assert one.acquire()
    context.semaphore("a semaphore", 3).set_permits(3)
    real.view.set("cache", "value")
    real.view.hset("user", "name", "Ada")
    real.view.rpush("jobs", "a")
    said = run("ls")
    assert (said.status, said.err) == (0, "wheel-lock: 3 keys of other kinds: --all lists them\n")
    assert {row[0]: row[1] for row in said.rows} == {
        **{f"a {kind}": KIND_OF.get(kind, kind) for kind in kinds},
        "a fence": "exclusive",
    }
    for name, _, _, remaining, count in said.rows:
        assert 0 < float(remaining.removesuffix(" s")) <= TIMEOUT_S, name
        assert count == "1"
    assert not any(one.token.decode() in said.out for one in locks)
    everything = run("ls", "--all")
    assert {row[0] for row in everything.rows} == {row[0] for row in said.rows} | {"cache", "user", "jobs"}
    assert {row[1] for row in everything.rows} >= {"foreign (string)", "foreign (hash)", "foreign (list)"}


def test_json_has_all_fields_of_what_the_pattern_matches(real: Backend, run: CommandLine) -> None:
    lock(real.view, "order:1", "other", head=owner_head("billing@host-7"))
    real.view.set("order:text", "value")
    said = run("ls", "order:*", "--json")
    found = said.json
    assert said.status == 0
    assert (found["server"], found["pattern"]) == (f"127.0.0.1:{real.port}", "order:*")
    assert (found["found"], found["foreign"], found["unreadable"]) == (1, 1, 0)
    [one] = found["locks"]
    [holder] = one["holders"]
    assert (one["name"], one["kind"], one["held"], one["key_type"]) == ("order:1", "exclusive", True, "string")
    assert (holder["owner"], holder["count"], holder["mode"]) == ("billing@host-7", 1, "exclusive")
    assert 0 < holder["remaining_s"] <= 60


def test_many_keys_are_scanned_in_batches_and_never_by_keys(real: Backend, run: CommandLine) -> None:
    pipeline = real.view.pipeline(transaction=False)
    for number in range(3000):
        pipeline.set(f"lock:{number}" if number % 3 == 0 else f"cache:{number}", TOKEN if number % 3 == 0 else b"v")
    pipeline.execute()
    real.view.config_resetstat()
    said = run("ls")
    assert said.status == 0
    assert sorted(row[0] for row in said.rows) == sorted(f"lock:{number}" for number in range(0, 3000, 3))
    called = real.view.info("commandstats")
    assert "cmdstat_keys" not in called
    assert called["cmdstat_scan"]["calls"] >= 3


def test_names_and_owners_cannot_garble_the_output(real: Backend, run: CommandLine) -> None:
    real.view.set(b"evil\x1b[2J\ttab\nline\xff", TOKEN)
    said = run("ls")
    [row] = said.rows
    assert row[0] == "evil\\x1b[2J\\ttab\\nline\\xff"
    assert row[3] == "no expiry"
    assert run("ls", "--json").json["locks"][0]["remaining_s"] is None


def test_keys_that_cannot_be_read_are_said_and_end_with_status_1(real: Backend, run: CommandLine) -> None:
    lock(real.view, "mine:1", "theirs:1")
    with user(real, "~mine:*", "+@all") as url:
        said = run("ls", url=url)
        assert said.status == 1
        assert {row[0]: row[1] for row in said.rows} == {"mine:1": "exclusive", "theirs:1": "cannot be read"}
        assert "1 key cannot be read" in said.err
        found = run("ls", "--json", url=url).json
        assert (found["found"], found["unreadable"]) == (1, 1)
        assert run("ls", "mine:*", url=url).status == 0


@pytest.mark.parametrize("command", ["eval", "scan", "get"])
def test_a_missing_right_to_a_command_is_named(real: Backend, run: CommandLine, command: str) -> None:
    lock(real.view, "order:1")
    with user(real, "~*", "+@all", f"-{command}") as url:
        said = run("ls", url=url)
    assert said.status == 1
    if command != "get":
        assert said.out == ""
        assert f"'{command}'" in said.err
    else:
        assert said.rows[0][1] == "cannot be read"


def test_a_terminal_shows_a_table(real: Backend) -> None:
    lock(real.view, "order:1", head=owner_head("billing@host-7"))
    real.view.set("cache", "value")
    text = Terminal(110, 40).shown_by("ls", env={**TERMINAL, "WHEEL_LOCK_REDIS": real.url})
    assert "looking for locks" in text
    assert "HOLDER" in text
    assert "billing@host-7" in text
    assert "1 lock, and 1 key of other kinds" in text


def test_lines_reach_their_file_beside_a_bar_on_the_terminal(real: Backend, tmp_path: Path) -> None:
    lock(real.view, "order:1")
    terminal = Terminal(110, 40)
    with (tmp_path / "lines").open("w") as lines:
        process = start("ls", "--redis", real.url, stdout=lines, stderr=terminal.theirs, env=TERMINAL)
        assert process.wait(timeout=60) == 0
    assert "looking for locks" in terminal.end()
    assert (tmp_path / "lines").read_text().startswith("order:1\texclusive\t")
