"""A unix socket at which a context shows its state, for ``wheel-lock top``. Opened on request, for its own user only.

A client sends lines of JSON and gets one line for each: ``{"get": "state", "names": 10}`` or ``{"get": "dump"}``. The
server has a daemon thread of its own, which neither changes anything nor asks a Redis server.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import json
import logging
import os
import socket
import stat
import struct
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from wheel_lock.diagnostics.dump import dumped, state
from wheel_lock.engine.engine import Engine
from wheel_lock.forks import in_forked_child
from wheel_lock.options import MAX_SOCKET_PATH_BYTES, socket_path
from wheel_lock.runtime import native
from wheel_lock.runtime.greenlets import new_thread
from wheel_lock.runtime.weak_registry import WeakRegistry

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, which has none of what follows
    pass

logger: logging.Logger = logging.getLogger("wheel_lock")

MAX_NAMES = 1000
DEFAULT_NAMES = 10
_MAX_LINE = 4096
_MAX_CLIENTS = 16
_LOOK_S = 0.5  # how often the thread looks whether the context is closed, and its pause where no descriptor is left
_SEND_S = 2.0  # the longest time for which a client that does not read keeps the others waiting
_READ = 1  # as in selectors
_ATTEMPTS = 100  # to lock a directory
_ATTEMPT_S = 0.01
_numbers = itertools.count(1)


def directories(uid: int) -> Iterator[str]:
    """Yield the directories of sockets of the user ``uid``, the first choice first. They need not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and uid == os.geteuid():
        yield os.path.join(runtime, "wheel-lock")
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):
        yield os.path.join(parent, f"wheel-lock-{uid}")


def serve_debug(engine: Engine, path: object = None) -> str:
    """Open the debug socket of ``engine``; return its path. See :meth:`wheel_lock.LockContext.serve_debug`."""
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, "this system has no unix sockets")
    given = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(given, str | None):
        raise TypeError(f"path must be a str or a path, not {type(path).__name__}")
    wanted = None if given is None else socket_path("path", given)
    server = SERVER_OF.get(engine)
    if server is not None:
        if wanted in (None, server.path):
            return server.path
        raise ValueError(f"the context is shown at {server.path} already, so it cannot be shown at {wanted}")
    SERVER_OF[engine] = server = DebugServer(engine, wanted or _default_path())
    return server.path


def _default_path() -> str:
    """Return a path for one more socket of this process, in a directory for this user only."""
    problem: OSError | None = None
    number = next(_numbers)
    name = f"{os.getpid()}.sock" if number == 1 else f"{os.getpid()}-{number}.sock"
    for directory in directories(os.geteuid()):
        path = os.path.join(directory, name)
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            try:
                _own_directory(directory)
                return path
            except OSError as error:
                problem = error
    raise problem or OSError(errno.ENAMETOOLONG, "there is no directory with a path short enough for a socket")


def _own_directory(path: str) -> None:
    """Make a directory of mode 0700. Raises OSError if it belongs to another user, or others may use it."""
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)  # the process's umask may have taken rights away
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            message = "must be a directory of this user with mode 0700"
            raise PermissionError(errno.EPERM, message, path) from None


@contextmanager
def _one_at_a_time(directory: str) -> Iterator[None]:
    """Keep other processes from making a socket in the same directory.

    A socket refuses connections until its process listens: to another process it looks like one that has been left behind.
    Raises OSError if another process has kept it for a second.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not attempts_left:
                    raise
            time.sleep(_ATTEMPT_S)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of the descriptor
    finally:
        os.close(descriptor)


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """Remove the socket of a process that has ended. Raises FileExistsError if there is something else, or it is served."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "there is something that is not a socket", path)
    with native.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full backlog means that it is served
        refused = probe.connect_ex(path) == errno.ECONNREFUSED
    if not refused:
        raise FileExistsError(errno.EEXIST, "another process serves this socket", path)
    with suppress(FileNotFoundError):
        os.unlink(path)


