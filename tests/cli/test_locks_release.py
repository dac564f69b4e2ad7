"""``wheel-lock release``: exactly what was shown is removed, waiters are woken, and each exit status."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Callable
from contextlib import closing

import pytest

from tests.cli.lock_commands import TOKEN, CommandLine, user
from tests.cli.program import ROOT
from tests.support.backend import Backend
from tests.support.background import Background
from tests.support.lock_types import NAME, NEVER_S, listening, make
from tests.support.waiting import eventually
from wheel_lock.cli import main, target
from wheel_lock.cli.locks.looking import force_release, look_at
from wheel_lock.cli.server import ServerTrouble
from wheel_lock.options import process_owner
from wheel_lock.protocol.owners import owner_head, token_id

FORCED = (NAME, "--force", "--yes")


@pytest.mark.parametrize("kind", ["exclusive", "reentrant", "write", "fair", "semaphore"])
def test_a_lock_of_each_kind_is_released_and_its_waiter_is_woken(real: Backend, run: CommandLine, kind: str) -> None:
    holder = make(real.context(), kind, timeout=NEVER_S)
    assert holder.acquire()
    waiter = make(real.context(fallback_interval=NEVER_S), kind, timeout=NEVER_S)
    waiting = Background(waiter.acquire)
    eventually(lambda: listening(real) == 1 or waiting.done)
    said = run("release", *FORCED)
    assert (said.status, said.err) == (0, "")
    assert f"is held by {process_owner()} ({token_id(holder.token)})." in said.out
    assert said.out.splitlines()[-1] == f"{NAME} is released: 1 holder removed."
    assert waiting.result(60.0), "without a wake-up it would poll after ten minutes"


def test_it_must_be_forced_and_there_must_be_a_way_to_ask(real: Backend, run: CommandLine) -> None:
    real.view.set(NAME, TOKEN, px=60_000)
    said = run("release", NAME)
    assert (said.status, said.out) == (2, "")
    assert "--force" in said.err
    said = run("release", NAME, "--force")
    assert (said.status, said.out) == (2, "")
    assert "--yes" in said.err
    assert run("release", NAME, "--force", "--json").status == 2
    assert run("release", "wheel_lock:x", "--force", "--yes").status == 2
    assert real.view.get(NAME) == TOKEN


def test_what_may_be_no_lock_is_released_with_all_only(real: Backend, run: CommandLine) -> None:
    for value in (b"a token of a caller's own", TOKEN):  # the second has no expiry
        real.view.set(NAME, value)
        said = run("release", *FORCED)
        assert said.status == 3
        assert "--all" in said.err
        assert real.view.get(NAME) == value
        assert run("release", *FORCED, "--all").status == 0
        assert not real.view.exists(NAME)
    java = "6fd2dd9f-1f4c-4b6b-8f6e-8d6d3e6f7a10:71"
    others: list[Callable[[], object]] = [
        lambda: real.view.rpush(NAME, "a"),
        lambda: real.view.hset(NAME, mapping={"name": "Ada"}),
        lambda: real.view.zadd(NAME, {"Ada": 1.0}),
        lambda: real.view.hset(NAME, mapping={"mode": "read", java: "1"}),
    ]
    for write in others:
        write()
        for more in ((), ("--all",)):
            said = run("release", *FORCED, *more, "--json")
            assert (said.status, said.json["released"]) == (3, 0)
            assert "does not change" in said.json["reason"]
        assert real.view.delete(NAME) == 1


def test_a_key_that_cannot_be_read_or_written_stays(real: Backend, run: CommandLine) -> None:
    real.view.set(NAME, TOKEN, px=60_000)
    with user(real, "~other:*", "+@all") as url:
        said = run("release", *FORCED, url=url)
        assert (said.status, said.out) == (1, "")
        assert "cannot be read" in said.err
    with user(real, "~*", "&*", "+@all", "-del") as url:
        said = run("release", *FORCED, url=url)
        assert said.status == 1
        assert "refuses" in said.err
    assert real.view.get(NAME) == TOKEN


def test_the_documented_rights_are_enough(real: Backend, run: CommandLine) -> None:
    text = (ROOT / "docs" / "operations" / "inspecting.md").read_text("utf-8")
    to_look, to_release = (block.split()[3:] for block in re.findall(r"```acl\n(.*?)```", text, re.DOTALL))
    context = real.context()
    kinds = ["exclusive", "reentrant", "read", "write", "fair", "semaphore"]
    held = [make(context, kind, f"a {kind}", timeout=NEVER_S) for kind in kinds]
    for lock in held:
        assert lock.acquire()
    with user(real, *to_look) as url:
        said = run("ls", url=url)
        assert (said.status, len(said.rows)) == (0, len(kinds))
        for kind in kinds:
            found = run("inspect", f"a {kind}", "--json", url=url)
            assert (found.status, found.json["problem"], found.json["listeners"]) == (0, None, 0)
            assert run("release", f"a {kind}", "--force", "--yes", url=url).status == 1
    with user(real, *to_look, *to_release) as url:
        for kind in kinds:
            assert run("release", f"a {kind}", "--force", "--yes", url=url)[::2] == (0, "")
    assert run("ls").out == ""


@pytest.mark.parametrize("answer", ["y", "n", "changed"])
def test_a_terminal_is_asked(
    real: Backend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    real.view.set(NAME, owner_head("billing@host-7") + TOKEN, px=600_000)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        asked = Background(lambda: main(["release", "--redis", real.url, NAME, "--force"]))
        said = ""

        def is_asked() -> bool:
            nonlocal said
            said += "".join(capsys.readouterr())
            return "[y/N]" in said or asked.done

        eventually(is_asked)
        if answer == "changed":
            real.view.set(NAME, TOKEN, px=600_000)
        os.write(ours, b"n\n" if answer == "n" else b"y\n")
        assert asked.result(60.0) == (0 if answer == "y" else 3)
    os.close(ours)
    said += "".join(capsys.readouterr())
    assert "billing@host-7" in said
    assert TOKEN.decode() not in said
    assert real.view.exists(NAME) == (answer != "y")
    if answer == "changed":
        assert "other holders meanwhile" in said
        assert real.view.get(NAME) == TOKEN


def test_a_release_without_a_reply_is_not_sent_again(real: Backend) -> None:
    real.view.set(NAME, TOKEN, px=60_000)
    proxy = real.proxy()
    with closing(target.find(f"redis://127.0.0.1:{proxy.port}/0")) as found:
        state = look_at(found, NAME.encode())
        proxy.cut_at_next_byte("to_client")
        with pytest.raises(ServerTrouble, match="it is not known whether the lock is released"):
            force_release(found, NAME.encode(), state)
    assert real.view.get(NAME) is None
