"""The client of a debug socket: finds the socket of a process, asks, and parses the answer."""

from __future__ import annotations

import glob
import json
import os
import socket
from collections.abc import Iterator
from typing import Any

from wheel_lock.cli.arguments import USAGE, Refusal
from wheel_lock.diagnostics.debug_socket import directories
from wheel_lock.options import MAX_SOCKET_PATH_BYTES

_ANSWER_S = 10.0


class Ended(Refusal):
    """The process has closed the socket."""

    def __init__(self) -> None:
        super().__init__("the process has ended, or has closed its context")


def find(target: str | None) -> str:
    """Return the path of the socket that ``target`` means: a path, the number of a process, or None for the only one.

    Raises:
        Refusal: There is none, or there are several.
    """
    if target is not None and not target.isdigit():
        if len(os.fsencode(target)) > MAX_SOCKET_PATH_BYTES:
            raise Refusal(f"the path of a socket has at most {MAX_SOCKET_PATH_BYTES} bytes", USAGE)
        return target
    found = list(_sockets(target))
    if len(found) == 1:
        return found[0]
    whose = "this user" if target is None else f"process {target}"
    if not found:
        raise Refusal(
            f"there is no socket of {whose}: a process opens one by context.serve_debug(), which returns its path",
        )
    raise Refusal(f"there are several sockets of {whose}, name one of them: {' '.join(found)}", USAGE)


def _sockets(pid: str | None) -> Iterator[str]:
    """Yield the sockets of a process, or of all processes of this user, that are served."""
    uid = os.geteuid()
    if pid is not None:
        try:
            uid = os.stat(f"/proc/{pid}").st_uid
        except OSError:
            pass  # it has ended, or the system has no such files
    for directory in dict.fromkeys(directories(uid)):
        if not _belongs_to(directory, uid):
            continue  # any user can make it, and answer there
        start = os.path.join(glob.escape(directory), "*" if pid is None else pid)
        for path in sorted({*glob.glob(f"{start}.sock"), *glob.glob(f"{start}-*.sock")}):
            try:
                Client(path).close()
                yield path
            except Refusal:
                pass  # the process has ended


def _belongs_to(directory: str, uid: int) -> bool:
    try:
        return os.lstat(directory).st_uid == uid
    except OSError:
        return False


class Client:
    """A connection to a debug socket.

    Args:
        path: The path of the socket.

    Raises:
        Refusal: The socket is not served, or may not be used.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise Refusal(f"cannot connect to {path}: {error.strerror or error}") from None
        self._file = self._socket.makefile("rb")

    def state(self, names: int) -> dict[str, Any]:
        """Return the state of the context, with at most ``names`` names.

        Raises:
            Ended: The process has closed the socket.
            Refusal: It does not answer, or answers something else.
        """
        try:
            self._socket.sendall(json.dumps({"get": "state", "names": names}).encode() + b"\n")
            line = self._file.readline()
        except TimeoutError:
            raise Refusal(f"{self._path} does not answer within {_ANSWER_S:g} s") from None
        except OSError:
            line = b""
        if not line:
            raise Ended
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or "health" not in answer:
            raise Refusal(f"{self._path} is not the socket of a context")
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()
