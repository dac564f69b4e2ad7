"""Calls that may hang without hanging the tests: in threads, and in forked children."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

EVENTUALLY_S = 20.0  # time in which anything happens that is to happen, on however busy a machine


class Background(Generic[T]):
    """A call in a daemon thread: what hangs there fails a test instead of hanging it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="background-call", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error

    @property
    def ident(self) -> int:
        assert self._thread.ident is not None
        return self._thread.ident

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout_s: float = EVENTUALLY_S) -> T:
        """Wait for the end of the thread; return what the call returned, or raise what it raised."""
        self._thread.join(timeout_s)
        assert self.done, f"the call has not returned within {timeout_s} s"
        if self._error is not None:
            raise self._error
        return self._value[0]


def in_thread(call: Callable[[], T]) -> T:
    """Call on another thread, which has ended when this returns."""
    return Background(call).result()


def in_a_fork(check: Callable[[], object], within_s: float = EVENTUALLY_S) -> None:
    """Run `check` in a forked child; an AssertionError with the child's traceback if it fails there, or hangs."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # From Python 3.12 on: a fork of a process with threads is just what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            check()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-30_000:])
            os._exit(1)
        os._exit(0)
    os.close(writer)
    said = b""
    deadline = time.monotonic() + within_s
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                break
            data = os.read(reader, 65536)
            if not data:
                break
            said += data
    finally:
        os.close(reader)
        _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code != -signal.SIGKILL, f"the child has hung for {within_s} s\n{said.decode()}"
    assert code == 0, f"the child ended with {code}:\n{said.decode()}"
