"""Programs that are forked from a process which has imported all they need, for that takes longer than most of them run.

`python -m tests.support.fork_server <module> <argument>...` imports the module, which finds the arguments in sys.argv, and
then forks a child for each that is asked for: it calls the module's `main`, and ends as a program does that comes to its
end. Until then nothing of the module may have started a thread. What is called here after the import is taken before it,
as the module may patch it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from os import close, dup2, fork, waitpid
from pathlib import Path
from select import poll
from socket import AF_UNIX, SHUT_RDWR, SOCK_SEQPACKET, recv_fds, send_fds, socket, socketpair
from typing import Any, Self

ROOT = Path(__file__).parents[2]
ANSWER_S = 60.0
MANY_FDS = 9
MOST = 65_536  # limit of a request in bytes


class ForkServer:
    """The test's side. Use it in a `with`."""

    def __init__(self, module: str, *arguments: str, options: Sequence[str] = ()) -> None:
        self._socket, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        with theirs:
            command = [
                sys.executable,
                *options,
                "-m",
                "tests.support.fork_server",
                f"{theirs.fileno()}",
                module,
                *arguments,
            ]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def start(
        self, *arguments: str, fds: Sequence[int] = (), stdout: int | None = None, stderr: int | None = None
    ) -> Child:
        """Fork a program, whose `main` is called with the arguments and with the numbers that `fds` have there."""
        outputs = [fd for fd in (stdout, stderr) if fd is not None]
        where = [number for number, fd in ((1, stdout), (2, stderr)) if fd is not None]
        request = {"start": arguments, "outputs": where}
        send_fds(self._socket, [json.dumps(request).encode()], [*outputs, *fds])
        return Child(self, self._answer())

    def start_heard(self, *arguments: str) -> tuple[Child, int]:
        """Fork a program; return it and the descriptor from which its standard output is read."""
        heard, said = os.pipe()
        try:
            return self.start(*arguments, stdout=said), heard
        finally:
            os.close(said)

    def reap(self, pid: int) -> int:
        """Wait for the end of a child; return its exit code."""
        self._socket.send(json.dumps({"reap": pid}).encode())
        return self._answer()

    def _answer(self) -> int:
        answer = self._socket.recv(MOST)
        assert answer, "the fork server has ended"
        return int(answer)

    def close(self) -> None:
        """End it. Children that are left go on."""
        with suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)  # a process that a test has forked may have a copy
        self._socket.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Child:
    """A program that the fork server has forked."""

    def __init__(self, fork_server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._fork_server = fork_server
        self._returncode: int | None = None

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end for so long; whether it has come."""
        if self._returncode is not None:
            return True
        fd = os.pidfd_open(self.pid)
        try:
            ended = poll()
            ended.register(fd)
            return bool(ended.poll(seconds * 1000))
        finally:
            os.close(fd)

    def wait(self) -> int:
        """Wait for its end; return its exit code, as subprocess does."""
        if self._returncode is None:
            self._returncode = self._fork_server.reap(self.pid)
        return self._returncode

    def kill(self) -> None:
        """SIGKILL, and return when it is gone. May be called twice."""
        if self._returncode is None:
            os.kill(self.pid, signal.SIGKILL)  # it is there until it is reaped
            self.wait()


def _serve(requests: socket, module: Any) -> None:
    """Serve requests until the test's end is closed; in a child, return when its program has come to its end."""
    gc.collect()
    gc.freeze()  # a collection in a child would copy the memory of all that was imported
    while True:
        data, fds, _, _ = recv_fds(requests, MOST, MANY_FDS)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            status = waitpid(request["reap"], 0)[1]
            requests.send(b"%d" % os.waitstatus_to_exitcode(status))
            continue
        pid = fork()
        if not pid:
            close(requests.detach())
            for number, fd in zip(request["outputs"], fds, strict=False):
                dup2(fd, number)
                close(fd)
            module.main(*request["start"], *fds[len(request["outputs"]) :])
            return
        for fd in fds:
            close(fd)
        requests.send(b"%d" % pid)


if __name__ == "__main__":
    channel = socket(fileno=int(sys.argv.pop(1)))
    sys.argv.pop(0)
    with suppress(KeyboardInterrupt):
        _serve(channel, import_module(sys.argv[0]))
