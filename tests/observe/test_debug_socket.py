"""The socket at which a context is shown: whose it is, what it replaces, and when it ends."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import socket
import stat
import sys
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from tests.support.backend import Backend
from tests.support.background import in_a_fork
from tests.support.waiting import eventually
from wheel_lock import ContextClosed, LockContext
from wheel_lock.diagnostics import debug_socket
from wheel_lock.diagnostics.debug_socket import SERVER_OF, DebugServer, _own_directory
from wheel_lock.options import MAX_SOCKET_PATH_BYTES


def asked(path: str | Path, *lines: bytes) -> list[dict[str, object]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30.0)
        client.connect(str(path))
        client.sendall(b"".join(line + b"\n" for line in lines))
        with client.makefile("rb") as file:
            return [json.loads(file.readline()) for _ in lines]


def is_served(path: str | Path) -> bool:
    try:
        return bool(asked(path, b'{"get": "state"}'))
    except (OSError, ValueError):
        return False


@pytest.fixture
def path(labelled: LockContext, short_dir: Path) -> str:
    """Where a context is shown."""
    return labelled.serve_debug(short_dir / "top.sock")


def test_it_answers_and_only_its_user_may_ask(labelled: LockContext, path: str, label: str) -> None:
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with labelled.lock("held"):
        state, dump = asked(path, b'{"get": "state", "names": 3}', b'{"get": "dump"}')
    assert (state["label"], state["pid"]) == (label, os.getpid())
    assert "'held': " in str(dump["dump"])


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"get",
        b"[]",
        b'{"get": "all"}',
        b'{"get": "state", "names": "many"}',
        b"\xff",
        b"[" * 4000,
        b"1e999",
        b'{"get": "state", "names": 1e999}',
    ],
)
def test_malformed_requests_are_answered_with_an_error(path: str, line: bytes) -> None:
    refused, served = asked(path, line, b'{"get": "state"}')
    assert "error" in refused
    assert "health" in served


def test_a_failure_costs_one_client(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(engine: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("wheel_lock.diagnostics.debug_socket.dumped", fails)
    with pytest.raises(ValueError, match="Expecting value"):  # hung up on
        asked(path, b'{"get": "dump"}')
    assert is_served(path)
    assert "could not be answered" in caplog.text


def server_of(context: LockContext) -> DebugServer:
    return SERVER_OF[context._engine]


def test_an_accept_that_fails_is_repeated_after_a_pause(
    labelled: LockContext, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = server_of(labelled)._listener
    accept, attempts = type(listener).accept, list[float]()

    def without_descriptors(self: socket.socket) -> object:
        if self is listener:
            attempts.append(time.monotonic())
            if len(attempts) <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(type(listener), "accept", without_descriptors)
    assert is_served(path)
    assert all(later - sooner > 0.4 for sooner, later in pairwise(attempts[:3]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_socket_whose_thread_has_ended_is_made_anew(
    labelled: LockContext, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = server_of(labelled)
    monkeypatch.setattr(server._selector, "select", lambda timeout: sys.exit())
    eventually(lambda: labelled._engine not in SERVER_OF)
    server._thread.join(30.0)  # so that its exception is reported in this test, which expects it
    assert labelled.serve_debug() != path
    assert is_served(labelled.serve_debug())


def send_without_end(client: socket.socket) -> None:
    while True:
        client.sendall(b"x" * 10_000)


def test_an_endless_line_and_too_many_clients_are_hung_up_on(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.settimeout(30.0)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_without_end(client)
    with ExitStack() as stack:
        for _ in range(20):
            last = stack.enter_context(socket.socket(socket.AF_UNIX))
            last.connect(path)
        last.settimeout(30.0)
        assert last.recv(1) == b""
    eventually(lambda: is_served(path))


def test_the_default_path_is_in_a_directory_of_its_own(
    labelled: LockContext, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    path = Path(labelled.serve_debug())
    assert path.parent == short_dir / "wheel-lock"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.name.startswith(str(os.getpid()))
    assert labelled.serve_debug() == labelled.asyncio.serve_debug(path) == str(path)
    with pytest.raises(ValueError, match="already"):
        labelled.serve_debug(short_dir / "another.sock")


def test_a_directory_that_others_may_use_is_not_used(short_dir: Path) -> None:
    for mode in (0o755, 0o777, 0o710):
        os.chmod(short_dir, mode)
        with pytest.raises(PermissionError):
            _own_directory(str(short_dir))
    (short_dir / "link").symlink_to(short_dir)
    with pytest.raises(PermissionError):
        _own_directory(str(short_dir / "link"))


def test_a_stale_socket_is_replaced_and_nothing_else_is(labelled: LockContext, real: Backend, short_dir: Path) -> None:
    path = short_dir / "top.sock"
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(path))
    labelled.serve_debug(path)
    other = real.context()
    with pytest.raises(FileExistsError, match="another process serves"):
        other.serve_debug(path)
    assert is_served(path)
    (short_dir / "file").write_text("data")
    with pytest.raises(FileExistsError, match="not a socket"):
        other.serve_debug(short_dir / "file")
    assert (short_dir / "file").read_text() == "data"


def test_a_socket_that_another_process_is_about_to_serve_is_left_alone(
    labelled: LockContext, short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wheel_lock.diagnostics.debug_socket._ATTEMPTS", 2)
    path, directory = short_dir / "top.sock", os.open(short_dir, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)
    with socket.socket(socket.AF_UNIX) as beginning:
        beginning.bind(str(path))
        with pytest.raises(BlockingIOError):
            labelled.serve_debug(path)
        beginning.listen()
        os.close(directory)
        with pytest.raises(FileExistsError, match="another process serves"):
            labelled.serve_debug(path)


def test_a_close_leaves_the_socket_that_another_process_has_put_in_its_place(labelled: LockContext, path: str) -> None:
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        labelled.close()
        assert os.path.lexists(path)


@pytest.mark.parametrize("bad", ["", "x" * (MAX_SOCKET_PATH_BYTES + 1), "nul\0byte", 7, b"bytes", ["list"]])
def test_a_path_that_no_socket_can_have_is_refused(labelled: LockContext, bad: Any) -> None:
    with pytest.raises(ValueError if isinstance(bad, str) else TypeError, match="path"):
        labelled.serve_debug(bad)


def test_a_close_removes_it(labelled: LockContext, path: str) -> None:
    labelled.close()
    assert not os.path.lexists(path)
    eventually(lambda: "wheel-lock-debug" not in [thread.name for thread in threading.enumerate()])
    with pytest.raises(ContextClosed):
        labelled.serve_debug(path)


def test_its_thread_and_a_caller_may_close_it_at_once(
    labelled: LockContext, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Overtaken(WeakKeyDictionary[Any, Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return self.pop(key, default)  # the other one is ahead right behind the look

    server = server_of(labelled)
    monkeypatch.setattr(debug_socket, "SERVER_OF", Overtaken({labelled._engine: server}))
    server.close()
    assert not Path(path).exists()


def test_it_does_not_keep_a_context(real: Backend, short_dir: Path) -> None:
    path = LockContext(real.client()).serve_debug(short_dir / "top.sock")

    def gone() -> bool:
        gc.collect()
        return not os.path.lexists(path)

    eventually(gone)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_does_not_serve_it_and_the_parent_goes_on(
    labelled: LockContext, short_dir: Path, path: str
) -> None:
    def child() -> None:
        (state,) = asked(path, b'{"get": "state"}')
        assert state["pid"] == os.getppid()
        own = labelled.serve_debug(short_dir / "child.sock")
        (state,) = asked(own, b'{"get": "state"}')
        assert state["pid"] == os.getpid()
        labelled.close()
        assert not os.path.lexists(own)
        assert os.path.lexists(path)

    in_a_fork(child)
    assert is_served(path)
