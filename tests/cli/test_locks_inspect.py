"""``wheel-lock inspect``: everything about one lock, and each exit status."""

from __future__ import annotations

import io
import sys

import pytest

from tests.cli.lock_commands import TOKEN, CommandLine, user
from tests.support.backend import Backend
from tests.support.lock_types import KINDS, NAME, make
from wheel_lock.cli import main
from wheel_lock.options import process_owner
from wheel_lock.protocol.keys import fence_key
from wheel_lock.protocol.owners import owner_head, token_id

TIMEOUT_S = 30.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "multi"])
def test_a_held_lock_of_each_kind(real: Backend, run: CommandLine, kind: str) -> None:
    with make(real.context(), kind, timeout=TIMEOUT_S) as lock:
        said, found = run("inspect", NAME), run("inspect", NAME, "--json")
        token = lock.token
    assert (said.status, said.err) == (0, "")
    assert said.out.isascii()
    assert said.out.splitlines()[-1] == f"{NAME} is held by {process_owner()} ({token_id(token)})."
    assert (found.status, found.json["held"]) == (0, True)
    assert found.json["holders"][0]["token_id"] == token_id(token)
    for text in (said.out, found.out):
        assert token.decode() not in text
    free = run("inspect", NAME)
    assert free.status == 3
    assert free.out.splitlines()[-1] == f"{NAME} is free."


def test_owner_fence_hold_count_readers_and_waiters(real: Backend, run: CommandLine) -> None:
    real.view.set("named", owner_head("billing@host-7") + TOKEN, px=60_000)
    real.view.set(fence_key(b"named"), "1234")
    out = run("inspect", "named").out
    assert "billing@host-7" in out
    assert "1234" in out
    real.view.hset("java", mapping={"6fd2dd9f-1f4c-4b6b-8f6e-8d6d3e6f7a10:71": "3"})
    assert "hold count 3" in run("inspect", "java").out
    context = real.context()
    with context.rw_lock("table").read(), real.context().rw_lock("table").read():
        seconds, _ = real.view.time()
        real.view.zadd("table", {b"i:" + TOKEN: -(int(seconds) + 60) * 1000})
        found = run("inspect", "table", "--json").json
        assert [holder["mode"] for holder in found["holders"]] == ["read", "read"]
        assert (found["kind"], found["waiters"]) == ("read-write", 1)
        lines = run("inspect", "table").out.splitlines()
        assert any(line.split()[:2] == ["readers", "2"] for line in lines)
    semaphore = context.semaphore("permits", 2)
    semaphore.set_permits(7)
    with semaphore:
        assert "of 7, the number set for all callers" in run("inspect", "permits").out


def test_data_that_is_no_lock_is_neither_held_nor_free(real: Backend, run: CommandLine) -> None:
    real.view.rpush(NAME, "a")
    said = run("inspect", NAME)
    assert said.status == 3
    assert "foreign (list)" in said.out
    assert "is free" not in said.out
    assert run("inspect", NAME, "--json").json["kind"] == "foreign"


def test_a_key_that_cannot_be_read_is_never_called_free(real: Backend, run: CommandLine) -> None:
    real.view.set(NAME, TOKEN, px=60_000)
    for rules in (["~other:*", "+@all"], ["~*", "+@all", "-get", "-strlen", "-type"], ["~*", "+@all", "-eval"]):
        with user(real, *rules) as url:
            for name in (NAME, "absent"):
                if name == "absent" and rules[1:] == ["+@all", "-get", "-strlen", "-type"]:
                    continue  # EXISTS answers for a key that does not exist
                said = run("inspect", name, url=url)
                assert (said.status, said.out) == (1, ""), (rules, name)
                assert said.err.count("\n") == 1
            found = run("inspect", NAME, "--json", url=url)
            assert found.status == 1
            assert found.out == "" or found.json["kind"] == "unreadable"


def test_the_key_is_read_without_the_right_to_its_companions(real: Backend, run: CommandLine) -> None:
    real.view.set(NAME, TOKEN, px=60_000)
    with user(real, f"~{NAME}", "+@all") as url:
        said = run("inspect", NAME, "--json", url=url)
    assert (said.status, said.json["kind"], said.json["listeners"]) == (0, "exclusive", None)


@pytest.mark.parametrize("name", ["", "wheel_lock:fence:{a}", "n" * 513])
def test_a_name_that_no_lock_can_have_is_refused(run: CommandLine, name: str) -> None:
    said = run("inspect", name)
    assert (said.status, said.out) == (2, "")
    assert "a lock name" in said.err


@pytest.mark.parametrize("command", ["zcount", "zrange", "zrangebyscore", "time", "pttl"])
def test_a_semaphore_that_cannot_be_read_is_neither_free_nor_held_for_decades(
    real: Backend, run: CommandLine, command: str
) -> None:
    with real.context().semaphore(NAME, 2), user(real, "~*", "&*", "+@all", f"-{command}") as url:
        said = run("inspect", NAME, url=url)
        assert (said.status, said.out) == (1, "")
        assert run("inspect", NAME, "--json", url=url).json["kind"] == "unreadable"


@pytest.mark.parametrize("command", ["inspect", "ls", "doctor"])
def test_what_an_ascii_stdout_refuses_is_escaped(real: Backend, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    name = "schl\xfcssel:1"
    real.view.set(name, owner_head("b\xfcro") + TOKEN)
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    arguments = ["--prefix", name] if command == "doctor" else [name]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        main([command, "--redis", real.url, *arguments])
    stdout.seek(0)
    expected = "b\\xfcro" if command == "inspect" else "schl\\xfcssel:1"
    assert expected in stdout.read()
