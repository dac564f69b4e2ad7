"""Where the keeper is said to be, and what is refused before anything is sent."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.lock_commands import refusal
from tests.cli.program import ROOT
from tests.support.background import Background, in_a_fork
from wheel_lock import LockContext, options
from wheel_lock.keeper import child

NOBODY = redis.Redis(port=1)


@pytest.mark.parametrize("where", ["", b"/tmp/x", 1, 0.5, "/tmp/" + "x" * 103, "a\0b"])
def test_a_place_that_is_none_is_refused(where: Any) -> None:
    with pytest.raises(ValueError, match="release_on_crash must be"):
        LockContext(NOBODY, release_on_crash=where)


@pytest.mark.parametrize("delay", [-1, "1", None])
def test_a_delay_that_is_none_is_refused(delay: Any) -> None:
    with pytest.raises(ValueError, match="release_delay must be"):
        LockContext(NOBODY, release_delay=delay)


@pytest.mark.parametrize(
    ("where", "place"), [(None, False), (False, False), (True, True), (Path("a"), str(Path.cwd() / "a"))]
)
def test_a_place_is_a_switch_or_an_absolute_path(where: Any, place: object) -> None:
    assert options.keeper_place("release_on_crash", where) == place


def test_the_environment_says_where_the_keeper_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEEL_LOCK_KEEPER", "/run/keeper.sock")
    with LockContext(NOBODY) as context:
        assert context._engine.options.release_on_crash == "/run/keeper.sock"
    with LockContext(NOBODY, release_on_crash=False) as context:
        assert context._engine.keeping is None
    monkeypatch.setenv("WHEEL_LOCK_KEEPER", "")
    with pytest.raises(ValueError, match="WHEEL_LOCK_KEEPER must be"):
        LockContext(NOBODY)


def test_without_a_keeper_nothing_of_it_is_imported() -> None:
    script = (
        "import sys, redis, wheel_lock\n"
        "wheel_lock.LockContext(redis.Redis()).close()\n"
        "print([name for name in sys.modules if 'wheel_lock.keeper' in name])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_system_without_pidfds_has_no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.pidfd_open", raising=False)
    with pytest.raises(ValueError, match="release_on_crash needs Linux"):
        LockContext(NOBODY, release_on_crash=True)


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, said = refusal(capsys, "keeper", "--socket", "x" * 200)
    assert status == 2
    assert "--socket must be a path" in said
    status, said = refusal(capsys, "keeper", "--socket", str(tmp_path))
    assert status == 1
    assert "cannot make the socket" in said
    served = str(tmp_path / "served")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(served)
        listener.listen()
        assert refusal(capsys, "keeper", "--socket", served) == (1, f"wheel-lock: a keeper serves {served!r} already\n")


def test_a_fork_while_a_keeper_is_being_started_leaves_no_lock_behind() -> None:
    def take_it() -> None:
        assert child.CHILD.lock.acquire(False)

    taken, over = threading.Event(), threading.Event()
    starting = Background(lambda: (child.CHILD.lock.acquire(), taken.set(), over.wait(), child.CHILD.lock.release()))
    taken.wait()
    in_a_fork(take_it)
    over.set()
    starting.result()