class DebugServer:
    """Serves the socket at ``path``, as long as others keep ``engine``. Raises OSError if it cannot be made there."""

    def __init__(self, engine: Engine, path: str) -> None:
        self.path = path
        self._engine = weakref.ref(engine)
        self._closed = False
        self._listener = listener = native.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listener.fileno(), 0o600)  # on Linux the file is made with this mode
            listener.setblocking(False)
            with _one_at_a_time(os.path.dirname(path) or os.curdir):
                _remove_stale(path)
                listener.bind(path)
                os.chmod(path, 0o600)
                listener.listen(_MAX_CLIENTS)
                self._file = _identity(path)
        except BaseException:
            listener.close()
            raise
        self._selector = native.DefaultSelector()
        self._clients: dict[Any, bytes] = {}  # the beginning of the next line, by client
        self._selector.register(listener, _READ)
        SERVERS.add(self)
        self._thread = new_thread(self._serve, "wheel-lock-debug")
        try:
            self._thread.start()
        except BaseException:
            self.close()
            self._close_all()
            raise

    def close(self) -> None:
        """Remove the socket; its thread ends soon. A second call does nothing."""
        if not self._closed:
            self._end()
            with suppress(OSError):
                if _identity(self.path) == self._file:  # no other process replaces it as long as the listener is open
                    os.unlink(self.path)
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def after_fork_in_child(self) -> None:
        """Close the copies of the parent's sockets; the parent goes on serving."""
        self._end()
        self._close_all()

    def _end(self) -> None:
        self._closed = True
        engine = self._engine()
        if engine is not None and SERVER_OF.get(engine) is self:
            SERVER_OF.pop(engine, None)  # its thread may be here at the same time

    def _close_all(self) -> None:
        for sock in (self._listener, *self._clients):
            with suppress(OSError):
                sock.close()
        self._clients.clear()
        with suppress(OSError):
            self._selector.close()

    def _serve(self) -> None:
        try:
            while not self._closed:
                ready = self._selector.select(_LOOK_S)
                engine = self._engine()
                if self._closed or engine is None or engine.over:
                    break
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._answer(key.fileobj, engine)
                del engine, ready  # before the next wait: this thread keeps no context
        finally:
            self.close()
            self._close_all()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # the process has no descriptor left, say, and the listener stays readable
            native.sleep(_LOOK_S)
            return
        with suppress(OSError):
            if len(self._clients) < _MAX_CLIENTS and _is_own(client):
                client.settimeout(_SEND_S)
                self._selector.register(client, _READ)
                self._clients[client] = b""
                return
        client.close()

    def _answer(self, client: Any, engine: Engine) -> None:
        """Read from a client and answer it. A failure costs this client only."""
        try:
            received = client.recv(_MAX_LINE)
            *lines, rest = (self._clients[client] + received).split(b"\n")
            if received and len(rest) <= _MAX_LINE:
                self._clients[client] = rest
                for line in lines:
                    client.sendall(json.dumps(_answer(engine, line)).encode() + b"\n")
                return
        except OSError:
            pass
        except Exception:
            logger.exception("a client of the debug socket could not be answered")
        del self._clients[client]
        self._selector.unregister(client)
        client.close()


def _is_own(client: Any) -> bool:
    """Return whether the peer is this user or root, where the system says who it is."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True  # the mode of the socket decides
    _, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return uid in (0, os.geteuid())


def _answer(engine: Engine, line: bytes) -> dict[str, Any]:
    """Return the answer to one request."""
    try:
        request = json.loads(line)
        wanted, names = request["get"], min(max(int(request.get("names", DEFAULT_NAMES)), 0), MAX_NAMES)
    except Exception:  # whatever a client may send
        wanted, names = None, 0
    if wanted == "dump":
        return {"dump": dumped(engine)}
    if wanted == "state":
        return state(engine, names)
    return {"error": 'the request must be {"get": "state", "names": NUMBER} or {"get": "dump"}'}


SERVER_OF: weakref.WeakKeyDictionary[Engine, DebugServer] = weakref.WeakKeyDictionary()
SERVERS: WeakRegistry[DebugServer] = WeakRegistry()  # also those whose context is gone


@in_forked_child
def _after_fork() -> None:
    for server in SERVERS:
        server.after_fork_in_child()


@atexit.register
def _at_exit() -> None:
    for server in SERVERS:
        server.close()
