"""How a process reaches its keeper: by the path of a socket, or as a child of its own, which it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from wheel_lock.exclusion import Lock, exclusively
from wheel_lock.forks import in_forked_child
from wheel_lock.keeper import PROGRAM
from wheel_lock.keeper.program import MOST_BYTES, user_of
from wheel_lock.runtime.native import RLock

ANSWER_S = 20.0  # the longest wait for the keeper, or for its start, on a machine that is overloaded
_CROWDED_S = 0.01  # between two attempts at a socket with too many that connect


class _Child:
    """The keeper that is a child of this process, for all of its contexts. From helper threads."""

    def __init__(self) -> None:
        self.lock: Lock = RLock()  # held while one is started
        self.address: bytes | None = None  # that of its socket, which has no name in the file system
        self.listener: socket.socket | None = None  # the socket, while it is being passed to the child

    def connect(self) -> socket.socket:
        """Return a connection to it; start it if there is none."""
        return exclusively(self.lock, self._connect)

    def _connect(self) -> socket.socket:
        if self.address is not None:
            try:
                return connected(self.address)
            except (ConnectionRefusedError, PermissionError):
                pass  # it has ended, or is that of a parent whose user was another one
        self._start()
        assert self.address is not None
        return connected(self.address)

    def _start(self) -> None:
        parent = os.pidfd_open(os.getpid())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                self.listener = listener
                listener.bind(b"")  # the system chooses an address
                listener.listen(socket.SOMAXCONN)
                subprocess.run(
                    [sys.executable, "-I", "-S", os.fspath(PROGRAM), str(listener.fileno()), str(parent)],
                    pass_fds=[listener.fileno(), parent],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    timeout=ANSWER_S,
                    check=True,
                )
                self.address = listener.getsockname()
        finally:
            self.listener = None
            os.close(parent)


def connected(address: str | bytes) -> socket.socket:
    """Return a connection to the keeper at an address.

    Raises:
        PermissionError: What listens there is another user's.
        OSError: Nothing listens there.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    until = time.monotonic() + ANSWER_S
    try:
        sock.settimeout(ANSWER_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MOST_BYTES // 2)  # of which the kernel makes twice as much
        while True:
            try:
                sock.connect(address)
                break
            except BlockingIOError:  # more connect at this moment than it has room for
                if time.monotonic() > until:
                    raise
                time.sleep(_CROWDED_S)
        if user_of(sock) != os.geteuid():  # who would get connections that are authenticated
            raise PermissionError("what listens there is another user's")
        return sock
    except BaseException:
        sock.close()
        raise


CHILD: _Child = _Child()


@in_forked_child
def _free_child() -> None:
    """Let a forked child connect to the keeper, or start one, whatever another thread of its parent was about to do."""
    CHILD.lock = RLock()
    listener, CHILD.listener = CHILD.listener, None
    if listener is not None:
        os.close(listener.detach())  # else its backlog would take connections when the keeper has ended
