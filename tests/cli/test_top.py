"""``wheel-lock top``: through a real socket, plain, as JSON and live, and each way in which it ends."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.backend import Backend
from tests.support.background import Background
from tests.support.waiting import eventually
from wheel_lock import LockContext
from wheel_lock.cli import main
from wheel_lock.cli.top import Client, _live, lines, screen


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory, in which sockets are made and found by default."""
    path = Path(tempfile.mkdtemp(prefix="wl-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def served(real: Backend, directory: Path) -> tuple[LockContext, str]:
    context = real.context(label="billing", timer=real.timer())
    return context, context.serve_debug(directory / "billing.sock")


Top = Callable[..., str]


@pytest.fixture
def top(capsys: pytest.CaptureFixture[str]) -> Top:
    """What runs it, and returns what it prints: on stderr if the status is not 0."""

    def run(*arguments: str, status: int = 0) -> str:
        assert main(["top", *arguments]) == status
        out, err = capsys.readouterr()
        assert (err == "") == (status == 0)
        return out if status == 0 else err

    return run


def test_json_has_everything(served: tuple[LockContext, str], top: Top) -> None:
    context, path = served
    with context.lock("order:42"), context.lock("order:43"):
        found = json.loads(top(path, "--json", "--names", "1"))
    assert (found["label"], found["pid"], found["stats"]["held"]) == ("billing", os.getpid(), 2)
    assert [lock["name"] for lock in found["locks"]] == ["order:42"]
    assert set(found) >= {"health", "lag", "slack", "time_left", "waits"}


def test_plain_lines_elsewhere_than_on_a_terminal(served: tuple[LockContext, str], top: Top) -> None:
    context, path = served
    with context.lock("order:\x1b[31m42"):
        waiter = Background(lambda: context.lock("order:\x1b[31m42", blocking_timeout=30.0).acquire())
        eventually(lambda: context.stats().waiting == 1)
        text = top(path)
    waiter.result()
    assert text.splitlines()[0] == f"billing in process {os.getpid()}: ok"
    assert "held: 1\n" in text
    assert "\nlock 'order:\\x1b[31m42': token " in text
    assert "\nwait 'order:\\x1b[31m42': 1 for " in text
    assert "\x1b" not in text


def test_a_process_is_found_by_its_number_or_alone(real: Backend, top: Top) -> None:
    assert "no socket of this user" in top(status=1)
    real.context(label="one").serve_debug()
    for target in ([], [str(os.getpid())]):
        assert top(*target).startswith("one in process")
    real.context(label="two").serve_debug()
    assert "several sockets" in top(status=2)
    assert "several sockets" in top(str(os.getpid()), status=2)


def test_a_directory_of_another_user_is_not_used(real: Backend, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    real.context(label="one").serve_debug()
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    assert "no socket of this user" in top(status=1)


@pytest.mark.parametrize(("arguments", "status"), [(["/nowhere/top.sock"], 1), (["999999999"], 1)])
def test_errors_are_one_sentence(top: Top, arguments: list[str], status: int) -> None:
    assert top(*arguments, status=status).count("\n") == 1


def test_a_socket_of_something_else_is_an_error(directory: Path, top: Top) -> None:
    path = str(directory / "other.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer(text: bytes) -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(text)

        for text, expected in [(b"{}\n", "not the socket of a context"), (b"\xff\n", "not the"), (b"", "has ended")]:
            other = Background(partial(answer, text))
            assert expected in top(path, status=1)
            other.result()


def test_it_is_live_until_the_context_is_closed(
    served: tuple[LockContext, str], capsys: pytest.CaptureFixture[str]
) -> None:
    context, path = served
    screen_text = io.StringIO()
    console = Console(file=screen_text, force_terminal=True, width=100, height=40, _environ={})
    lock = context.lock("order:42")
    lock.acquire()
    with closing(Client(path)) as client:
        live = Background(lambda: _live(console, client, 0.01, 5))
        eventually(lambda: screen_text.getvalue().count("order:42") > 2)
        lock.release()
        context.close()
        live.result()
    assert "has ended" in capsys.readouterr().err


def test_the_screen_shows_what_the_lines_show(served: tuple[LockContext, str]) -> None:
    context, path = served
    with context.lock("order:42"):
        client = Client(path)
        state = client.state(5)
        client.close()
    state["health"].update(ok=False, reasons=["bad\x1b[31m news"])
    console = Console(file=io.StringIO(), width=120, record=True, _environ={})
    console.print(screen(state))
    text = console.export_text()
    for part in ("not ok", "bad\\x1b[31m news", "order:42", "lag p99", "time left min", "connected"):
        assert part in text
        assert part in "\n".join(lines(state))
